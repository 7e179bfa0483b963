"""In-process generation: token ids in, token ids and log-probs out, many callers, one batch.

`generate` blocks and may be called from any number of threads; one background thread serves them all by continuous
batching over a key/value cache that stays between the turns of an episode. It samples from the model's own weights: the
caller changes them only while no request is in flight, and then calls `refresh_weights`.
Not here: text, chat formats, stop strings, top-k and top-p, more than one process.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from agent_rl.errors import EngineError
from agent_rl.inference.base import Cancel, check_request
from agent_rl.inference.local.batch import ActiveBatch, Request, sample_uniforms
from agent_rl.inference.local.decoder import make_decoder
from agent_rl.inference.requests import ThreadedEngine
from agent_rl.modeling.openmp import release_openmp_threads
from agent_rl.records import Completion, FinishReason, SamplingParams


class GenerationEngine(ThreadedEngine[Request]):
    """Continuous batching over one model. Use as a context manager, or call `close`."""

    what = "generation engine"

    def __init__(
        self,
        model: nn.Module,
        *,
        max_batch_size: int,
        max_context: int,
        max_cached_tokens: int | None = None,
        share_contexts: bool = True,
    ) -> None:
        """Start the thread. `model` is a MiniMind, a Hugging Face causal LM or a PeftModel around one, in eval mode.

        `max_batch_size` rows are generated at the same time, more callers wait; `max_context` is the window in tokens,
        prompt and completion together. The key/value cache holds `max_cached_tokens` (as many slots of `max_context`
        as fit; default `max_batch_size` slots) and bounds the rows as well. Device and number format are the model's.
        With `share_contexts`, requests whose contexts are equal are computed once until their samples differ.
        Raises ValueError for impossible sizes, ConfigError for a model that the engine cannot run.
        """
        super().__init__()
        num_slots = max_batch_size if max_cached_tokens is None else max_cached_tokens // max_context
        if max_batch_size < 1 or max_context < 2 or num_slots < 1:
            raise ValueError(
                f"max_batch_size is {max_batch_size}, max_context {max_context} and max_cached_tokens "
                f"{max_cached_tokens}: expected at least 1, at least 2, and room for one sequence of max_context"
            )
        self._max_context = max_context
        self._decoder = make_decoder(model, max_context)
        self._batch = ActiveBatch(
            self._decoder,
            max_rows=max_batch_size,
            num_slots=num_slots,
            width=max_context,
            share_contexts=share_contexts,
        )
        self._pending: list[Request] = []
        self._thread.start()

    def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, cancel: Cancel | None = None) -> Completion:
        """Generate one completion; blocks. Thread-safe.

        `sampling.max_new_tokens` is capped by the room left in the window. When `cancel.is_set()`, the completion ends
        at the next token with the tokens sampled so far (maybe none). Raises ValueError for a bad prompt or parameters,
        EngineError when the engine fails or is closed.
        """
        max_new_tokens = check_request(
            prompt_ids, sampling, max_context=self._max_context, vocab_size=self._decoder.vocab_size
        )
        request = Request(
            prompt=np.array(prompt_ids, dtype=np.int32),
            sampling=sampling,
            max_new_tokens=max_new_tokens,
            uniforms=sample_uniforms(sampling.seed, max_new_tokens),
            cancel=cancel,
        )
        self._wait_for(request)
        return request.future.result()

    def counters(self) -> Mapping[str, float]:
        """So far: tokens that were sampled, and those that were run through the model for it, prompts left out."""
        return {"sampled_tokens": self._batch.num_sampled, "decoded_tokens": self._batch.num_decoded}

    def load(self) -> Mapping[str, int]:
        """Now: requests in flight, those of them that wait for a row, slots of the cache that hold something."""
        with self._changed:
            num_in_flight, num_waiting = len(self._in_flight), len(self._waiting) + len(self._pending)
        return {
            "in_flight": num_in_flight,
            "waiting": num_waiting,
            "cache_slots": int(np.count_nonzero(self._batch.slots.lengths)),
        }

    def refresh_weights(self, version: int) -> None:
        """Use changed weights: drop what is cached of the old ones and call the new ones `version`.

        EngineError while requests are in flight, because a completion is sampled with one version of the weights.
        """
        with self._changed:
            self._check_running()
            if self._in_flight:
                raise EngineError(
                    f"refresh_weights({version}) with {len(self._in_flight)} requests in flight: wait for them first, "
                    "a completion is sampled with one version of the weights"
                )
            self._decoder.reload()
            self._batch.slots.clear()
            self.weight_version = version

    @torch.inference_mode()
    def _work(self) -> None:
        while self._take_waiting():
            self._end(self._drop_cancelled())
            self._batch.start(self._pending)
            if self._batch.rows:
                self._end(self._batch.step())

    def _take_waiting(self) -> bool:
        """Wait until there is work and take the new requests; False when closing."""
        with self._changed:
            if not (self._is_closing or self._waiting or self._pending or self._batch.rows):
                release_openmp_threads()
            while not (self._is_closing or self._waiting or self._pending or self._batch.rows):
                self._changed.wait()
            self._pending += self._waiting
            self._waiting.clear()
            return not self._is_closing

    def _drop_cancelled(self) -> list[Request]:
        """Requests that were cancelled before they got a row."""
        dropped = [request for request in self._pending if request.finish_reason is not None]
        if dropped:
            self._pending = [request for request in self._pending if request not in dropped]
        return dropped

    def _end(self, requests: list[Request]) -> None:
        for request in requests:
            self._deliver(request, request.finish_reason or FinishReason.CANCELLED)  # no longer set
