"""Input and output of a run, in memory files that the host shares with that run alone.

Everything read back comes from the run (only the report of its first process is ours). Sizes are checked before
anything is read; nothing is read while the run may still write.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from agent_rl.errors import SandboxError
from agent_rl.sandbox.guest.bounded_json import read_json_lines
from agent_rl.sandbox.guest.run import DESCRIPTORS
from agent_rl.sandbox.limits import MAX_KEPT_BYTES, Capability, JobResult, Limits, RunResult, Status
from agent_rl.sandbox.workspace import to_wire

_CAUSES = {
    "timeout": Status.TIMEOUT,
    "memory": Status.MEMORY,
    "processes": Status.PROCESS_LIMIT,
    "output_limit": Status.OUTPUT_LIMIT,
}
_WRITE = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
_MODES = {"spec": os.O_RDONLY | os.O_CLOEXEC, "stdin": os.O_RDONLY | os.O_CLOEXEC}
_SIGKILL, _SIGXCPU = 9, 24
_MAX_ERROR_CHARS = 500
_SETTLED_SHARE = 0.5
"""Of the limits of time: a run that took more of one may have hung on the machine."""
_NO_ROOM = "the files cannot be written: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One job with its files: `Call(job="run_python", files={"a.py": "x = 1"}, request={"source": "import a"})`."""

    job: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    stdin: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    collect: Sequence[str] = ()

    def spec(self) -> bytes:
        """As the run reads it. Raises WorkspaceError for files that are refused."""
        spec = {"files": to_wire(self.files), "request": dict(self.request), "env": dict(self.env)}
        return json.dumps(spec | {"collect": list(self.collect)}).encode()


class SandboxFailed(Exception):
    """This run failed before the candidate's code could have had a part in it."""


