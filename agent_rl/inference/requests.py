"""What engines inside this process have in common: the calls of many threads, served by one background thread.

Not here: what the thread does with a request (`local/engine.py`, `vllm/engine.py`).
"""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from agent_rl.closing import Closing
from agent_rl.errors import EngineError
from agent_rl.inference.base import Cancel
from agent_rl.modeling.openmp import release_openmp_threads
from agent_rl.records import Completion, FinishReason, SamplingParams

_ALREADY = threading.Event()
_ALREADY.set()


@dataclass(slots=True, kw_only=True, eq=False)
class CompletionRequest:
    """One call of an engine and the tokens sampled for it so far."""

    prompt: Sequence[int]
    sampling: SamplingParams
    max_new_tokens: int
    """As requested, capped by the room left in the window."""
    cancel: Cancel | None = None
    future: "Future[Completion]" = field(default_factory=Future)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def is_cancelled(self) -> bool:
        return self.cancel is not None and self.cancel.is_set()


RequestT = TypeVar("RequestT", bound=CompletionRequest)


class ThreadedEngine(Closing, Generic[RequestT]):
    """Callers wait for their requests while one thread runs `_work`. Use as a context manager, or call `close`."""

    what: ClassVar[str]
    """The engine's name in errors."""

    def __init__(self) -> None:
        """Make the thread; subclasses start it once they are complete."""
        self.weight_version = 0
        """Version of the weights being sampled from."""
        # Guards what follows.
        self._changed = threading.Condition()
        self._waiting: list[RequestT] = []
        self._in_flight: set[RequestT] = set()
        """Accepted and not yet answered, waiting ones included."""
        self._is_closing = False
        self._stopped: str | None = None
        """Why nothing is served any more."""
        self._thread = threading.Thread(target=self._serve, name=self.what.replace(" ", "-"), daemon=True)

    def close(self) -> None:
        """Stop the thread; requests still in flight get EngineError. Calling it again does nothing."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        """Serve requests until `close`."""
        raise NotImplementedError

    def _wait_for(self, request: RequestT) -> None:
        """Hand the request to the thread and wait until it has ended."""
        with self._changed:
            self._check_running()
            self._in_flight.add(request)
            self._waiting.append(request)
            self._changed.notify_all()
        release_openmp_threads()
        try:
            request.future.exception()
        except KeyboardInterrupt:
            request.cancel = _ALREADY
            raise

    def _check_running(self) -> None:
        if self._stopped is not None:
            raise EngineError(self._stopped)

    def _serve(self) -> None:
        """Run the thread until `close` or a failure."""
        reason, cause = f"the {self.what} was closed", None
        try:
            self._work()
        except Exception as error:  # the engine's boundary: the failure reaches every caller
            reason, cause = f"the {self.what} failed: {type(error).__name__}: {error}", error
        with self._changed:
            self._stopped = reason
            orphans, self._in_flight = self._in_flight, set()
            self._changed.notify_all()
        for request in orphans:
            failure = EngineError(reason)  # one each: every caller's thread adds its own traceback to it
            failure.__cause__ = cause
            request.future.set_exception(failure)

    def _deliver(self, request: RequestT, reason: FinishReason) -> None:
        completion = Completion(
            token_ids=tuple(request.token_ids),
            logprobs=tuple(request.logprobs),
            finish_reason=reason,
            weight_version=self.weight_version,
        )
        # Out of flight before its caller wakes, so that the last of them may change the weights at once.
        with self._changed:
            self._in_flight.discard(request)
        request.future.set_result(completion)
