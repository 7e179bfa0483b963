"""The server's side of its runs: pipes, deadlines, caps, and the watch over memory where no control group does it.

A deadline belongs to the server, not to the host. The end of a run is the end of its first process, whatever still
holds its pipes open. Decides nothing about what an exit means; the host reads that from the header.
"""

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Sequence
from typing import Any

from agent_rl.sandbox.guest import linux
from agent_rl.sandbox.guest.cgroups import MemoryGroup
from agent_rl.sandbox.guest.run import Job, Stage, exit_report, first_process
from agent_rl.sandbox.guest.tiers import Tier

WATCH_S = 0.02
"""Time between two looks at the memory of a run."""
_CHUNK = 1 << 16


class HostGone(Exception):
    """The host closed its end of the channel while a run was going on."""


class HeadTail:
    """The first and the last `cap`/2 bytes of a stream."""

    def __init__(self, cap: int) -> None:
        self._half = max(1, cap // 2)
        self._head, self._tail = bytearray(), bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._half + _CHUNK:
            del self._tail[: -self._half]

    @property
    def is_cut(self) -> bool:
        return self.total > 2 * self._half

    def text(self) -> str:
        if not self.is_cut:
            return bytes(self._head + self._tail).decode("utf-8", "replace")
        head, tail = (part.decode("utf-8", "replace") for part in (self._head, self._tail[-self._half :]))
        return f"{head}\n[... {self.total - 2 * self._half} bytes left out ...]\n{tail}"


class Run:
    """One run, from the fork of its first process to the header about its end."""

    def __init__(
        self,
        tier: Tier,
        job: Job,
        spec: dict[str, Any],
        links: Sequence[int],
        base_memory: int,
        group: MemoryGroup | None,
        interactive: bool,
    ) -> None:
        limits = self.limits = spec["limits"]
        self.tier, self._group = tier, group
        self._exit: dict[str, Any] = {}
        self._kills = group.num_kills() if group else 0
        self.started = time.monotonic()
        self.deadline = self.started + limits["wall_s"]
        self._stdin, self._to_feed = -1, bytearray()
        self.interactive, self.lines = interactive, bytearray()
        readers, writers = zip(*(os.pipe() for _ in range(4)), strict=True)
        stage = Stage(tier, job, base_memory)
        stage.stdin, self._stdin = os.pipe() if interactive else (_temporary_file(spec.get("stdin", "")), -1)
        stage.stdout, stage.stderr, stage.result, stage.status = writers
        stage.links = list(links)
        self._is_direct = stage.is_direct
        self.pid = tier.fork()
        if self.pid == 0:
            try:
                first_process(stage, spec)
            finally:
                os._exit(1)
        for fd in (stage.stdin, *writers):
            os.close(fd)
        self.handle = os.pidfd_open(self.pid)
        self._out, self._err, self._result, self._status = readers
        cap = limits["output_kb"] * 1024
        self.stdout, self.stderr = HeadTail(cap), HeadTail(cap)
        self.body, self.report = bytearray(), bytearray()
        self.open_fds = {*readers, self.handle}
        if interactive:
            os.set_blocking(self._stdin, False)
            os.set_blocking(self._out, False)
        self.killed: str | None = None
        self.ended = False
        self.wall_s = 0.0

    # ------------------------------------------------------------ while it runs

    def on_ready(self, fd: int) -> None:
        """Take what a descriptor has, and enforce the caps."""
        if fd == self.handle:
            self._end()
            return
        data = os.read(fd, _CHUNK)
        if not data:
            self._close(fd)
        elif fd == self._out and self.interactive:
            self.lines += data
        elif fd == self._out:
            self.stdout.add(data)
        elif fd == self._err:
            self.stderr.add(data)
        elif fd == self._result:
            self.body += data
        else:
            self.report += data
        printed = 0 if self.interactive else self.stdout.total + self.stderr.total
        too_long = len(self.lines) > self.limits["output_hard_kb"] * 1024 and b"\n" not in self.lines
        if (
            printed > self.limits["output_hard_kb"] * 1024
            or len(self.body) > self.limits["result_kb"] * 1024
            or too_long
        ):
            self.kill("output_limit")

    def wants(self, fd: int) -> bool:
        """Whether to read from `fd` now: a session's output waits in the pipe while lines are still to be fetched."""
        return not (self.interactive and fd == self._out and b"\n" in self.lines)

    def kill(self, why: str) -> None:
        """Kill the first process; in namespaces everything goes with it."""
        if not self.ended and self.killed is None:
            self.killed = why
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)

    def _end(self) -> None:
        self.ended, self.wall_s = True, time.monotonic() - self.started
        for fd in (self._out, self._err, self._result, self._status):
            if fd in self.open_fds:
                os.set_blocking(fd, False)
                with contextlib.suppress(BlockingIOError):
                    for _ in range(256):  # a process that outlived the first one may go on writing
                        if fd not in self.open_fds:
                            break
                        self.on_ready(fd)
        for fd in list(self.open_fds):
            self._close(fd)
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1
        _, status, usage = os.wait4(self.pid, 0)
        if self._is_direct:  # else this is about our own process, and the report about the job's
            self._exit = exit_report(status, usage)

    def _close(self, fd: int) -> None:
        self.open_fds.discard(fd)
        os.close(fd)

    # ------------------------------------------------------------ its end

    def finish(self) -> tuple[dict[str, Any], bytes]:
        """(header, body) of a run that has ended."""
        report: dict[str, Any] = {}
        with contextlib.suppress(ValueError):  # torn when the deadline came while it was written
            report = self._exit | (json.loads(self.report) if self.report else {})
        cause = self.killed
        if cause is None and self._group and self._group.num_kills() > self._kills:
            cause = "memory"
        if cause is None and "setup" in report:
            cause = "sandbox"
        if cause is None and not report:  # inside a namespace nobody but us can kill the first process
            cause = "sandbox" if self.tier.name == "namespaces" else "vanished"
        header = {
            "cause": cause or "ended",
            "detail": report.get("setup") or report.get("refused"),
            "exit_code": report.get("exit_code"),
            "stdout": self.stdout.text(),
            "stderr": self.stderr.text(),
            "truncated": self.stdout.is_cut or self.stderr.is_cut,
            "wall_s": self.wall_s,
            "cpu_s": report.get("cpu_s", 0.0),
            "max_rss_mb": report.get("max_rss_mb", 0.0),
            "files": report.get("files", {}),
        }
        return header, bytes(self.body)

    # ------------------------------------------------------------ sessions

    def feed(self, data: bytes) -> None:
        """Write to the program's standard input, as far as it reads it."""
        self._to_feed += data
        while self._to_feed and self._stdin >= 0 and not self.ended:
            try:
                written = os.write(self._stdin, self._to_feed)
            except BlockingIOError:
                if len(self._to_feed) > self.limits["output_hard_kb"] * 1024:
                    self.kill("output_limit")
                return
            except BrokenPipeError:
                return
            del self._to_feed[:written]

    def next_line(self) -> str | None:
        line, found, rest = self.lines.partition(b"\n")
        if not found:
            return None
        self.lines = rest
        return line.decode("utf-8", "replace")

    def why_ended(self) -> str | None:
        """None while it lives and may still answer."""
        if self.killed or self.ended:
            return self.killed or "ended"
        return None if self._out in self.open_fds else "closed its output"


