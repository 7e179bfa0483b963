"""The fastest decoder for a model: `make_decoder(model, width)`.

Models of Llama's shape get our own forward pass; every other Hugging Face causal LM, and adapters, run their own code
(`hf_decoder.py`).
"""

from typing import TYPE_CHECKING

import torch
from torch import nn

from agent_rl.inference.local.decoder import Decoder, LlamaDecoder
from agent_rl.modeling.hf_causal_lm import sliding_window
from agent_rl.modeling.minimind import MiniMindForCausalLM, rope_tables
from agent_rl.modeling.onednn import OneDNNLinear

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LLAMA_SHAPED = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM")
STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary positions whose angles depend on the position alone."""


def make_decoder(model: nn.Module, width: int) -> Decoder:
    """The fastest decoder for a model, for sequences of up to `width` tokens."""
    if isinstance(model, MiniMindForCausalLM):
        config = model.config
        cos, sin = rope_tables(torch.arange(width, device=model.device), config.head_dim, config.rope_theta)
        return LlamaDecoder(model, cos.to(model.dtype), sin.to(model.dtype))
    if _is_llama_shaped(model, width):
        sample = model.lm_head.weight.new_empty(1, 1, 1)
        cos, sin = model.model.rotary_emb(sample, torch.arange(width, device=sample.device)[None])
        return LlamaDecoder(model, cos[0], sin[0])
    from agent_rl.inference.local.hf_decoder import HFDecoder

    return HFDecoder(model, width)


def _is_llama_shaped(model: "PreTrainedModel", width: int) -> bool:
    """Whether `LlamaDecoder` computes what the model does; adapters and quantised layers are no plain linear layers."""
    if type(model).__name__ not in LLAMA_SHAPED:
        return False
    config = model.config
    window = sliding_window(config)
    projections = [m for name, m in model.model.layers.named_modules() if name.endswith("_proj")]
    return (
        all(type(projection) in (nn.Linear, OneDNNLinear) for projection in projections)
        and config.hidden_act == "silu"
        and config.rope_parameters.get("rope_type", "default") in STATIC_ROPE
        and (window is None or window >= width)
    )
