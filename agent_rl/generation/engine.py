"""In-process generation: token ids in, token ids and log-probs out, many callers, one batch.

`generate` blocks and may be called from any number of threads; one background thread serves them all by continuous
batching over a key/value cache. It draws from a copy of the weights taken at the start and by `refresh_weights`.
Not here: text, chat formats, stop strings, top-k and top-p, caching between the turns of an episode.
"""

import math
import threading
from collections import deque
from collections.abc import Sequence
from types import TracebackType

import torch

from agent_rl.errors import EngineError
from agent_rl.generation.batch import ActiveBatch, Request
from agent_rl.generation.decoder import FusedDecoder
from agent_rl.generation.sampling import draw_uniforms
from agent_rl.records import Completion, SamplingParams
from model.model_minimind import MiniMindForCausalLM


class GenerationEngine:
    """Continuous batching over one model. Use as a context manager, or call `close`."""

    def __init__(self, model: MiniMindForCausalLM, *, max_batch_size: int, max_context: int) -> None:
        """Allocate the cache and start the thread.

        `max_batch_size` rows are drawn at the same time, more callers wait; `max_context` is the window in tokens,
        prompt and completion together. Device and number format are the model's.
        """
        if max_batch_size < 1 or not 2 <= max_context <= model.config.max_position_embeddings:
            raise ValueError(
                f"max_batch_size is {max_batch_size}, max_context {max_context}: expected at least 1, and 2 to "
                f"{model.config.max_position_embeddings} (the model's max_position_embeddings)"
            )
        self._model = model
        self._max_context = max_context
        self._vocab_size = model.config.vocab_size
        self._decoder = FusedDecoder(model, max_context)
        self._batch = ActiveBatch(self._decoder, max_rows=max_batch_size, max_context=max_context)
        self._weight_version = 0
        # Guards the four below; only the engine thread waits on it.
        self._changed = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._in_flight: set[Request] = set()
        self._is_closing = False
        self._stopped: str | None = None
        self._thread = threading.Thread(target=self._serve, name="generation-engine", daemon=True)
        self._thread.start()

    @property
    def weight_version(self) -> int:
        """Version of the weights being drawn from; 0 at the start."""
        return self._weight_version

    @property
    def num_in_flight(self) -> int:
        """Requests accepted and not yet answered, waiting ones included."""
        return len(self._in_flight)

    def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Draw one completion; blocks. Thread-safe.

        `sampling.max_new_tokens` is capped by the room left in the window. Raises ValueError for a prompt or
        parameters that cannot be served, EngineError when the engine fails or is closed.
        """
        request = self._make_request(tuple(prompt_ids), sampling)
        with self._changed:
            if self._stopped is not None:
                raise EngineError(self._stopped)
            self._in_flight.add(request)
            self._waiting.append(request)
            self._changed.notify()
        return request.future.result()

    def refresh_weights(self, version: int) -> None:
        """Copy the model's weights of this moment and call them `version`; EngineError while requests are in flight."""
        with self._changed:
            if self._stopped is not None:
                raise EngineError(self._stopped)
            if self._in_flight:
                raise EngineError(
                    f"refresh_weights({version}) with {len(self._in_flight)} requests in flight: wait for them first, "
                    "a completion is drawn by one version of the weights"
                )
            self._decoder.reload(self._model)
            self._weight_version = version

    def close(self) -> None:
        """Stop the thread; requests still in flight get EngineError. Calling it again does nothing."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def __enter__(self) -> "GenerationEngine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make_request(self, prompt_ids: tuple[int, ...], sampling: SamplingParams) -> Request:
        room = self._max_context - len(prompt_ids)
        if not prompt_ids or room < 1:
            raise ValueError(
                f"the prompt has {len(prompt_ids)} tokens; expected 1 to {self._max_context - 1}, because prompt and "
                f"completion share a window of {self._max_context}"
            )
        if not (min(prompt_ids) >= 0 and max(prompt_ids) < self._vocab_size):
            raise ValueError(
                f"the prompt holds ids from {min(prompt_ids)} to {max(prompt_ids)}; the vocabulary ends at "
                f"{self._vocab_size - 1}"
            )
        is_temperature = math.isfinite(sampling.temperature) and sampling.temperature >= 0
        if sampling.max_new_tokens < 1 or sampling.seed < 0 or not is_temperature:
            raise ValueError(f"expected max_new_tokens >= 1, seed >= 0 and a finite temperature >= 0, got {sampling}")
        max_new_tokens = min(sampling.max_new_tokens, room)
        return Request(
            prompt_ids=prompt_ids,
            sampling=sampling,
            max_new_tokens=max_new_tokens,
            uniforms=draw_uniforms(sampling.seed, max_new_tokens),
        )

    def _serve(self) -> None:
        """Run the engine thread until `close` or a failure."""
        reason, cause = "the generation engine was closed", None
        try:
            with torch.inference_mode():
                while self._admit():
                    self._deliver(self._batch.step())
        except Exception as error:  # the engine's boundary: whatever went wrong reaches every caller
            reason, cause = f"the generation engine failed: {type(error).__name__}: {error}", error
        with self._changed:
            self._stopped = reason
            orphans = list(self._in_flight)
            self._in_flight.clear()
        for request in orphans:
            # One exception each: every caller's thread adds its own traceback to it.
            failure = EngineError(reason)
            failure.__cause__ = cause
            request.future.set_exception(failure)

    def _admit(self) -> bool:
        """Wait until there is work and move what fits into the batch; False when closing."""
        with self._changed:
            while not (self._is_closing or self._waiting or self._batch.requests):
                self._changed.wait()
            if self._is_closing:
                return False
            new = self._batch.take_from(self._waiting)
        if new:
            self._batch.admit(new)
        return True

    def _deliver(self, ended: list[Request]) -> None:
        if not ended:
            return
        # Out of flight before the callers wake, so that the last of them may refresh the weights at once.
        with self._changed:
            version = self._weight_version
            self._in_flight.difference_update(ended)
        for request in ended:
            request.future.set_result(
                Completion(
                    token_ids=tuple(request.token_ids),
                    logprobs=tuple(request.logprobs),
                    finish_reason=request.finish_reason,
                    weight_version=version,
                )
            )
