"""One run: its first process, which sets it up and tears it down, and the process that does the job.

Both start as forks of the server. The first process runs no code of the candidate's; it reports how the job's process
ended and the files it left in a file that the job's process never had. A job marked `direct` is done by the first
process itself: a fork cheaper, but process 1 has no default signal actions and no one to reap or collect for it.
"""

import contextlib
import inspect
import itertools
import json
import os
import random
import resource
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from agent_rl.sandbox.guest import linux
from agent_rl.sandbox.guest.tiers import Tier, set_limits

Job = Callable[[dict[str, Any], str], Any]
RESULT_FD = 3
LINK_FD = 4
"""First of the sockets to the other side of a linked run."""
_MOST_COLLECTED = 1024
DESCRIPTORS = ("spec", "stdin", "stdout", "stderr", "result", "status")
"""What comes with every run, in this order: files in memory that only the host and the run's own processes read."""


class Stage:
    """What a run needs: the tier, the job, limits and descriptors. Not what it is about: that is in the spec's file."""

    def __init__(
        self, tier: Tier, job: Job, limits: dict[str, Any], descriptors: Sequence[int], base_memory: int
    ) -> None:
        self.tier, self.job, self.limits, self.base_memory = tier, job, limits, base_memory
        self.spec, self.stdin, self.stdout, self.stderr, self.result, self.status = descriptors
        self.links: list[int] = []
        self.is_direct = bool(getattr(job, "direct", False))

    def read_spec(self) -> dict[str, Any]:
        """`{"files", "request", "env", "collect"}`. The server never reads it: its memory is every later run's too."""
        with open(self.spec, "rb", closefd=False) as file:
            return dict(json.loads(file.read()))


def direct(job: Job) -> Job:
    """Mark a job that the first process may do itself."""
    job.direct = True  # type: ignore[attr-defined]
    return job


def first_process(stage: Stage) -> NoReturn:
    """Enter the run's own isolation, start the job's process, and report its end."""
    try:
        spec = stage.read_spec()
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        linux.prctl(linux.PR_SET_DUMPABLE, 1)  # else /proc/self belongs to root
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # before the server, should the group be full
        stage.tier.enter_run(stage.limits)
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
        os.chdir(stage.tier.workdir)
    except OSError as error:
        _report(stage.status, {"setup": f"{type(error).__name__}: {error}"})
        os._exit(1)
    try:
        write_files(spec["files"])
    except OSError as error:  # too many, too large, or names that no file system takes: not ours to answer for
        _report(stage.status, {"refused": f"{type(error).__name__}: {error}"})
        os._exit(1)
    pid = 0 if stage.is_direct else os.fork()
    if pid == 0:
        try:
            _job_process(stage, spec)
        finally:
            os._exit(1)  # never back into the server's loop
    os.closerange(0, stage.status)
    os.closerange(stage.status + 1, 1 << 16)
    ended = 0
    while ended != pid:  # as process 1 of a namespace: orphans are ours to reap
        ended, status, usage = os.wait4(-1, 0)
    stage.tier.kill_rest()
    report = exit_report(status, usage)
    with contextlib.suppress(OSError):
        report["files"] = collect_files(spec["collect"], stage.limits["result_kb"] * 1024)
    _report(stage.status, report)
    os._exit(0)


def exit_report(status: int, usage: resource.struct_rusage) -> dict[str, Any]:
    """How a process ended and what it used."""
    cpu_s = usage.ru_utime + usage.ru_stime
    return {"exit_code": os.waitstatus_to_exitcode(status), "cpu_s": cpu_s, "max_rss_mb": usage.ru_maxrss / 1024}


def _report(fd: int, message: dict[str, Any]) -> None:
    payload = json.dumps(message).encode()
    while payload:
        payload = payload[os.write(fd, payload) :]


