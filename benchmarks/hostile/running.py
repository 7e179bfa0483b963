"""Run mutants in this process, with a limit on processor time, since some never end.

The sources are references of our own with one node changed, never what a model wrote.
"""

import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

LIMIT_S = 0.25


class TooLongError(BaseException):
    """A mutant used up its processor time; no `except` of a mutant catches it."""


def _stop(signum: int, frame: object) -> None:
    raise TooLongError


@contextmanager
def time_limit(seconds: float = LIMIT_S) -> Iterator[None]:
    """Raises TooLongError inside the block once the process has computed for that long; the main thread only."""
    earlier = signal.signal(signal.SIGVTALRM, _stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, earlier)


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives; for an exception, or a call that does not end, a value that equals no answer."""
    try:
        with time_limit():
            return call()
    except TooLongError:
        return ("never ends",)
    except Exception as error:  # a mutant may raise anything
        return ("raises", type(error).__name__)


def namespace_of(module: Any, **names: Any) -> dict[str, Any] | None:
    """The names that a module defines; None when it raises or does not end."""
    scope: dict[str, Any] = {"__name__": "mutant", **names}
    done = outcome(lambda: exec(module, scope))
    return scope if done is None else None


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise RuntimeError("a reference waits for something")
