"""Causal attention over segments that lie one after the other, so that no layer ever computes padding.

A segment may continue another one, its prefix, and that one another: its queries read the keys of all of them and their
own. Every segment is one call of PyTorch's fused attention; on a GPU and in half precision all of them are one. No
T x T mask exists: a causal segment needs none, one with a prefix needs its own rows only. Measured on one CPU thread
with torch 2.13 (8 continuations of 200 to 400 tokens, forward and backward): segments padded to one rectangle take 1.4
times as long, reading the prefix anew for each continuation 1.4 times (2.2 with a prefix of 1000 tokens), and two
partial results merged by log-sum-exp are no faster, but need private functions of PyTorch.
Not here: positions, projections, what a segment is for (`agent_rl/learning/packing.py`).
"""

from collections.abc import Sequence
from inspect import signature
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from agent_rl.records import Segment


_VARLEN_FORMATS = (torch.bfloat16, torch.float16)


class HeadExchange(Protocol):
    """Processes that share a pass, each with a part of its tokens."""

    def to_heads(self, x_CHD: Tensor) -> Tensor:
        """All tokens [T, heads of this process, D] of this process's tokens [C, heads, D] and those of the others."""

    def to_tokens(self, x_THD: Tensor) -> Tensor:
        """The reverse."""