class RunFiles:
    """The descriptors of one run. `close` them when it is over; with `pipes` of the caller's its streams are these, and
    are closed with the rest. Raises WorkspaceError, and SandboxError where this process may open no more files."""

    def __init__(self, call: Call, limits: Limits, *, pipes: Mapping[str, int] | None = None) -> None:
        self._limits, self._is_interactive = limits, pipes is not None
        self._fds: dict[str, int] = {}
        self._theirs = dict(pipes or {})
        try:
            spec = call.spec()
            for name in DESCRIPTORS:
                if name not in self._theirs:
                    self._fds[name] = os.memfd_create(name, os.MFD_CLOEXEC)
                    self._theirs[name] = os.open(f"/proc/self/fd/{self._fds[name]}", _MODES.get(name, _WRITE))
            _fill(self._fds["spec"], spec)
            if pipes is None:
                _fill(self._fds["stdin"], call.stdin.encode("utf-8", "surrogateescape"))
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise SandboxError(f"the files of a run cannot be opened: {error!r}; see `ulimit -n`") from error
            raise
        self._header: Mapping[str, Any] = {}
        self._report: dict[str, Any] = {}
        self.plan = {"job": call.job, "limits": asdict(limits), "interactive": self._is_interactive}

    @property
    def descriptors(self) -> list[int]:
        """The run's own ends, in the order of DESCRIPTORS."""
        return [self._theirs[name] for name in DESCRIPTORS]

    def close_theirs(self) -> None:
        """Close our copies of the run's ends once they were sent: the end of a pipe shows when no process holds it."""
        for fd in self._theirs.values():
            os.close(fd)
        self._theirs = {}

    def close(self) -> None:
        self.close_theirs()
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}

    def settle(self, header: Mapping[str, Any], tier: str) -> None:
        """Take note of how the run ended. Raises SandboxFailed when it was the sandbox that failed."""
        self._header, self._report = header, self._read_report(header, tier)

    def result(self, tier: str, enforced: frozenset[Capability]) -> JobResult:
        """The run as a record, once it is settled."""
        header, report = self._header, self._report
        items, end, is_whole = self._messages()
        status = self._limit_status(header["cause"], report) or (None if is_whole else Status.OUTPUT_LIMIT)
        exit_code = report.get("exit_code") if status is None else None
        result, error = None, None
        if status is not None:
            error = f"killed at the limit: {status.value}"
        elif "refused" in report:
            status, error = Status.ERROR, f"{_NO_ROOM}{report['refused']}"
        elif "result" in end and exit_code == 0:  # with another code somebody else wrote it
            status, result = Status.OK, end["result"]
        elif "error" in end and exit_code == 0:
            status, error = Status.ERROR, str(end["error"])[:_MAX_ERROR_CHARS].encode("utf-8", "replace").decode()
        else:
            status, error = Status.CRASHED, f"the process ended with exit code {exit_code} and no result"
        stdout, cut_out = ("", False) if self._is_interactive else self._text("stdout")
        stderr, cut_err = self._text("stderr")
        return JobResult(
            status=status,
            result=result,
            items=items,
            error=error,
            exit_code=exit_code,
            stdout=stdout,
            stderr=stderr,
            truncated=cut_out or cut_err,
            wall_s=header["wall_s"],
            cpu_s=report.get("cpu_s", 0.0),
            max_rss_mb=report.get("max_rss_mb", 0.0),
            files={path: text.encode("latin-1") for path, text in report.get("files", {}).items()},
            tier=tier,
            enforced=enforced,
            is_settled=self._is_settled(status, header["wall_s"], report.get("cpu_s", 0.0)),
        )

    def _is_settled(self, status: Status, wall_s: float, cpu_s: float) -> bool:
        is_early = wall_s < _SETTLED_SHARE * self._limits.wall_s and cpu_s < _SETTLED_SHARE * self._limits.cpu_s
        names = ("result", "stderr") if self._is_interactive else ("result", "stderr", "stdout")
        is_short = sum(map(self._size, names)) <= MAX_KEPT_BYTES
        return status is not Status.TIMEOUT and is_early and is_short

    def _read_report(self, header: Mapping[str, Any], tier: str) -> dict[str, Any]:
        """What the first process reported, or the server about it when it did the job itself."""
        try:
            written = json.loads(_read(self._fds["status"], 0, self._size("status")) or b"{}")
        except ValueError:  # torn when the deadline came while it was written
            written = {}
        report = {key: header[key] for key in ("exit_code", "cpu_s", "max_rss_mb") if key in header} | written
        if "setup" in report:
            raise SandboxFailed(report["setup"])
        if header["cause"] == "ended" and header["oom"] and report.get("exit_code", -_SIGKILL) == -_SIGKILL:
            raise SandboxFailed("the machine is out of memory, and the kernel killed the run for it")
        if not report and header["cause"] == "ended" and tier == "namespaces":  # nothing else can kill it
            raise SandboxFailed("the first process of the run ended without a report")
        return report

    def _limit_status(self, cause: str, report: Mapping[str, Any]) -> Status | None:
        if cause in _CAUSES:
            return _CAUSES[cause]
        number, spent = report.get("exit_code"), report.get("cpu_s", 0.0) >= self._limits.cpu_s
        if number == -_SIGXCPU or (number == -_SIGKILL and spent):  # the hard limit, where the signal was ignored
            return Status.TIMEOUT
        printed = self._size("stderr") + (0 if self._is_interactive else self._size("stdout"))
        too_much = printed > self._limits.output_hard_kb * 1024 or self._size("result") > self._limits.result_kb * 1024
        return Status.OUTPUT_LIMIT if too_much else None

    def _messages(self) -> tuple[tuple[Any, ...], dict[str, Any], bool]:
        """(what the job yielded, its end, whether nothing is left out): one JSON object a line."""
        items: list[Any] = []
        end: dict[str, Any] = {}
        messages, is_whole = read_json_lines(_read(self._fds["result"], 0, self._limits.result_kb * 1024))
        for message in messages:  # what is not JSON was forged or torn by the candidate
            if isinstance(message, dict) and "item" in message:
                items.append(message["item"])
            elif isinstance(message, dict):
                end = message
        return tuple(items), end, is_whole

    def _text(self, name: str) -> tuple[str, bool]:
        """(text, whether the middle is left out)."""
        fd, size, half = self._fds[name], self._size(name), self._limits.output_kb * 512
        if size <= 2 * half:
            return _read(fd, 0, size).decode("utf-8", "replace"), False
        head, tail = (_read(fd, start, half).decode("utf-8", "replace") for start in (0, size - half))
        return f"{head}\n[... {size - 2 * half} bytes left out ...]\n{tail}", True

    def _size(self, name: str) -> int:
        return os.fstat(self._fds[name]).st_size


def run_result(job: JobResult) -> RunResult:
    """A program that ended by itself is OK or NONZERO, however it ended."""
    status, exit_code = job.status, job.exit_code
    if status is Status.OK and isinstance(job.result, dict) and type(job.result.get("exit_code")) is int:
        exit_code = job.result["exit_code"]
        status = Status.OK if exit_code == 0 else Status.NONZERO
    elif status is Status.CRASHED and exit_code is not None:  # os._exit, exec, a signal
        status = Status.OK if exit_code == 0 else Status.NONZERO
    stderr = job.stderr or (job.error or "" if status is Status.ERROR else "")
    same = {part.name: getattr(job, part.name) for part in fields(RunResult)}
    return RunResult(**same | {"status": status, "exit_code": exit_code, "stderr": stderr})


def _fill(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _read(fd: int, start: int, size: int) -> bytes:
    chunks = []
    while size > 0 and (chunk := os.pread(fd, size, start)):
        chunks.append(chunk)
        start, size = start + len(chunk), size - len(chunk)
    return b"".join(chunks)
