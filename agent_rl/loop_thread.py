"""An event loop in a thread of its own, for coroutines that blocking code waits for from any number of threads.

Clients that are shared between calls belong to the loop they were first used in, so whoever holds some keeps one loop.
Does not: limit how long a coroutine takes.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from agent_rl.closing import Closing

ResultT = TypeVar("ResultT")


class LoopThread(Closing):
    """`loop.result(coroutine)` from any thread but its own."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, coroutine: "Coroutine[Any, Any, ResultT]") -> "Future[ResultT]":
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def result(self, coroutine: "Coroutine[Any, Any, ResultT]") -> ResultT:
        """What a coroutine gives, or raises what it raises. Blocks the calling thread alone."""
        waiting = self.start(coroutine)
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()  # where the thread was interrupted; else it has ended already
            raise

    def call(self, function: Callable[[], object]) -> None:
        """Have a function that does not block called on the loop, soon."""
        self._loop.call_soon_threadsafe(function)

    def close(self) -> None:
        """Cancel what still runs, and end the thread."""
        if self._loop.is_closed():
            return
        self.start(cancel_others()).result()
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        while not self._is_ending:
            # asyncio raises these out of the loop as well as to who waits for the coroutine, and others still run.
            with suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()

    def _stop(self) -> None:
        self._is_ending = True
        self._loop.stop()


async def cancel_others() -> None:
    """Cancel all tasks of the running loop but this one, and wait for their ends."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


_lock = threading.Lock()
_shared: dict[tuple[int, str], LoopThread] = {}
"""By process, as a fork has no thread that runs its parent's, and by name."""


def shared_loop(name: str) -> LoopThread:
    """The loop of this name for the rest of the process, which nobody closes."""
    key = (os.getpid(), name)
    with _lock:
        if key not in _shared:
            _shared[key] = LoopThread(name)
        return _shared[key]
