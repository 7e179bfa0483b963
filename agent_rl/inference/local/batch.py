"""The running requests: started, advanced by one token, retired, always in the first slots.

Requests with the same context are one row of the forward pass until they sample different tokens; then the row forks.
Slot i of the cache belongs to `rows[i]`; when a row ends, the last one changes places with it, so that a decode step is
dense. Cached tokens (an earlier turn, a group's prompt) are not computed again.
A token depends on logits, temperature and one uniform number alone (sampling by inverse transform), so it is the same
whether a row is shared or not, up to the rounding of batches of other sizes.
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


@dataclass(slots=True, eq=False)
class Row:
    """Requests with the same prompt, temperature and sampled tokens; one of the forward pass serves them all."""

    members: list[Request]

    @property
    def prompt(self) -> np.ndarray:
        return self.members[0].prompt

    @property
    def temperature(self) -> float:
        return self.members[0].sampling.temperature

    @property
    def last_id(self) -> int:
        return self.members[0].token_ids[-1]

    def takes(self, request: Request) -> bool:
        """Whether a new request may join: nothing is sampled yet, and nothing else is different."""
        return (
            not self.members[0].token_ids
            and self.temperature == request.sampling.temperature
            and np.array_equal(self.prompt, request.prompt)
        )

    def forks(self, ended: list[Request]) -> list["Row"]:
        """One row for each different last token, of the requests that go on."""
        by_id: dict[int, list[Request]] = {}
        for member in self.members:
            if member not in ended:
                by_id.setdefault(member.token_ids[-1], []).append(member)
        return [Row(members) for members in by_id.values()]


class ActiveBatch:
    """At most `max_rows` requests in generation; `start`, then `step` until `requests` is empty."""

    def __init__(
        self, decoder: Decoder, *, max_rows: int, num_slots: int, width: int, share_contexts: bool = True
    ) -> None:
        """Without `share_contexts` every request has a row of its own."""
        self.rows: list[Row] = []
        self.cache = KeyValueCache(num_slots, width, decoder.device)
        self.slots = SlotTable(self.cache)
        self.num_sampled = self.num_decoded = 0
        """Tokens sampled so far, and how many were run through the model for that; of prompts, none is counted."""
        self._decoder = decoder
        self._share_contexts = share_contexts
        self._max_rows = min(max_rows, num_slots)
        self._max_prefill = MAX_PREFILL_TOKENS * (1 if decoder.device.type == "cpu" else 8)
        self._logits: Tensor | None = None
        """Logits of the next token of every row, [len(rows), V]."""
        self._workspace = torch.empty(self._max_rows, decoder.vocab_size, device=decoder.device)

    @property
    def requests(self) -> list[Request]:
        """Those in generation."""
        return [member for row in self.rows for member in row.members]

    def start(self, pending: list[Request]) -> None:
        """Move requests from the front of `pending` into free slots and compute what is new in their prompts."""
        budget = self._max_prefill
        while budget > 0 and (wave := self._take_wave(pending, budget)):
            budget -= sum(len(row.prompt) - num_cached for row, num_cached in wave)
            self._prefill(wave)

    def step(self) -> list[Request]:
        """Sample one token for every request and decode the rows that continue; returns the requests that ended."""
        self._sample()
        ended = [request for request in self.requests if request.finish_reason is not None]
        self._fork(ended)
        self._logits = None
        if self.rows:
            ids = [row.last_id for row in self.rows]
            new_ids_R1 = torch.tensor(ids, device=self._decoder.device)[:, None]
            self._logits = self._run(0, new_ids_R1, self.slots.lengths[: len(ids)], np.ones(len(ids), dtype=int))
            self.slots.append(len(ids), ids)
            self.num_decoded += len(ids)
        return ended

    def _take_wave(self, pending: list[Request], budget: int) -> list[tuple[Row, int]]:
        """Give slots to requests whose prompts can be computed side by side; their rows with the tokens cached of each.

        A request whose prompt is that of a row without a token joins the row. One that shares more with another of the
        wave than with any slot waits for the next wave, and then copies: so what prompts share is computed once.
        """
        wave: list[tuple[Row, int]] = []
        later: list[Request] = []
        room = self._max_rows - len(self.requests)
        while pending and budget > 0 and room > 0:
            request = pending.pop(0)
            twin = next((row for row in self.rows if row.takes(request)), None) if self._share_contexts else None
            if twin is not None:
                twin.members.append(request)
                room -= 1
                continue
            cached = int(self.slots.num_shared(request.prompt).max())
            if any(_num_common(request.prompt, row.prompt) >= cached + MIN_SHARED for row, _ in wave):
                later.append(request)
                continue
            row, num_cached = Row([request]), self.slots.claim(len(self.rows), request.prompt)
            self.rows.append(row)
            wave.append((row, num_cached))
            room -= 1
            budget -= len(request.prompt) - num_cached
        pending[:0] = later
        return wave

    def _prefill(self, wave: Sequence[tuple[Row, int]]) -> None:
        """Compute the uncached rest of the prompts of the last rows, rows of like length together."""
        first = len(self.rows) - len(wave)
        logits = [] if self._logits is None else [self._logits]
        while wave:
            num_new = [len(row.prompt) - num_cached for row, num_cached in wave]
            num_rows = _num_alike(num_new, self._max_prefill)
            logits.append(self._prefill_rows(first, wave[:num_rows]))
            wave, first = wave[num_rows:], first + num_rows
        self._logits = torch.cat(logits)

    def _prefill_rows(self, first: int, rows: Sequence[tuple[Row, int]]) -> Tensor:
        """Compute prompts in pieces of bounded size; returns the logits after their last tokens, [R, V]."""
        starts = np.array([num_cached for _, num_cached in rows])
        lengths = np.array([len(row.prompt) for row, _ in rows])
        piece = max(1, self._max_prefill // len(rows))
        logits: Tensor | None = None
        while logits is None or (starts < lengths).any():
            num_new = np.minimum(lengths - starts, piece)
            ids = np.zeros((len(rows), num_new.max()), dtype=np.int64)
            for number, (row, _) in enumerate(rows):
                ids[number, : num_new[number]] = row.prompt[starts[number] :][: num_new[number]]
            new_logits = self._run(first, torch.from_numpy(ids).to(self._decoder.device), starts, num_new)
            still = torch.from_numpy(num_new > 0).to(new_logits.device)
            logits = new_logits if logits is None else torch.where(still[:, None], new_logits, logits)
            starts = starts + num_new
        for slot, (row, _) in enumerate(rows, start=first):
            self.slots.fill(slot, row.prompt)
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

    def _sample(self) -> None:
        """Sample a token for every request and add it."""
        device = self._decoder.device
        uniforms = np.zeros((len(self.rows), max(len(row.members) for row in self.rows)), dtype=np.float32)
        for number, row in enumerate(self.rows):
            uniforms[number, : len(row.members)] = [each.uniforms[len(each.token_ids)] for each in row.members]
        ids_RK, logprobs_RK = sample_tokens(
            self._logits,
            torch.tensor([row.temperature for row in self.rows], device=device),
            torch.from_numpy(uniforms).to(device),
            workspace_RV=self._workspace[: len(self.rows)],
        )
        # The one transfer to the host of a step; float64 holds both exactly.
        ids, logprobs = torch.stack((ids_RK.double(), logprobs_RK.double())).tolist()
        for row, row_ids, row_logprobs in zip(self.rows, ids, logprobs, strict=True):
            for request, token_id, logprob in zip(row.members, row_ids, row_logprobs, strict=False):
                if not math.isfinite(logprob):
                    raise EngineError("the model gave a log-prob that is not finite: its weights have diverged")
                request.token_ids.append(int(token_id))
                request.logprobs.append(logprob)
            self.num_sampled += len(row.members)

    def _fork(self, ended: list[Request]) -> None:
        """Part requests that sampled different tokens, and make rows idle that have none left; the last rows take
        their places."""
        empty = []
        for number, row in enumerate(list(self.rows)):
            first, *others = row.forks(ended) or [Row([])]
            # There is a slot for each: rows are no more than requests, those that just ended included.
            for other in others:
                self.slots.fork(number, len(self.rows))
                self.rows.append(other)
            self.rows[number] = first
            if not first.members:
                empty.append(number)
        for number in reversed(empty):
            last = len(self.rows) - 1
            self.slots.release(number)
            self.slots.swap(number, last)
            self.rows[number] = self.rows[last]
            del self.rows[last]


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
    logits_RV: Tensor, temperatures_R: Tensor, uniforms_RK: Tensor, *, workspace_RV: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sample K tokens per row, each alone: the first id whose cumulative probability exceeds its uniform number.

    Returns (ids [R, K] int64, logprobs [R, K] float32), log-probs being `log_softmax(logits / temperature)` at the id.
    Temperature 0 takes the argmax and records its log-prob at temperature 1. NaN logits give NaN log-probs.
    float32 logits are overwritten; `workspace_RV` (float32) spares an allocation.
    """
    greedy_R = temperatures_R == 0
    # In place: faulting in one more array of this size costs more than the exponential.
    scaled_RV = logits_RV.float().div_(torch.where(greedy_R, 1.0, temperatures_R)[:, None])
    top_R, top_ids_R = scaled_RV.max(dim=-1)
    weights_RV = scaled_RV.sub_(top_R[:, None]).exp_()
    cumulative_RV = torch.cumsum(weights_RV, dim=-1, out=workspace_RV)
    totals_R1 = cumulative_RV[:, -1:]
    # `right` never stops at probability 0; a number just below 1 must not round up to the total and lead past the end.
    thresholds_RK = torch.minimum(uniforms_RK * totals_R1, torch.nextafter(totals_R1, torch.zeros_like(totals_R1)))
    sampled_RK = torch.searchsorted(cumulative_RV, thresholds_RK, right=True)
    # Only NaN still leads past the end; the clamp lets the caller see the NaN log-prob instead of an index error.
    sampled_RK.clamp_(max=logits_RV.shape[-1] - 1)
    ids_RK = torch.where(greedy_R[:, None], top_ids_R[:, None], sampled_RK)
    return ids_RK, weights_RV.gather(1, ids_RK).log() - totals_R1.log()
