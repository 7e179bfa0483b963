"""Ctrl-C that waits until a step is whole.

Half an optimizer step must not reach a checkpoint, so the signal is held back while weights and counters change, and
while a checkpoint is written.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def is_first_process_here() -> bool:
    """Whether this process reports for all that a launcher started on this machine: what one finds, all find."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of the block if Ctrl-C was pressed inside it, SystemExit at a second press.

    Does nothing outside the main thread, where Python delivers no signals, and where Ctrl-C is ignored (`nohup ... &`).
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        yield
        return
    pressed = False

    def remember(_signal: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            # Not KeyboardInterrupt, at which a checkpoint is saved: this step is half done.
            raise SystemExit(130)
        pressed = True
        if is_first_process_here():
            print("\nCtrl-C: finishing this step first; press again to leave it unfinished", flush=True)

    earlier = signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, earlier)
    if pressed:
        raise KeyboardInterrupt
