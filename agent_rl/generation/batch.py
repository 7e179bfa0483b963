"""The rows being generated at this moment: admitted, advanced by one token, retired, always packed at the front.

Row i of every tensor belongs to `requests[i]`. When a row ends, the last active row takes its place, so one decode
step is dense over the first `len(requests)` rows. One thread only. Not here: threads, queues, weights' versions.
"""

import math
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from agent_rl.errors import EngineError
from agent_rl.generation.decoder import FusedDecoder
from agent_rl.generation.kv_cache import KeyValueCache, attend_cached
from agent_rl.generation.sampling import draw_tokens
from agent_rl.records import Completion, FinishReason, SamplingParams

MAX_PREFILL_TOKENS = 16_384
"""Most tokens, padding included, prefilled between two decode steps; bounds memory and the wait of active rows."""


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One call of `generate` and what has been drawn for it so far."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int
    """As asked for, capped by the room left in the window."""
    uniforms: np.ndarray
    """One number per token that may be drawn, [max_new_tokens] float32."""
    future: "Future[Completion]" = field(default_factory=Future)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.token_ids)

    @property
    def finish_reason(self) -> FinishReason | None:
        """None while tokens are still to be drawn."""
        if self.token_ids and self.token_ids[-1] in self.sampling.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.token_ids) == self.max_new_tokens else None


