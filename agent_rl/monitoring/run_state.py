"""Whether a run goes on, ended, or was killed without a word: `kill -9` leaves no event.

A run under way holds the lock on its folder. Where the lock is free, or no row, event or start was written for longer
than steps and evaluations take, the run is stalled. Not here: the lock itself (`core/run/lock.py`), metrics.
"""

import fcntl
import math
import re
import socket
from contextlib import suppress
from pathlib import Path

from agent_rl.core.run.lock import LOCK_FILE

STATES = ("running", "ended", "stopped", "interrupted", "failed", "stalled")
STEP_TIMES = 15
"""So many usual steps without a row are too many."""
EVALUATION_TIMES = 3
"""The same for the longest evaluation."""
LEAST_SILENCE_S = 120.0
FIRST_STEP_S = 1800.0
"""Allowed before the first step: a large model loads, and an evaluation may come before it."""
_ENDS = {"finished": "ended", "stopped": "stopped", "failed": "failed"}
_HOLDER = re.compile(r"process \d+ on (\S+)")


def allowed_silence_s(usual_step_s: float, longest_evaluation_s: float) -> float:
    """How long a run may write nothing; the time of a usual step is NaN before the first."""
    if math.isnan(usual_step_s):
        return FIRST_STEP_S
    return max(LEAST_SILENCE_S, STEP_TIMES * usual_step_s, EVALUATION_TIMES * longest_evaluation_s)


def state_of(
    last_event: str | None, end_reason: str | None, *, is_alive: bool | None, silence_s: float, allowed_s: float
) -> str | None:
    """One of `STATES`; None for the folder of a version that wrote no events.

    `last_event` and `end_reason` are of events.jsonl, `is_alive` is of the lock and None where that cannot tell.
    """
    if last_event is None:
        return None
    if last_event == "end":
        return _ENDS.get(str(end_reason), "failed")
    if last_event == "interrupt":
        return "interrupted"
    return "stalled" if is_alive is False or silence_s > allowed_s else "running"


class LockWatch:
    """`watch.is_alive()`: whether a process holds the lock on a run's folder; None where that cannot be known.

    To ask is to take a shared lock for an instant once it is free, which a run that starts in that instant would be
    refused for. So it is asked once, and again only when a run has taken the lock since.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK_FILE
        self._free_since: int | None = None

    def is_alive(self) -> bool | None:
        try:
            with self._path.open("r", encoding="utf-8", errors="replace") as file:
                written = self._path.stat().st_mtime_ns
                if written == self._free_since:
                    return self._answer_if_free(file.read(200))
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
                self._free_since = written
                return self._answer_if_free(file.read(200))
        except OSError:  # no such file, a file of others, or a file system without locks
            return None

    def taken_at(self) -> float:
        """When a run last took the lock, in seconds since the epoch; 0 where none did."""
        with suppress(OSError):
            return self._path.stat().st_mtime
        return 0.0

    @staticmethod
    def _answer_if_free(holder: str) -> bool | None:
        """A lock of another machine's process may not reach this one."""
        found = _HOLDER.match(holder)
        return False if found and found[1] == socket.gethostname() else None
