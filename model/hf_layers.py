"""Gated feed-forward layers and RMS norms of Hugging Face models, exchanged for ours that keep less for the backward.

Whether a layer computes what ours would is seen by trying it, class by class; all others stay as they are (norms of
Gemma, gates with GELU). Not here: attention (`hf_packed_attention.py`), linear layers (`onednn.py`).
"""

import torch
from torch import Tensor, nn

from model.recompute import rms_norm, swiglu


class _SwiGLU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return swiglu(x, self.gate_proj, self.up_proj, self.down_proj)


class _RMSNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        # On a GPU, and where number formats mix, the model's own rounding counts.
        if x.device.type != "cpu" or x.dtype != self.weight.dtype:
            return super().forward(x)
        return rms_norm(x, self.weight, self.variance_epsilon)


_NEEDS = {
    _SwiGLU: {"gate_proj", "up_proj", "down_proj", "act_fn"},
    _RMSNorm: {"weight", "variance_epsilon"},
}
"""By our layer: what one that it can stand for has."""


def exchange_layers(model: nn.Module) -> None:
    """Exchange what can be, for good; names of weights, adapters inside a layer and hooks stay."""
    found: dict[type, type | None] = {}
    for module in model.modules():
        kind = type(module)
        if kind not in found:
            found[kind] = _exchanged(module)
        if found[kind] is not None:
            module.__class__ = found[kind]


def _exchanged(module: nn.Module) -> type | None:
    """The class of `module` with our forward, or None where that would be another function."""
    kind = type(module)
    for ours, needed in _NEEDS.items():
        if issubclass(kind, ours) or not all(hasattr(module, name) for name in needed):
            continue
        exchanged = type(kind.__name__, (ours, kind), {"__module__": kind.__module__})
        if _is_same(module, exchanged):
            return exchanged
    return None


@torch.no_grad()
def _is_same(module: nn.Module, exchanged: type) -> bool:
    kind = type(module)
    weight = module.weight if hasattr(module, "weight") else next(module.gate_proj.parameters())
    if not (weight.is_floating_point() and weight.numel()):  # quantised, or a shard
        return False
    # Not drawn: PyTorch's generator is the run's.
    x = torch.linspace(-2.0, 2.0, 3 * weight.shape[-1]).cos().view(1, 3, -1).to(weight)
    was_training = module.training
    module.eval()
    expected = module(x)
    module.__class__ = exchanged
    found = module(x)
    module.__class__ = kind
    module.train(was_training)
    return torch.allclose(found, expected, rtol=1e-5, atol=1e-6)
