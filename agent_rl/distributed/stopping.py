"""One end for all processes of a run that a signal stops: each notes it, and all leave at the same place.

Ctrl-C and SIGTERM reach the processes of a launcher one by one, wherever each of them is, and most launchers send them
again. If each left where the signal finds it, the others would wait for it, and could have done a step more. So a
signal is noted; what a process does for itself, its episodes, is cut short; and where processes meet, all learn of it
and raise. Not here: a run of one process, which a signal may stop anywhere outside of a step (`core/interrupts.py`).
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
SAME_S = 5.0
"""A terminal and the launcher both send the signal of one key press: what comes so soon after the first is that one."""


class TerminatedError(KeyboardInterrupt):
    """SIGTERM, which Slurm and Kubernetes send, where it ends a run as Ctrl-C does."""


class AgreedInterrupt(KeyboardInterrupt):
    """Every process of the run raises it at the same place, so they can save together."""


class AgreedTermination(TerminatedError, AgreedInterrupt):
    """The same for SIGTERM."""


class _CutShort(KeyboardInterrupt):
    """Raised in what one process does for itself."""


def is_first_process_here() -> bool:
    """Whether this process reports for all that a launcher started on this machine: what one finds, all find."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def is_noting() -> bool:
    """Whether signals are noted now, so that no one else has to hold them back."""
    return isinstance(getattr(signal.getsignal(signal.SIGINT), "__self__", None), StopRequest)


class StopRequest:
    """What one of several processes knows of signals to stop."""

    def __init__(self) -> None:
        self._number = 0
        self._at = 0.0
        self._may_cut_short = False

    @property
    def is_noted(self) -> bool:
        """Whether this process got a signal."""
        return self._number != 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note Ctrl-C and SIGTERM inside the block; SystemExit at one that comes later than `SAME_S` after the first.

        Leaves a signal alone that is ignored. Does nothing outside the main thread, where Python delivers none.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        noted = [number for number in EXIT_CODES if signal.getsignal(number) != signal.SIG_IGN]
        earlier = {number: signal.signal(number, self._note) for number in noted}
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    def cut_short(self, work: Callable[[], T]) -> T | None:
        """What `work`, which waits for no other process, returns; None where a signal came before or meanwhile."""
        if self.is_noted:
            return None
        try:
            self._may_cut_short = True
            return work()
        except _CutShort:
            return None
        finally:
            self._may_cut_short = False

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.is_noted:
            if time.monotonic() - self._at > SAME_S:
                raise SystemExit(EXIT_CODES[signal.Signals(number)])
            return
        self._number, self._at = number, time.monotonic()
        if is_first_process_here():
            print(f"\n{NAMES[signal.Signals(number)]}: stopping all processes after a whole step", flush=True)
        if self._may_cut_short:
            raise _CutShort

    def leave(self) -> None:
        """Raise AgreedInterrupt, or AgreedTermination after SIGTERM; every process calls it at the same place."""
        raise AgreedTermination if self._number == signal.SIGTERM else AgreedInterrupt
