"""The running requests: started, advanced by one token, retired, always in the first slots.

Slot i of the cache belongs to `requests[i]`; when a row ends, the last active row changes places with it, so that a
decode step is dense. Cached tokens (an earlier turn, a group's prompt) are not computed again.
A token depends on logits, temperature and one uniform number alone (sampling by inverse transform).
One thread only. Not here: top-k and top-p (training on them needs their nucleus replayed), threads, callers, versions
of the weights.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agent_rl.errors import EngineError
from agent_rl.inference.local.decoder import Decoder
from agent_rl.inference.local.kv_cache import CachePass, KeyValueCache
from agent_rl.inference.local.slots import MIN_SHARED, SlotTable
from agent_rl.inference.requests import CompletionRequest
from agent_rl.records import FinishReason

MAX_PREFILL_TOKENS = 1024
"""Most new tokens of one forward pass and, unless a single prompt is longer, between two decode steps; bounds the
memory of a pass and the wait of active rows. On a GPU eight times as many."""
MAX_PADDING = 1.5
"""Rows share a prefill as long as it has at most this many times their tokens (and a few more)."""


@dataclass(slots=True, kw_only=True, eq=False)
class Request(CompletionRequest):
    """One call of `generate`."""

    prompt: np.ndarray
    """[P] int32"""
    uniforms: np.ndarray
    """One number per token that may be sampled, [max_new_tokens] float32."""

    @property
    def finish_reason(self) -> FinishReason | None:
        """None while tokens are still to be sampled."""
        if self.token_ids and self.token_ids[-1] in self.sampling.stop_token_ids:
            return FinishReason.STOP
        if len(self.token_ids) == self.max_new_tokens:
            return FinishReason.LENGTH
        return FinishReason.CANCELLED if self.is_cancelled else None


class ActiveBatch:
    """At most `max_rows` requests in generation; `start`, then `step` until `requests` is empty."""

    def __init__(self, decoder: Decoder, *, max_rows: int, num_slots: int, width: int) -> None:
        self.requests: list[Request] = []
        self.cache = KeyValueCache(num_slots, width, decoder.device)
        self.slots = SlotTable(self.cache)
        self._decoder = decoder
        self._max_rows = min(max_rows, num_slots)
        self._max_prefill = MAX_PREFILL_TOKENS * (1 if decoder.device.type == "cpu" else 8)
        self._logits: Tensor | None = None
        """Logits of the next token of every active row, [len(requests), V]."""
        self._workspace = torch.empty(self._max_rows, decoder.vocab_size, device=decoder.device)

    def start(self, pending: list[Request]) -> None:
        """Move requests from the front of `pending` into free slots and compute what is new in their prompts."""
        budget = self._max_prefill
        while budget > 0 and (wave := self._take_wave(pending, budget)):
            budget -= sum(len(request.prompt) - num_cached for request, num_cached in wave)
            self._prefill(wave)

    def step(self) -> list[Request]:
        """Sample one token for every row and decode the rows that continue; returns the requests that ended."""
        ids_B = self._sample()
        finished = [row for row, request in enumerate(self.requests) if request.finish_reason is not None]
        ended = [self.requests[row] for row in finished]
        if finished:
            ids_B = self._retire(finished, ids_B)
        self._logits = None
        if self.requests:
            ids = [request.token_ids[-1] for request in self.requests]
            self._logits = self._run(0, ids_B[:, None], self.slots.lengths[: len(ids)], np.ones(len(ids), dtype=int))
            self.slots.append(len(ids), ids)
        return ended

    def _take_wave(self, pending: list[Request], budget: int) -> list[tuple[Request, int]]:
        """Give slots to requests whose prompts can be computed side by side; with the tokens cached of each.

        A request that shares more with another of the wave than with any slot waits for the next wave, and then
        copies: so a group's prompt is computed once.
        """
        wave: list[tuple[Request, int]] = []
        later: list[Request] = []
        while pending and budget > 0 and len(self.requests) < self._max_rows:
            request = pending.pop(0)
            cached = int(self.slots.num_shared(request.prompt).max())
            if any(_num_common(request.prompt, other.prompt) >= cached + MIN_SHARED for other, _ in wave):
                later.append(request)
                continue
            num_cached = self.slots.claim(len(self.requests), request.prompt)
            self.requests.append(request)
            wave.append((request, num_cached))
            budget -= len(request.prompt) - num_cached
        pending[:0] = later
        return wave

    def _prefill(self, wave: Sequence[tuple[Request, int]]) -> None:
        """Compute the uncached rest of the prompts of the last rows, rows of like length together."""
        first = len(self.requests) - len(wave)
        logits = [] if self._logits is None else [self._logits]
        while wave:
            num_new = [len(request.prompt) - num_cached for request, num_cached in wave]
            num_rows = _num_alike(num_new, self._max_prefill)
            logits.append(self._prefill_rows(first, wave[:num_rows]))
            wave, first = wave[num_rows:], first + num_rows
        self._logits = torch.cat(logits)

    def _prefill_rows(self, first: int, rows: Sequence[tuple[Request, int]]) -> Tensor:
        """Compute prompts in pieces of bounded size; returns the logits after their last tokens, [R, V]."""
        starts = np.array([num_cached for _, num_cached in rows])
        lengths = np.array([len(request.prompt) for request, _ in rows])
        piece = max(1, self._max_prefill // len(rows))
        logits: Tensor | None = None
        while logits is None or (starts < lengths).any():
            num_new = np.minimum(lengths - starts, piece)
            ids = np.zeros((len(rows), num_new.max()), dtype=np.int64)
            for row, (request, _) in enumerate(rows):
                ids[row, : num_new[row]] = request.prompt[starts[row] :][: num_new[row]]
            new_logits = self._run(first, torch.from_numpy(ids).to(self._decoder.device), starts, num_new)
            still = torch.from_numpy(num_new > 0).to(new_logits.device)
            logits = new_logits if logits is None else torch.where(still[:, None], new_logits, logits)
            starts = starts + num_new
        for row, (request, _) in enumerate(rows, start=first):
            self.slots.fill(row, request.prompt)
        return logits

    def _run(self, first: int, token_ids_RT: Tensor, starts: np.ndarray, num_new: np.ndarray) -> Tensor:
        """One forward pass; returns the logits after the last new token of every row, [R, V]."""
        device = token_ids_RT.device
        num_new_R = torch.from_numpy(num_new).to(device)
        work = CachePass(
            self.cache,
            first,
            torch.from_numpy(starts).to(device),
            num_new_R,
            num_new=token_ids_RT.shape[1],
            length=int((starts + num_new).max()),
        )
        hidden = self._decoder.hidden_states(token_ids_RT, work)
        if token_ids_RT.shape[1] == 1:
            return self._decoder.logits(hidden[:, 0])
        return self._decoder.logits(hidden[self.cache.rows[: len(starts)], (num_new_R - 1).clamp_(min=0)])

    def _sample(self) -> Tensor:
        """Sample a token for every row and add it to its request; returns the ids [B]."""
        num_rows, device = len(self.requests), self._decoder.device
        uniforms = [request.uniforms[len(request.token_ids)] for request in self.requests]
        temperatures = [request.sampling.temperature for request in self.requests]
        ids_B, logprobs_B = sample_tokens(
            self._logits,
            torch.tensor(temperatures, device=device),
            torch.tensor(np.array(uniforms), device=device),
            workspace_BV=self._workspace[:num_rows],
        )
        # The one transfer to the host of a step; float64 holds both exactly.
        ids, logprobs = torch.stack((ids_B.double(), logprobs_B.double())).tolist()
        for request, token_id, logprob in zip(self.requests, ids, logprobs, strict=True):
            if not math.isfinite(logprob):
                raise EngineError("the model gave a log-prob that is not finite: its weights have diverged")
            request.token_ids.append(int(token_id))
            request.logprobs.append(logprob)
        return ids_B

    def _retire(self, finished: list[int], ids_B: Tensor) -> Tensor:
        """Make rows idle; the last active rows take their places. Returns the ids of the rows that continue."""
        order = list(range(len(self.requests)))
        for row in reversed(finished):
            last = len(self.requests) - 1
            self.slots.release(row)
            self.slots.swap(row, last)
            self.requests[row], order[row] = self.requests[last], order[last]
            del self.requests[last], order[last]
        return ids_B[order]


def _num_common(first: np.ndarray, second: np.ndarray) -> int:
    """Length of the common prefix of two prompts, their last tokens left out."""
    length = min(len(first), len(second)) - 1
    differs = np.flatnonzero(first[:length] != second[:length])
    return int(differs[0]) if len(differs) else length


def _num_alike(num_new: Sequence[int], most: int) -> int:
    """How many rows from the front go into one padded pass."""
    longest = total = 0
    for count, length in enumerate(num_new):
        longest, total = max(longest, length), total + length
        padded = longest * (count + 1)
        if count and (padded > MAX_PADDING * total + 256 or padded > most):
            return count
    return len(num_new)


def sample_uniforms(seed: int, count: int) -> np.ndarray:
    """Return `count` float32 numbers in [0, 1), the same for the same seed on every machine. Shape [count]."""
    return np.random.Generator(np.random.PCG64(seed)).random(count, dtype=np.float32)


def sample_tokens(
    logits_BV: Tensor, temperatures_B: Tensor, uniforms_B: Tensor, *, workspace_BV: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sample one token per row: the first id whose cumulative probability exceeds the row's uniform number.

    Returns (ids [B] int64, logprobs [B] float32), log-probs being `log_softmax(logits / temperature)` at the id.
    Temperature 0 takes the argmax and records its log-prob at temperature 1. NaN logits give NaN log-probs.
    float32 logits are overwritten; `workspace_BV` (float32) spares an allocation.
    """
    greedy_B = temperatures_B == 0
    # In place: faulting in one more array of this size costs more than the exponential.
    scaled_BV = logits_BV.float().div_(torch.where(greedy_B, 1.0, temperatures_B)[:, None])
    top_B, top_ids_B = scaled_BV.max(dim=-1)
    weights_BV = scaled_BV.sub_(top_B[:, None]).exp_()
    cumulative_BV = torch.cumsum(weights_BV, dim=-1, out=workspace_BV)
    totals_B = cumulative_BV[:, -1]
    # `right` never stops at probability 0; a number just below 1 must not round up to the total and lead past the end.
    thresholds_B = torch.minimum(uniforms_B * totals_B, torch.nextafter(totals_B, torch.zeros_like(totals_B)))
    sampled_B = torch.searchsorted(cumulative_BV, thresholds_B[:, None], right=True)[:, 0]
    # Only NaN still leads past the end; the clamp lets the caller see the NaN log-prob instead of an index error.
    sampled_B.clamp_(max=logits_BV.shape[-1] - 1)
    ids_B = torch.where(greedy_B, top_ids_B, sampled_B)
    return ids_B, weights_BV.gather(1, ids_B[:, None])[:, 0].log() - totals_B.log()
