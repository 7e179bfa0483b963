"""The server's side of its runs: deadlines, caps, and memory limits where no control group enforces them.

A deadline belongs to the server, not to the host. The end of a run is the end of its first process. A run's content
and output never enter this process, whose memory every later run inherits; only sizes and exits are looked at.
"""

import contextlib
import os
import select
import signal
import stat
import time
from collections.abc import Sequence
from typing import Any

from agent_rl.sandbox.guest import linux
from agent_rl.sandbox.guest.cgroups import ControlGroup
from agent_rl.sandbox.guest.run import Job, Stage, exit_report, first_process
from agent_rl.sandbox.guest.tiers import Tier

MOST_SESSIONS = 6
"""Of one run where no control group divides the processors: each may get a share of its own. The run itself has two."""
LOOK_S = 0.02
"""Time between two looks at the output and the memory of a run."""


class HostGone(Exception):
    """The host closed its end of the channel while a run was going on."""


class SupervisedRun:
    """One run, from the fork of its first process to the header about its end."""

    def __init__(
        self,
        tier: Tier,
        job: Job,
        limits: dict[str, Any],
        descriptors: Sequence[int],
        links: Sequence[int],
        base_memory: int,
        group: ControlGroup | None,
    ) -> None:
        self.limits = limits
        self._group = group
        self._has_share = group is not None and group.bounds_cpu
        self._full, self._kills = group.times_full() if group else 0, linux.num_oom_kills()
        self.started = time.monotonic()
        self.deadline = self.started + limits["wall_s"]
        stage = Stage(tier, job, limits, descriptors, base_memory)
        stage.links = list(links)
        self._is_direct = stage.is_direct
        self.pid = tier.fork()
        if self.pid == 0:
            try:
                first_process(stage)
            finally:
                os._exit(1)
        self.handle = os.pidfd_open(self.pid)
        self._outputs = [fd for fd in (stage.stdout, stage.stderr) if not stat.S_ISFIFO(os.fstat(fd).st_mode)]
        for fd in set(descriptors) - set(self._outputs):  # of a pipe, only the run itself may hold the end
            os.close(fd)
        self.cause = "ended"
        self.has_ended = self._is_oom = False
        self._exit: dict[str, Any] = {}
        self._wall_s = 0.0

    def kill(self, cause: str) -> None:
        """Kill the first process; in namespaces everything goes with it."""
        if not self.has_ended and self.cause == "ended":
            self.cause = cause
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def end(self) -> None:
        """Take note that the first process has ended."""
        self.has_ended, self._wall_s = True, time.monotonic() - self.started
        _, status, usage = os.wait4(self.pid, 0)
        if self._is_direct:  # else this is about our own process, and the job's is in its report
            self._exit = exit_report(status, usage)
        if self.cause == "ended" and linux.num_oom_kills() > self._kills:
            self._is_oom = self._group is None or self._group.times_full() == self._full
            self.cause = "ended" if self._is_oom else "memory"
        for fd in (self.handle, *self._outputs):
            os.close(fd)

    def look(self, *, at_memory: bool) -> None:
        """Kill it when it is late, prints too much, or (where nothing else limits it) holds too much memory."""
        if time.monotonic() >= self.deadline:
            self.kill("timeout")
        if sum(os.fstat(fd).st_size for fd in self._outputs) > self.limits["output_hard_kb"] * 1024:
            self.kill("output_limit")
        if at_memory:
            self._look_at_memory()

    def _look_at_memory(self) -> None:
        tree = [self.pid, *linux.descendants(self.pid)]
        too_many = len(tree) > self.limits["processes"] + 2
        if too_many or (not self._has_share and linux.num_sessions(tree) > MOST_SESSIONS):
            self.kill("processes")
        limit = self.limits["memory_mb"] * 1024
        # Resident pages that are shared count once for every process; the proportional size is exact, and slower.
        kinds = (("VmRSS", "status"), ("Pss", "smaps_rollup"))
        if all(sum(_resident_kb(pid, *kind) for pid in tree) > limit for kind in kinds):
            self.kill("memory")

    def header(self) -> dict[str, Any]:
        """How a run that has ended went, as far as the server knows.

        `oom`: the machine was out of memory meanwhile, which need not have touched it.
        """
        return {"cause": self.cause, "oom": self._is_oom, "wall_s": self._wall_s, **self._exit}


class NotRun:
    """In place of a run that was called off before its start."""

    def __init__(self, cause: str, descriptors: Sequence[int]) -> None:
        self.cause = cause
        for fd in descriptors:
            os.close(fd)

    def header(self) -> dict[str, Any]:
        return {"cause": self.cause, "oom": False, "wall_s": 0.0}


class Supervisor:
    """Drives runs: one loop over their ends and the host's channel."""

    def __init__(self, channel: int, *, watch: bool) -> None:
        self._channel, self._watch = channel, watch
        self._was_stopped = False

    def drive(self, runs: Sequence[SupervisedRun], *, until: SupervisedRun) -> None:
        """Look after `runs` until one of them has ended. A word from the host meanwhile ends it at once."""
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        live = {run.handle: run for run in runs if not run.has_ended}
        for handle in live:
            poller.register(handle, select.POLLIN)
        while not until.has_ended:
            wait = min([run.deadline for run in live.values()]) - time.monotonic()
            for fd, event in poller.poll(max(0.0, min(wait, LOOK_S)) * 1000):
                if fd == self._channel:
                    if event & select.POLLHUP:
                        raise HostGone
                    self.await_stop()
                    until.kill("stopped")
                else:
                    poller.unregister(fd)
                    live.pop(fd).end()
            for run in live.values():
                run.look(at_memory=self._watch)

    def await_stop(self) -> None:
        """Take the one byte with which the host ends a run it talks to, early or late."""
        if not self._was_stopped and not os.read(self._channel, 1):
            raise HostGone
        self._was_stopped = True


def _resident_kb(pid: int, key: str, file_name: str) -> int:
    try:
        with open(f"/proc/{pid}/{file_name}") as file:
            return next((int(line.split()[1]) for line in file if line.startswith(f"{key}:")), 0)
    except OSError:  # ended meanwhile
        return 0
