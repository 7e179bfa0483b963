"""What an action costs in CPU time, for tests that a hostile input costs little, whatever the machine.

A hostile input that holds up a program costs ten or a thousand times more than it should, so nothing here is exact. Not
for claims of speed, which are ratios that `benchmarks/` measures.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

USUAL_LOOP_S = 0.0105
"""What `_loop` takes on a usual machine (two cores of an AMD EPYC, Python 3.11)."""
TRIES = 3


def cpu_s(action: Callable[[], Any], enough: float) -> float:
    """CPU seconds of this thread, the least of three tries where one takes more than `enough`.

    Such a try counts in seconds of a usual machine: a slower one takes longer for a fixed loop too, right after it.
    Nothing is collected meanwhile of what other tests left, which can take most of a second.
    """
    tries: list[float] = []
    with _no_collection():
        while len(tries) < TRIES and min(tries, default=enough) >= enough:
            tries.append(_of_a_usual_machine(_thread_s(action), enough))
    return min(tries)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Asserts that what is in the block costs less, counted as by `cpu_s`, in the one try there is."""
    with _no_collection():
        started = time.thread_time()
        yield
        assert _of_a_usual_machine(time.thread_time() - started, seconds) < seconds


def _of_a_usual_machine(seconds: float, enough: float) -> float:
    return seconds if seconds < enough else seconds / _slowness()


def _slowness() -> float:
    """How many times slower than usual this machine is now, at least 1."""
    return max(1.0, _thread_s(_loop) / USUAL_LOOP_S)


@contextmanager
def _no_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _thread_s(action: Callable[[], Any]) -> float:
    started = time.thread_time()
    action()
    return time.thread_time() - started


def _loop() -> None:
    counts: dict[str, int] = {}
    for number in range(100_000):
        key = str(number % 1000)
        counts[key] = counts.get(key, 0) + len(key)