class Supervisor:
    """Drives runs: one loop over their descriptors and the host's channel."""

    def __init__(self, channel: int, *, watch: bool) -> None:
        self._channel, self._watch = channel, watch

    def drive(self, runs: Sequence[Run], *, until: Run) -> None:
        """Serve `runs` until one of them has ended."""
        while not until.ended:
            self._turn(runs, None)

    def wait_for_line(self, run: Run, deadline: float) -> str | None:
        """The session's next line, or None at the deadline or when none can come any more."""
        while (line := run.next_line()) is None:
            if run.why_ended() or time.monotonic() >= deadline:
                return None
            run.feed(b"")
            self._turn([run], deadline)
        return line

    def _turn(self, runs: Sequence[Run], deadline: float | None) -> None:
        poller = select.poll()
        poller.register(self._channel, select.POLLHUP)
        owners = {fd: run for run in runs for fd in run.open_fds if run.wants(fd)}
        for fd in owners:
            poller.register(fd, select.POLLIN)
        live = [run for run in runs if not run.ended and run.killed is None]
        times = [run.deadline for run in live] + ([deadline] if deadline else [])
        wait = min(times, default=time.monotonic() + 1.0) - time.monotonic()
        for fd, _ in poller.poll(max(0.0, min(wait, WATCH_S if self._watch and live else wait)) * 1000):
            if fd == self._channel:
                raise HostGone
            if fd in owners[fd].open_fds:
                owners[fd].on_ready(fd)
        now = time.monotonic()
        for run in live:
            if now >= run.deadline:
                run.kill("timeout")
            elif self._watch and not run.ended:
                _watch(run)


def _watch(run: Run) -> None:
    """Kill a run whose processes together hold too much memory, or are too many."""
    tree = [run.pid, *linux.descendants(run.pid)]
    if len(tree) > run.limits["processes"] + 2:
        run.kill("memory")
    limit = run.limits["memory_mb"] * 1024
    # Resident pages that are shared count once for every process; the proportional size is exact, and slower.
    kinds = (("VmRSS", "status"), ("Pss", "smaps_rollup"))
    if all(sum(_resident_kb(pid, *kind) for pid in tree) > limit for kind in kinds):
        run.kill("memory")


def _resident_kb(pid: int, key: str, file_name: str) -> int:
    try:
        with open(f"/proc/{pid}/{file_name}") as file:
            return next((int(line.split()[1]) for line in file if line.startswith(f"{key}:")), 0)
    except OSError:  # ended meanwhile
        return 0


def _temporary_file(text: str) -> int:
    """A readable descriptor with `text` (one character a byte) in it, at its start."""
    fd = os.memfd_create("stdin")
    data = text.encode("latin-1")
    while data:
        data = data[os.write(fd, data) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
