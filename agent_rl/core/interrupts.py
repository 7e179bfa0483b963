"""Ctrl-C that waits until a step is whole.

Half an optimizer step must not reach a checkpoint, so the signal is held back while weights and counters change.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of the block if Ctrl-C was pressed inside it.

    Does nothing outside the main thread, where Python delivers no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed = False

    def remember(_signal: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        print("\nCtrl-C: finishing the current update first", flush=True)

    earlier = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, earlier)
    if pressed:
        raise KeyboardInterrupt
