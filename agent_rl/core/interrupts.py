"""Ctrl-C and SIGTERM that wait until a step is whole.

Half an optimizer step must not reach a checkpoint, so the signals are held back while weights and counters change, and
while a checkpoint is written. SIGTERM, which Slurm and Kubernetes send, ends a run as Ctrl-C does, with exit code 143.
Not here: runs of several processes, which note signals and stop together (`distributed/stopping.py`).
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from agent_rl.distributed.stopping import EXIT_CODES, NAMES, TerminatedError, is_first_process_here, is_noting


def _raise_terminated(_signal: int, _frame: FrameType | None) -> None:
    raise TerminatedError


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Around a run: SIGTERM raises TerminatedError in it, which leaves the block as SystemExit with code 143.

    Does nothing outside the main thread, and where the program has a handler of its own.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    except TerminatedError:
        raise SystemExit(EXIT_CODES[signal.SIGTERM]) from None
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Deferred:
    """What came while signals are held back."""

    def __init__(self) -> None:
        self.got: list[int] = []

    def remember(self, number: int, _frame: FrameType | None) -> None:
        self.got.append(number)
        if len(self.got) > 1:
            # Not KeyboardInterrupt, at which a checkpoint is saved: this step is half done.
            raise SystemExit(EXIT_CODES[signal.Signals(number)])
        if is_first_process_here():
            name = NAMES[signal.Signals(number)]
            print(f"\n{name}: finishing this step first; a second one leaves it unfinished", flush=True)


def _is_deferring() -> bool:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    return any(isinstance(getattr(handler, "__self__", None), _Deferred) for handler in handlers)


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of the block if Ctrl-C was pressed inside it, SystemExit at a second press.

    So for SIGTERM within `sigterm_as_interrupt`, with TerminatedError. Does nothing outside the main thread, where
    Python delivers no signals, where Ctrl-C is ignored (`nohup ... &`), where signals are noted, and inside of another
    such block, at whose end the signal is raised.
    """
    held = [signal.SIGINT] if signal.getsignal(signal.SIGINT) != signal.SIG_IGN else []
    held += [signal.SIGTERM] if signal.getsignal(signal.SIGTERM) is _raise_terminated else []
    if threading.current_thread() is not threading.main_thread() or not held or is_noting() or _is_deferring():
        yield
        return
    deferred = _Deferred()
    earlier = {number: signal.signal(number, deferred.remember) for number in held}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
    if deferred.got:
        raise TerminatedError if deferred.got[0] == signal.SIGTERM else KeyboardInterrupt