class ActiveBatch:
    """At most `max_rows` requests in generation; `admit`, then `step` until `requests` is empty."""

    def __init__(self, decoder: FusedDecoder, *, max_rows: int, max_context: int) -> None:
        self.decoder, self.max_rows = decoder, max_rows
        self.requests: list[Request] = []
        dtype, device = decoder.embedding.dtype, decoder.embedding.device
        self.cache = KeyValueCache(
            num_layers=len(decoder.layers),
            max_rows=max_rows,
            num_kv_heads=decoder.num_kv_heads,
            max_context=max_context,
            head_dim=decoder.head_dim,
            dtype=dtype,
            device=device,
        )
        hidden_size = decoder.embedding.shape[1]
        self.row_numbers = torch.arange(max_rows, device=device)
        self.columns = torch.arange(max_context, device=device)
        self.num_cached = torch.zeros(max_rows, dtype=torch.long, device=device)
        self.temperatures = torch.ones(max_rows, device=device)
        # Indexed by absolute position, so `num_cached` is also the index of the next number.
        self.uniforms = torch.zeros(max_rows, max_context, device=device)
        self.prompt_hidden = torch.zeros(max_rows, hidden_size, dtype=dtype, device=device)
        self.last_hidden = torch.zeros_like(self.prompt_hidden)

    def take_from(self, waiting: deque[Request]) -> list[Request]:
        """Pop the requests from the front that fit into free rows and into one prefill."""
        if not waiting or len(self.requests) == self.max_rows:
            return []
        prompts = {request.prompt_ids for request in self.requests}
        taken: list[Request] = []
        num_new, longest = 0, 0
        while waiting and len(self.requests) + len(taken) < self.max_rows:
            prompt = waiting[0].prompt_ids
            if prompt not in prompts:
                num_new, longest = num_new + 1, max(longest, len(prompt))
                if num_new > 1 and num_new * longest > MAX_PREFILL_TOKENS:
                    break
                prompts.add(prompt)
            taken.append(waiting.popleft())
        return taken

    def admit(self, new: Sequence[Request]) -> None:
        """Give requests rows and compute their prompts; a prompt known already, here or in a live row, is copied."""
        first_row = len(self.requests)
        source_of = {request.prompt_ids: row for row, request in enumerate(self.requests)}
        leaders: list[Request] = []
        followers: list[Request] = []
        for request in new:
            if request.prompt_ids in source_of:
                followers.append(request)
            else:
                source_of[request.prompt_ids] = first_row + len(leaders)
                leaders.append(request)
        self.requests += leaders + followers
        self._set_row_state(first_row)
        if leaders:
            self._prefill([request.prompt_ids for request in leaders], first_row)
        if followers:
            sources = [source_of[request.prompt_ids] for request in followers]
            targets = list(range(first_row + len(leaders), len(self.requests)))
            self.cache.copy_rows(sources, targets, max(len(request.prompt_ids) for request in followers))
            self.prompt_hidden[targets] = self.prompt_hidden[sources]
        self.last_hidden[first_row:] = self.prompt_hidden[first_row:]

    def step(self) -> list[Request]:
        """Draw one token for every row and decode the rows that go on; returns the requests that ended."""
        num_rows = len(self.requests)
        uniforms = self.uniforms[:num_rows].gather(1, self.num_cached[:num_rows, None])[:, 0]
        logits = self.decoder.logits(self.last_hidden[:num_rows])
        ids_B, logprobs_B = draw_tokens(logits, self.temperatures[:num_rows], uniforms)
        # The one transfer to the host of a step; float64 holds both exactly.
        ids, logprobs = torch.stack((ids_B.double(), logprobs_B.double())).tolist()
        finished = []
        for row, (request, token_id, logprob) in enumerate(zip(self.requests, ids, logprobs, strict=True)):
            if not math.isfinite(logprob):
                raise EngineError("the model gave a log-prob that is not finite: its weights have diverged")
            request.token_ids.append(int(token_id))
            request.logprobs.append(logprob)
            if request.finish_reason is not None:
                finished.append(row)
        ended = [self.requests[row] for row in finished]
        if finished:
            self._retire(finished, ids_B)
        if self.requests:
            self._decode(ids_B[: len(self.requests)])
        return ended

    def _set_row_state(self, first_row: int) -> None:
        new = self.requests[first_row:]
        uniforms = np.zeros((len(new), self.uniforms.shape[1]), dtype=np.float32)
        for row, request in enumerate(new):
            uniforms[row, len(request.prompt_ids) :][: request.max_new_tokens] = request.uniforms
        rows = slice(first_row, len(self.requests))
        self.uniforms[rows] = torch.from_numpy(uniforms)
        self.num_cached[rows] = torch.tensor([len(request.prompt_ids) for request in new])
        self.temperatures[rows] = torch.tensor([request.sampling.temperature for request in new])

    def _prefill(self, prompts: list[tuple[int, ...]], first_row: int) -> None:
        """Compute right-padded prompts; causal attention keeps the padding out, decode overwrites it."""
        num_rows, width = len(prompts), max(map(len, prompts))
        padded = np.zeros((num_rows, width), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            padded[row, : len(prompt)] = prompt
        token_ids = torch.from_numpy(padded).to(self.columns.device)

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            q, k, v = (x.unflatten(0, (num_rows, width)).transpose(1, 2) for x in (queries, keys, values))
            self.cache.write_prompts(layer, first_row, k, v)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return out.transpose(1, 2).reshape(num_rows * width, -1)

        positions = self.columns[:width].repeat(num_rows)
        hidden = self.decoder.hidden_states(token_ids.flatten(), positions, attend).unflatten(0, (num_rows, width))
        rows = slice(first_row, first_row + num_rows)
        self.prompt_hidden[rows] = hidden[self.row_numbers[:num_rows], self.num_cached[rows] - 1]

    def _decode(self, ids_B: Tensor) -> None:
        """Run the token just drawn of every row through the model; its key and value join the cache."""
        num_rows = len(self.requests)
        longest = max(request.num_tokens for request in self.requests)
        positions, rows = self.num_cached[:num_rows], self.row_numbers[:num_rows]
        is_beyond = self.columns[:longest] > positions[:, None]
        mask = torch.zeros(is_beyond.shape, dtype=self.last_hidden.dtype, device=positions.device)
        mask = mask.masked_fill_(is_beyond, -math.inf)[:, None, None]

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            self.cache.append(layer, rows, positions, keys, values)
            # The query heads of one key/value head stand in as its query positions: no key is repeated.
            folded = queries.view(num_rows, keys.shape[1], -1, keys.shape[2])
            return attend_cached(folded, *self.cache.view(layer, num_rows, longest), mask).reshape(num_rows, -1)

        self.last_hidden[:num_rows] = self.decoder.hidden_states(ids_B, positions, attend)
        self.num_cached[:num_rows] += 1

    def _retire(self, finished: list[int], ids_B: Tensor) -> None:
        """Drop rows; survivors from the end move into the holes, in `ids_B` too."""
        num_left = len(self.requests) - len(finished)
        holes = [row for row in finished if row < num_left]
        movers = sorted(set(range(num_left, len(self.requests))) - set(finished))
        if movers:
            for state in (self.num_cached, self.temperatures, self.uniforms, self.prompt_hidden, ids_B):
                state[holes] = state[movers]
            self.cache.copy_rows(movers, holes, max(self.requests[row].num_tokens for row in movers))
            for hole, mover in zip(holes, movers, strict=True):
                self.requests[hole] = self.requests[mover]
        del self.requests[num_left:]
