"""Any Hugging Face causal LM as a decoder, through the cache and mask arguments that Transformers gives every model.

The model's own code runs, adapters included; it stores keys and values through a `Cache`, and a mask defines what each
token may see. If the model's attention can be exchanged, ours replaces it, which does not repeat the keys of grouped
heads. At the start the decoder is compared with a plain forward pass; a model with other results is refused.
Not here: models whose layers keep a state instead of keys and values.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.modeling_utils import AttentionInterface

from agent_rl.errors import ConfigError
from agent_rl.inference.local.kernels import attend
from agent_rl.inference.local.kv_cache import CachePass, KeyValueCache
from agent_rl.modeling.hf_causal_lm import sliding_window, split_causal_lm

FULL, SLIDING = "full_attention", "sliding_attention"
_ATTENTION = "agent_rl_cached"
_TOLERANCE = 1e-3
"""Largest gap of a log-prob in float32 between the pass with the cache and the plain one."""
_HALF_TOLERANCE = 0.1
"""In half precision, where unlikely tokens' log-probs are noise: largest total variation, mean over rows."""


class HFDecoder:
    """One model, of which a PeftModel may be the outermost layer."""

    def __init__(self, model: nn.Module, width: int) -> None:
        """Raises ConfigError for a model with other layers than attention, or whose logits come out differently."""
        self._parts = split_causal_lm(model)
        causal = self._parts.model
        config = causal.config.get_text_config()
        self._window = sliding_window(config)
        self._kinds = set(getattr(config, "layer_types", None) or [SLIDING if self._window else FULL])
        if unknown := self._kinds - {FULL, SLIDING}:
            raise ConfigError(
                f"{type(causal).__name__} has layers of kind {', '.join(sorted(unknown))}, which the in-process engine "
                "cannot cache; generate with another back end"
            )
        _refuse_changing_rope(config, width)
        self._config = config
        self._is_exchangeable = causal._supports_attention_backend
        self.vocab_size = self._parts.vocab_size
        self.device, self.dtype = causal.device, causal.dtype
        self._check()

    def reload(self) -> None:
        """Holds no copy of weights; switches to eval mode, as some models drop the cache in train mode."""
        self._parts.model.eval()

    def hidden_states(self, token_ids_RT: Tensor, work: CachePass) -> Tensor:
        masks = {kind: work.mask(self.dtype, self._window if kind == SLIDING else None) for kind in sorted(self._kinds)}
        mask = masks if len(masks) > 1 else next(iter(masks.values()))
        with _our_attention(self._config) if self._is_exchangeable else nullcontext():
            return self._parts.backbone(
                input_ids=token_ids_RT,
                attention_mask=mask,
                position_ids=work.positions_RT,
                past_key_values=_PassAsCache(work),
                use_cache=True,
            ).last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        return self._parts.logits(hidden)

    def _check(self) -> None:
        """Compare a padded prefill, a continuation and a step of one token with the model's own forward pass."""
        self.reload()
        # From all over the vocabulary: the first ids are special tokens, on which half precision is far off.
        ids = torch.linspace(self.vocab_size // 10, self.vocab_size - 1, 16, device=self.device).long().view(2, 8)
        name = type(self._parts.model).__name__
        try:
            with torch.inference_mode():
                expected = self._parts.model(input_ids=ids, use_cache=False).logits[:, -1].float().log_softmax(-1)
                cache = KeyValueCache(2, 16, self.device)
                self._run_pieces(cache, [ids[0, :6], ids[1, :3]], starts=[0, 0])
                self._run_pieces(cache, [ids[0, 6:7], ids[1, 3:7]], starts=[6, 3])
                found = self._run_pieces(cache, [ids[0, 7:], ids[1, 7:]], starts=[7, 7]).float().log_softmax(-1)
        except Exception as error:  # the model's own code, with a cache and masks it may not expect
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise ConfigError(f"{name} does not run with the engine's cache ({reason}); use another model") from error
        if self.dtype in (torch.float32, torch.float64):
            measure, gap, most = "largest gap of a log-prob", float((found - expected).abs().max()), _TOLERANCE
        else:
            gap, most = float((found.exp() - expected.exp()).abs().sum(-1).mean()) / 2, _HALF_TOLERANCE
            measure = "total variation"
        if not gap <= most:
            raise ConfigError(
                f"{name} gives other probabilities with the key/value cache than without ({measure} {gap:.2g}, "
                f"at most {most} expected), so its samples could not be trained on; use another model"
            )

    def _run_pieces(self, cache: KeyValueCache, pieces: list[Tensor], *, starts: list[int]) -> Tensor:
        """Run one piece a slot; returns the logits after the last token of each, [R, V]."""
        num_new_R = torch.tensor([len(piece) for piece in pieces], device=self.device)
        starts_R = torch.tensor(starts, device=self.device)
        num_new, length = int(num_new_R.max()), int((starts_R + num_new_R).max())
        work = CachePass(cache, 0, starts_R, num_new_R, num_new=num_new, length=length)
        hidden = self.hidden_states(nn.utils.rnn.pad_sequence(pieces, batch_first=True), work)
        return self.logits(hidden[cache.rows, num_new_R - 1])


def _refuse_changing_rope(config: Any, width: int) -> None:
    """ConfigError where the angles of a position would depend on how long the longest sequence of a pass is."""
    rope = getattr(config, "rope_parameters", None) or {}
    boundary = rope.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
    if rope.get("rope_type") == "longrope" and boundary is not None and width > boundary:
        raise ConfigError(
            f"this model changes its rotary positions beyond {boundary} tokens (longrope), in a batch for all rows at "
            f"once, so log-probs would not be exact; set policy.max_context to {boundary} or less"
        )


class _PassAsCache(Cache):
    """What a model's layers see of a pass."""

    def __init__(self, work: CachePass) -> None:
        super().__init__(layers=[])
        self._work = work

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple:
        return self._work.update(layer_idx, key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._work.length - self._work.positions_RT.shape[1]

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._work.length, 0


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """The signature that Transformers calls; what it does not know shows in the comparison at the start."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = attend(query, key, value, attention_mask, scale=scale, softcap=softcap)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(_ATTENTION, _attention)


@contextmanager
def _our_attention(config: Any) -> Iterator[None]:
    """Exchange the attention for one pass; the trainer's own is back afterwards."""
    before = config._attn_implementation
    config._attn_implementation = _ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before
