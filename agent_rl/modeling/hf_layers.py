"""Gated feed-forward layers and RMS norms of Hugging Face models, replaced by ours, which store less for the backward.

Only classes whose formula is known to be ours, by name: many others look alike (clamped gates, norms with a gate or an
offset). Not here: attention (`hf_packed_attention.py`), linear layers (`onednn.py`).
"""

from functools import partial

from torch import Tensor, nn
from transformers.activations import SiLUActivation

from agent_rl.modeling.recompute import rms_norm, swiglu

GATED = ("LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP")
NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")


def exchange_layers(model: nn.Module) -> None:
    """Exchange what can be, for good; names of weights, adapters inside a layer and hooks stay."""
    for module in model.modules():
        kind = type(module)
        if not kind.__module__.startswith("transformers.models."):
            continue
        if kind.__name__ in GATED and isinstance(module.act_fn, SiLUActivation | nn.SiLU):
            module.forward = partial(_gated, module)
        elif kind.__name__ in NORMS:
            module.forward = partial(_norm, module)


def _gated(module: nn.Module, x: Tensor) -> Tensor:
    return swiglu(x, module.gate_proj, module.up_proj, module.down_proj)


def _norm(module: nn.Module, hidden_states: Tensor) -> Tensor:
    # Where number formats mix, the model's own rounding counts.
    if hidden_states.dtype != module.weight.dtype:
        return type(module).forward(module, hidden_states)
    return rms_norm(hidden_states, module.weight, module.variance_epsilon)
