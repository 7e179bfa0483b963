"""Flat passes through Hugging Face models: our attention under Transformers' `AttentionInterface`.

`enable_packing` puts it in for good, because activations that are computed again in the backward pass request it then.
Only a pass that is given a layout is flat; in every other pass the model attends as with "sdpa", except that softcaps
(Gemma 2), which Transformers' own "sdpa" ignores, are applied.
Which models can, is a rule (`can_pack`) and a trial (`enable_packing`); all others take padded rows. Not here: the
attention itself.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agent_rl.errors import ConfigError
from agent_rl.modeling.hf_causal_lm import sliding_window
from agent_rl.modeling.packed_attention import PackedLayout, capped_attention, packed_attention
from agent_rl.records import Segment

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from agent_rl.modeling.hf_causal_lm import CausalParts

_NAME = "agent_rl_packed"
_SLIDING = "sliding_attention"
_TOLERANCE = 0.01
"""Largest part by which hidden states of a flat pass in float32 may be off."""
_LAYER_KINDS = {"full_attention", _SLIDING}


def can_pack(model: "PreTrainedModel") -> bool:
    """Whether tokens interact only in an exchangeable attention, and get their position from `position_ids`.

    So not: models with a state, convolutions, chunked or linear attention, attention sinks, biases by distance (ALiBi),
    or with an attention of their own that Transformers cannot exchange.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or _LAYER_KINDS)
    return (
        model._supports_attention_backend
        and model._supports_sdpa
        and not model._is_stateful
        and kinds <= _LAYER_KINDS
        and not getattr(config, "alibi", False)
        and not any(name.endswith("sinks") for name, _ in model.named_parameters())
    )


def enable_packing(parts: "CausalParts", *, is_tried: bool = True) -> str:
    """Exchange the model's attention, so that `packed_hidden_states` can be called; nothing else changes.

    With `is_tried` two sequences of two tokens are computed flat first; where that fails, returns why in a few words,
    and the attention is as before. Not for weights that are shards; those without values are not tried.
    """
    before = parts.model.config._attn_implementation
    parts.model.set_attn_implementation(_NAME)
    problem = _problem_of_a_flat_pass(parts) if is_tried and not parts.head.weight.is_meta else ""
    if problem:
        parts.model.set_attn_implementation(before)
    return problem


@torch.no_grad()
def _problem_of_a_flat_pass(parts: "CausalParts") -> str:
    weight = parts.head.weight
    ids, positions = torch.tensor([[0, 1, 1, 0], [0, 1, 0, 1]], device=weight.device)
    layout = PackedLayout([Segment(0, 1), Segment(1, 1, 0), Segment(2, 2)])
    was_training = parts.model.training
    parts.model.eval()
    try:
        expected = parts.backbone(input_ids=ids.view(2, 2), use_cache=False).last_hidden_state.flatten(0, 1)
        gap = (packed_hidden_states(parts, ids, positions, layout) - expected).norm()
    except Exception as error:  # the model's own code, with a layout and a mask that it may not expect
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    finally:
        parts.model.train(was_training)
    # Rounding, which can send a token to another expert, says little in half precision.
    is_same = weight.dtype in (torch.bfloat16, torch.float16) or bool(gap <= _TOLERANCE * expected.norm())
    return "" if is_same else "other hidden states than in padded rows"


def packed_hidden_states(
    parts: "CausalParts", token_ids_T: Tensor, position_ids_T: Tensor, layout: PackedLayout
) -> Tensor:
    """The backbone's last hidden states [T, d] of a flat row, after `enable_packing`.

    Raises ConfigError when the layout does not reach the model's attention.
    """
    config = parts.model.config.get_text_config()
    window = sliding_window(config) or 0
    # Four dimensions: Transformers passes it on unchanged, instead of building a mask T x T. The last one is the
    # layer's window, because some models know it by the mask alone.
    kinds = sorted(set(getattr(config, "layer_types", None) or [_SLIDING]))
    markers = {
        kind: torch.empty(1, 1, 0, window if kind == _SLIDING else 0, device=token_ids_T.device) for kind in kinds
    }
    output = parts.backbone(
        input_ids=token_ids_T[None],
        position_ids=position_ids_T[None],
        attention_mask=markers if len(markers) > 1 else markers[kinds[0]],
        use_cache=False,
        packed_layout=layout,
    )
    return output.last_hidden_state[0]


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_layout: PackedLayout | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The signature that Transformers calls: query [B, heads, T, D], key and value [B, kv_heads, T, D]."""
    is_marked = attention_mask is not None and attention_mask.numel() == 0
    if packed_layout is None:
        if is_marked:
            raise ConfigError(f"{type(module).__name__} does not hand the layout of a flat pass on; {_ADVICE}")
        if softcap is not None:
            return _plain_with_softcap(query, key, value, attention_mask, scaling, softcap), None
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    if changed := [name for name in ("s_aux", "position_bias") if others.get(name) is not None]:
        raise ConfigError(f"{type(module).__name__} changes its scores by {changed[0]}; {_ADVICE}")
    if not is_marked:
        raise ConfigError(f"{type(module).__name__} makes a mask of its own; {_ADVICE}")
    window = attention_mask.shape[-1] or None
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    out = packed_attention(q, k, v, packed_layout, scale=scaling, window=window, softcap=softcap)
    return out[None], None


def _plain_with_softcap(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None, softcap: float
) -> Tensor:
    if mask is None:
        num_queries, num_keys = query.shape[2], key.shape[2]
        mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device).tril(num_keys - num_queries)
    if mask.dtype == torch.bool:
        # Not minus infinity: a row of padding may see nothing at all.
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return capped_attention(query, key, value, mask, scale=scale, softcap=softcap).transpose(1, 2).contiguous()


_ADVICE = "score it with padded rows (LogprobModel(..., packed=False))"

AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, sdpa_mask)
