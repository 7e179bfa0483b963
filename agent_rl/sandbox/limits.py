"""Limits of a run, and the record of its result. Plain data; the fork server enforces the limits."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MAX_KEPT_BYTES = 32 * 1024
"""Largest result that is kept for an equal run."""


class Capability(StrEnum):
    """One thing a sandbox may be able to enforce; `describe()` and every result list those that hold."""

    HIDE_FILES = "hide_files"
    """Only the interpreter and the run's own files can be read: no home folder, no project, no other run."""
    READONLY_HOST = "readonly_host"
    """Nothing outside the run's own folders can be written."""
    NO_NETWORK = "no_network"
    """No host, not even the local one, can be reached."""
    PID_ISOLATION = "pid_isolation"
    """Other processes can be neither seen nor signalled."""
    KILL_TREE = "kill_tree"
    """Every process of a run is dead when its result comes back, daemons included."""
    UNPRIVILEGED = "unprivileged"
    """Work never runs as user 0, and no program gives more rights (no_new_privs)."""
    PROC_LIMIT = "proc_limit"
    """The number of processes and threads is bounded."""
    MEM_PER_PROCESS = "mem_per_process"
    MEM_TOTAL = "mem_total"
    """The memory of all processes of a run together is bounded."""
    DISK_QUOTA = "disk_quota"
    """Bytes and number of files written are bounded."""
    SYSCALL_FILTER = "syscall_filter"
    """System calls that only widen the attack surface (ptrace, bpf, io_uring, new namespaces, ...) are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Caps of one run: `Limits(wall_s=2.0, memory_mb=256)`."""

    wall_s: float = 10.0
    """Seconds until the whole process tree is killed."""
    cpu_s: int = 10
    """CPU seconds of one process."""
    memory_mb: int = 1024
    """Memory of the whole tree, and address space of one process beyond what the warm interpreter already had."""
    processes: int = 32
    """Processes and threads alive at the same time."""
    open_files: int = 128
    file_mb: int = 16
    """Largest file a run may write."""
    disk_mb: int = 64
    """All files of a run together, its temporary ones and shared memory included."""
    inodes: int = 4096
    """Number of files and folders."""
    output_kb: int = 64
    """Captured of stdout and of stderr: the first and the last half of it."""
    output_hard_kb: int = 1024
    """stdout and stderr together beyond this end the run with `Status.OUTPUT_LIMIT`."""
    result_kb: int = 4096
    """Largest JSON result of a job, and most that is collected of the files a run wrote."""


class Status(StrEnum):
    """How a run ended. Failures of the sandbox itself are not here: they raise SandboxError."""

    OK = "ok"
    """The job returned; for `RunResult`, exit code 0."""
    NONZERO = "nonzero"
    """The program ended with another exit code or by a signal (`RunResult` only)."""
    ERROR = "error"
    """The job raised; `error` holds what."""
    TIMEOUT = "timeout"
    """The wall-clock or CPU limit was reached."""
    MEMORY = "memory"
    """The memory of the whole tree went beyond the limit."""
    PROCESS_LIMIT = "process_limit"
    """Too many processes at once, where no kernel limit stops them from being made."""
    CRASHED = "crashed"
    """The process ended without a readable result: a signal, `os._exit`."""
    OUTPUT_LIMIT = "output_limit"
    """It printed or returned too much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One run of a program. For the model to read; an exit code is not a verdict."""

    status: Status
    exit_code: int | None = None
    """Exit code of the process, negative for a signal; None when it was killed at a limit."""
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False
    """True when stdout or stderr went beyond `Limits.output_kb`; a line in the middle shows what is missing."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """User and system time of the run's main process and the children it waited for."""
    max_rss_mb: float = 0.0
    """Peak resident memory of the largest process."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Regular files that `collect` requested, read after every process was dead."""
    tier: str = ""
    enforced: frozenset[Capability] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult(RunResult):
    """What came back from one job. All of it comes from the process that ran the job."""

    result: Any = None
    """The job's JSON value when `status` is OK, else None."""
    items: tuple[Any, ...] = ()
    """What a job that is a generator yielded so far, also when it was killed later."""
    error: str | None = None
    is_settled: bool = True
    """Whether the result is worth keeping for an equal run: short, and not at or near a limit of time, which may have
    been the machine's doing."""