def write_files(files: dict[str, str]) -> None:
    """Write the workspace into the current folder. Bytes travel as text, one character each."""
    for path, text in files.items():
        if folder := os.path.dirname(path):
            os.makedirs(folder, exist_ok=True)
        with open(path, "wb") as file:
            file.write(text.encode("latin-1"))


def collect_files(wanted: list[str], budget: int) -> dict[str, str]:
    """Regular files of the current folder, no links followed, as many as fit in `budget` bytes."""
    paths = list(_walk()) if "*" in wanted else wanted
    found: dict[str, str] = {}
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            continue
        try:
            about = os.fstat(fd)
            beyond = os.path.realpath(path) != os.path.abspath(path)  # a folder on the way is a link
            if stat.S_ISREG(about.st_mode) and not beyond and about.st_size <= budget:
                data = os.read(fd, about.st_size)
                budget -= len(data)
                path.encode()
                found[path] = data.decode("latin-1")
        except (OSError, UnicodeEncodeError):
            continue
        finally:
            os.close(fd)
    return found


def _walk() -> list[str]:
    """Paths of files below the current folder, no links followed. Not by recursion: a run may nest without end."""
    paths: list[str] = []
    folders = [""]
    while folders and len(paths) < _MOST_COLLECTED:
        folder = folders.pop()
        with contextlib.suppress(OSError), os.scandir(folder or ".") as entries:
            for entry in itertools.islice(entries, _MOST_COLLECTED):
                path = os.path.join(folder, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(path)
                elif entry.is_file(follow_symlinks=False):
                    paths.append(path)
    return sorted(paths)


# ---------------------------------------------------------------- the process that does the job


def _job_process(stage: Stage, spec: dict[str, Any]) -> NoReturn:
    tier = stage.tier
    os.setsid()
    _settle_descriptors(stage)
    environment = {"HOME": tier.workdir, "TMPDIR": tier.temporary, **spec["env"]}
    os.environ.update(environment)
    tempfile.tempdir = None
    random.seed()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    linux.prctl(linux.PR_SET_DUMPABLE, 1)  # else /proc/self/fd and /dev/stdout cannot be opened
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    set_limits(stage.limits, stage.base_memory, count_processes="proc_limit" in tier.enforced)
    tier.confine()
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  lives as long as the process
    run_job(stage.job, spec["request"], tier.workdir)


def _settle_descriptors(stage: Stage) -> None:
    """Standard streams, the result and the links on their numbers; nothing else of the server's stays open."""
    wanted = [stage.stdin, stage.stdout, stage.stderr, stage.result, *stage.links]
    high = [_above(fd, len(wanted)) for fd in wanted]  # out of the way of the targets
    for target, fd in enumerate(high):
        os.dup2(fd, target, inheritable=target < RESULT_FD)
    os.closerange(len(wanted), 1 << 16)


def _above(fd: int, lowest: int) -> int:
    while fd < lowest:
        fd = os.dup(fd)
    return fd


def run_job(job: Job, request: dict[str, Any], workdir: str) -> NoReturn:
    """Do the job and write what it yields and returns to the result file, one JSON object a line."""
    pid = os.getpid()
    try:
        value = job(request, workdir)
        while inspect.isgenerator(value):
            try:
                item = next(value)
            except StopIteration as stop:
                value = stop.value
            else:
                _write_line({"item": item})
        message = {"result": value}
    except BaseException as error:  # the boundary to code we did not write: SystemExit included
        message = {"error": f"{type(error).__name__}: {error}"[:300]}
    if os.getpid() != pid:  # the candidate forked and its copy came back here
        os._exit(0)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed or replaced by the candidate
            stream.flush()
    try:
        _write_line(message)
    except (TypeError, ValueError, RecursionError) as error:
        _write_line({"error": f"the result is not JSON: {error}"[:300]})
    os._exit(0)


def _write_line(message: dict[str, Any]) -> None:
    payload = json.dumps(message).encode() + b"\n"
    while payload:
        payload = payload[os.write(RESULT_FD, payload) :]
