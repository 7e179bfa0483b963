"""A process above each server of the lower tiers: however the server ends, no process of a run outlives it.

What a dead server's runs left comes to the guard as its children, which kills it. The guard does no job, holds no
descriptor and keeps the user it was started by: under root no run can send it a signal.
"""

import contextlib
import os
import signal
from collections.abc import Collection
from typing import NoReturn

from agent_rl.sandbox.guest import linux

_EVENTS = {signal.SIGTERM, signal.SIGCHLD}


def go_on_below_guard() -> None:
    """Return in a child of the calling process, which ends with it, at SIGTERM and when its own parent dies."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _EVENTS)
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGTERM)
    server = os.fork()
    if server:
        _guard(server)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _EVENTS)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)


def _guard(server: int) -> NoReturn:
    try:
        os.closerange(0, 1 << 16)  # the host must see end-of-file when the server ends
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
        while server not in _reaped() and signal.sigwait(_EVENTS) == signal.SIGCHLD:
            pass
        kill_all_below(os.getpid())
    finally:
        os._exit(0)


def _reaped() -> set[int]:
    """The children that have ended since the last call."""
    ended: set[int] = set()
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            ended.add(pid)
    return ended


def kill_all_below(root: int, others: Collection[int] = ()) -> None:
    """Kill the tree below `root` until nothing is left; orphans come back to us, who are their reaper."""
    for _ in range(1000):
        found = linux.descendants(root, without=set(others))
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    os._exit(1)  # something cannot be killed: the host starts a fresh server
