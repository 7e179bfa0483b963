"""What a run may use, and the record of how it went. Plain data; enforcing is the fork server's work."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Caps of one run: `Limits(wall_s=2.0, memory_mb=256)`."""

    wall_s: float = 10.0
    """Seconds until the whole process tree is killed."""
    cpu_s: int = 10
    """CPU seconds of one process."""
    memory_mb: int = 1024
    """Address space one process may take beyond what the warm interpreter already had."""
    processes: int = 64
    """Processes and threads alive at the same time."""
    open_files: int = 128
    file_mb: int = 16
    """Largest file a run may write."""
    output_kb: int = 64
    """Kept of stdout and of stderr, from the start."""
    output_hard_kb: int = 1024
    """stdout and stderr together beyond this end the run with `Status.OUTPUT_LIMIT`."""
    result_kb: int = 4096
    """Largest JSON result of a job."""


class Status(StrEnum):
    """How a run ended. Failures of the sandbox itself are not here: they raise SandboxError."""

    OK = "ok"
    """The job returned; for `RunResult`, exit code 0."""
    NONZERO = "nonzero"
    """The program ended with another exit code (`RunResult` only)."""
    ERROR = "error"
    """The job raised; `error` says what."""
    TIMEOUT = "timeout"
    """The wall-clock or CPU limit was reached."""
    CRASHED = "crashed"
    """The process ended without a readable result: a signal, `os._exit`, out of memory."""
    OUTPUT_LIMIT = "output_limit"
    """It printed or returned too much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What came back from one job. All of it is the word of the process that ran candidate code."""

    status: Status
    result: Any
    """The job's JSON value when `status` is OK, else None."""
    error: str | None
    exit_code: int | None
    """Exit code of the process, negative for a signal; None when it was killed at a limit."""
    stdout: str
    stderr: str
    truncated: bool
    """True when stdout or stderr went beyond `Limits.output_kb`."""
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One run of a program. For the model to read; an exit code is not a verdict."""

    status: Status
    exit_code: int | None
    """As the shell would show it, negative for a signal; None when it was killed at a limit."""
    stdout: str
    stderr: str
    truncated: bool
    wall_s: float