class PackedLayout:
    """Which tokens see which in a flat pass: `PackedLayout(batch.segments)`; one object serves all layers of a pass."""

    def __init__(self, segments: Sequence["Segment"], exchange: HeadExchange | None = None) -> None:
        """The segments of the whole pass; with `exchange` a process computes a part of their tokens.

        Raises ValueError unless the segments follow one another, each prefix before what continues it.
        """
        self.exchange = exchange
        self.segments = tuple(segments)
        self.lengths = [segment.length for segment in self.segments]
        self.paths: list[list[int]] = []
        """The segments that each one continues, the first first, and itself."""
        num_tokens = 0
        for index, segment in enumerate(self.segments):
            if segment.start != num_tokens or segment.length < 1:
                raise ValueError(
                    f"segment {index} has {segment.length} tokens from {segment.start} on: segments must follow"
                )
            if segment.prefix is not None and not 0 <= segment.prefix < index:
                raise ValueError(f"segment {index} continues {segment.prefix}, which is no earlier segment")
            self.paths.append([*(() if segment.prefix is None else self.paths[segment.prefix]), index])
            num_tokens += segment.length
        self.num_read = [sum(self.lengths[part] for part in path) for path in self.paths]
        """Keys that the last token of each segment sees."""
        self._masks: dict[tuple[int | None, torch.dtype, torch.device], Tensor] = {}
        self._ends: dict[torch.device, tuple[Tensor, Tensor]] = {}

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)

    def mask(self, index: int, window: int | None, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The mask added to the scores of a segment's queries and keys [length, keys]: 0 if seen, else minus infinity.

        A token sees itself and what comes before it, of that only the last `window` - 1 tokens where there is a window.
        All layers and segments share one tensor, so that the backward pass does not keep a mask for each.
        """
        key = (window, dtype, device)
        first = min(num - length for num, length in zip(self.num_read, self.lengths, strict=True))
        if key not in self._masks:
            rows = torch.arange(first, max(self.num_read), device=device)[:, None]
            columns = torch.arange(max(self.num_read), device=device)
            hidden = columns > rows
            if window is not None:
                hidden |= columns <= rows - window
            self._masks[key] = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
        num_keys, length = self.num_read[index], self.lengths[index]
        return self._masks[key][num_keys - length - first : num_keys - first, :num_keys]

    def ends(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Where each segment's queries and its keys end when both lie one after the other, after a 0; int32 [S + 1]."""
        if device not in self._ends:
            counts = torch.tensor([[0, *self.lengths], [0, *self.num_read]], dtype=torch.int32, device=device)
            queries, keys = counts.cumsum(dim=1, dtype=torch.int32)
            self._ends[device] = (queries, keys)
        return self._ends[device]

    def padded(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Every sequence as a row, prefixes repeated: for models that cannot run flat.

        Returns the token [S, L] that stands at each place of the rows (token 0 on the right of shorter ones), and the
        place [T] of each token among the S * L; a prefix is found in the first row that begins with it.
        """
        continued = {segment.prefix for segment in self.segments}
        rows: list[list[int]] = []
        places: dict[int, tuple[int, int]] = {}
        for index in range(len(self.segments)):
            if index in continued:
                continue
            parts = [self.segments[part] for part in self.paths[index]]
            row = [token for part in parts for token in range(part.start, part.start + part.length)]
            for column, token in enumerate(row):
                places.setdefault(token, (len(rows), column))
            rows.append(row)
        longest = max(len(row) for row in rows)
        tokens_SL = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=device)
        place_T = torch.tensor([row * longest + column for _, (row, column) in sorted(places.items())], device=device)
        return tokens_SL, place_T


def packed_attention(
    queries_THD: Tensor,
    keys_TKD: Tensor,
    values_TKD: Tensor,
    layout: PackedLayout,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attention of every token over what its segment continues and its own segment up to itself, [T, heads, D].

    queries [T, heads, D]; keys and values [T, kv_heads, D], where query head h reads key head h // (heads / kv_heads).
    `scale` multiplies the scores (None: 1 / sqrt(D)). With a `window` a token sees that many tokens, itself the last.
    `softcap` caps scores to `softcap * tanh(scores / softcap)` (Gemma 2). Computes in autocast's format if on.
    With the layout's `exchange`, tokens are those of this process on both sides.
    """
    if layout.exchange is not None:
        by_heads = (layout.exchange.to_heads(x) for x in (queries_THD, keys_TKD, values_TKD))
        return layout.exchange.to_tokens(_attend(*by_heads, layout, scale, window, softcap))
    return _attend(queries_THD, keys_TKD, values_TKD, layout, scale, window, softcap)


def _attend(
    queries_THD: Tensor,
    keys_TKD: Tensor,
    values_TKD: Tensor,
    layout: PackedLayout,
    scale: float | None,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    device = queries_THD.device
    dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else queries_THD.dtype
    # Autocast does not reach the kernels below `causal_lower_right`.
    queries, keys, values = (x.to(dtype).split(layout.lengths) for x in (queries_THD, keys_TKD, values_TKD))
    scale = queries_THD.shape[-1] ** -0.5 if scale is None else scale
    widths = queries_THD.shape[-1], values_TKD.shape[-1]
    if device.type == "cuda" and softcap is None and fits_one_call(dtype, *widths):
        return attend_in_one_call(queries_THD.to(dtype), keys, values, layout, scale, window)
    outputs: list[Tensor] = []
    for index, path in enumerate(layout.paths):
        q = queries[index].transpose(0, 1)[None]
        k, v = (torch.cat([x[part] for part in path]).transpose(0, 1)[None] for x in (keys, values))
        seen = window if window is not None and window < k.shape[2] else None
        if softcap is not None:
            mask = layout.mask(index, seen, dtype, device)
            out = capped_attention(q, k, v, mask, scale=scale, softcap=softcap)
        else:
            out = _fused(q, k, v, layout, index, scale, seen)
        outputs.append(out[0].transpose(0, 1))
    return torch.cat(outputs)


def fits_one_call(dtype: torch.dtype, query_width: int, value_width: int) -> bool:
    """Whether the kernel of `attend_in_one_call` takes heads of that number format and these widths."""
    return dtype in _VARLEN_FORMATS and query_width == value_width <= 256 and query_width % 8 == 0


def attend_in_one_call(
    queries_THD: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    layout: PackedLayout,
    scale: float,
    window: int | None,
) -> Tensor:
    """All segments by one kernel, for which keys that several of them read are repeated."""
    from torch.nn.attention.varlen import varlen_attn  # a second of imports that a CPU does not need

    k_RHD, v_RHD = (torch.cat([x[part] for path in layout.paths for part in path]) for x in (keys, values))
    query_ends, key_ends = layout.ends(queries_THD.device)
    is_grouped = queries_THD.shape[1] != k_RHD.shape[1]
    # PyTorch before 2.12 has no such switch: its kernel takes fewer heads of keys as they are.
    grouped = {"enable_gqa": is_grouped} if "enable_gqa" in signature(varlen_attn).parameters else {}
    # A window is what a token sees to its left, and causal: the last query sees the last key.
    return varlen_attn(
        queries_THD,
        k_RHD,
        v_RHD,
        query_ends,
        key_ends,
        max(layout.lengths),
        max(layout.num_read),
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        **grouped,
    )


def _fused(
    q: Tensor, k: Tensor, v: Tensor, layout: PackedLayout, index: int, scale: float, window: int | None
) -> Tensor:
    num_queries, num_keys, grouped = q.shape[2], k.shape[2], q.shape[1] != k.shape[1]
    if num_queries == num_keys and window is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
    if window is None and q.device.type == "cuda":
        from torch.nn.attention.bias import causal_lower_right  # a second of imports that a CPU does not need

        mask = causal_lower_right(num_queries, num_keys)  # the fused CUDA kernels know it; a CPU would build it anew
    else:
        mask = layout.mask(index, window, q.dtype, q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)


def capped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, scale: float, softcap: float) -> Tensor:
    """By products, because no fused kernel caps scores; q [B, heads, T, D], mask added to the capped scores."""
    num_repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(num_repeats, dim=1), v.repeat_interleave(num_repeats, dim=1)
    scores = torch.tanh(q @ k.transpose(2, 3) * (scale / softcap)) * softcap + mask
    return scores.softmax(dim=-1, dtype=torch.float32).to(v.dtype) @ v
