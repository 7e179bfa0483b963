"""A Hugging Face causal LM taken apart into backbone and head, so that logits are computed for chosen rows only.

Works through the interface every causal LM of Transformers has (`get_decoder`, `get_output_embeddings`), adapters of
peft included, because they are put into the backbone. Not here: loading, generation, losses.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from agent_rl.errors import ConfigError
from agent_rl.modeling.sharding import full_shape, whole_in_forward

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalParts:
    """`logits(backbone(input_ids=ids).last_hidden_state)` are the model's logits."""

    model: "PreTrainedModel"
    """The causal LM itself, peft's wrapper taken off (its adapters stay inside)."""
    backbone: nn.Module
    """Called with `input_ids` [B, T] and more; its output has `last_hidden_state` [B, T, d]."""
    head: nn.Module
    """[..., d] -> [..., vocab_size]"""
    softcap: float | None
    """Logits are `softcap * tanh(logits / softcap)`, as in Gemma 2."""

    @property
    def vocab_size(self) -> int:
        """Number of logits, which may be more than the tokenizer has ids."""
        return full_shape(self.head.weight)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return next-token logits [..., vocab_size] of hidden states [..., d]."""
        logits = self.head(hidden)
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


def split_causal_lm(model: nn.Module) -> CausalParts:
    """Take a causal LM, or a peft model around one, apart.

    Raises ConfigError for a model that looks ahead or whose logits are not head(backbone), found by a test pass.
    """
    causal = model.get_base_model() if hasattr(model, "peft_config") else model
    name = type(causal).__name__
    backbone, head = causal.get_decoder(), causal.get_output_embeddings()
    if backbone is None or backbone is causal or head is None:
        raise ConfigError(f"{name} has no backbone and head of its own; use a decoder-only causal language model")
    parts = CausalParts(
        model=causal,
        backbone=backbone,
        head=head,
        softcap=getattr(causal.config.get_text_config(), "final_logit_softcapping", None),
    )
    was_training = causal.training
    causal.eval()
    with torch.no_grad(), whole_in_forward(causal):
        ids = torch.tensor([[0, 1], [0, 0]], device=head.weight.device)
        expected = causal(input_ids=ids, use_cache=False).logits.float()
        found = parts.logits(backbone(input_ids=ids, use_cache=False).last_hidden_state).float()
    causal.train(was_training)
    if not torch.allclose(expected[0, 0], expected[1, 0], atol=1e-3, rtol=1e-3):
        raise ConfigError(f"{name} looks at later tokens, as encoders do; use a decoder-only causal language model")
    if not torch.allclose(found, expected, atol=1e-3, rtol=1e-3):
        raise ConfigError(f"{name} changes its logits after the output head in a way not known here; use another model")
    return parts


class HeadShape(NamedTuple):
    """The heads of attention; all 0 for a layer, or a model, that has none."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


def head_shapes(config: Any) -> list[HeadShape]:
    """Of every layer, from a model's own config, the text part of one with several."""
    return [_head_shape(layer) for layer in getattr(config, "per_layer_config", (config,))]


def largest_heads(config: Any) -> HeadShape:
    """Each number the largest of all layers; what is computed with it is at most too much."""
    return HeadShape(*map(max, zip(*head_shapes(config), strict=True)))


def _head_shape(config: Any) -> HeadShape:
    if not (num_heads := getattr(config, "num_attention_heads", None)):
        return HeadShape(0, 0, 0)
    num_kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
    return HeadShape(num_heads, num_kv_heads, getattr(config, "head_dim", None) or config.hidden_size // num_heads)


def sliding_window(config: "PreTrainedConfig") -> int | None:
    """Positions that a windowed layer looks back, itself included; None when the model has no such layer."""
    return getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
