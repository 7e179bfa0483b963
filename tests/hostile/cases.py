"""The table of hostile programs: what each one's run must look like, and the harness that runs one and checks."""

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from host import SECRET, Host, descendants, num_descriptors

from agent_rl.errors import SandboxError
from agent_rl.sandbox.limits import Capability, Limits, RunResult, Status
from agent_rl.sandbox.sandbox import Sandbox

HERE = Path(__file__).parent
LIMITS = Limits(
    wall_s=4.0,
    cpu_s=4,
    memory_mb=256,
    processes=24,
    open_files=64,
    file_mb=8,
    disk_mb=32,
    inodes=512,
    output_kb=32,
    output_hard_kb=256,
    result_kb=512,
)
C, S = Capability, Status
ENDED = frozenset({S.OK, S.NONZERO})
KILLED = frozenset({S.TIMEOUT, S.MEMORY, S.CRASHED, S.OUTPUT_LIMIT})
ANY = frozenset(Status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One program of `programs/`."""

    name: str
    status: frozenset[Status] = ENDED
    prints: str = "BLOCKED"
    """Must be in the output of a program that was not killed; a program that does nothing proves nothing."""
    needs: tuple[Capability, ...] = ()
    """What stops it; a tier without it skips the case."""
    limits: dict[str, float | int] = field(default_factory=dict)
    collect: tuple[str, ...] = ()
    stdin: str = ""
    within_s: float | None = None
    check: Callable[[RunResult], str | None] = lambda result: None
    """Return what is wrong with the result, if anything."""


def _case(name: str, *needs: Capability, **fields: object) -> Case:
    return Case(name=name, needs=needs, **fields)  # type: ignore[arg-type]


def _timeout(name: str, *needs: Capability, prints: str = "before", **fields: object) -> Case:
    """Killed at the deadline, with what it printed before."""
    limits = {"wall_s": 0.5, **fields.pop("limits", {})}  # type: ignore[dict-item]
    return _case(name, *needs, status=frozenset({S.TIMEOUT}), prints=prints, limits=limits, within_s=2.0, **fields)


def _flood(name: str, *needs: Capability) -> Case:
    """Killed at the cap on output, long before the deadline."""
    return _case(name, *needs, status=frozenset({S.OUTPUT_LIMIT}), prints="", within_s=2.0, check=_output_is_short)


def _output_is_short(result: RunResult) -> str | None:
    size = len(result.stdout.encode()) + len(result.stderr.encode())
    return None if result.truncated and size < 6 * 32 * 1024 else f"{size} characters, truncated={result.truncated}"


def _no_secret(result: RunResult) -> str | None:
    leaks = [name for name, data in result.files.items() if SECRET.encode() in data or b"root:x:0" in data]
    return f"files of the host came back: {leaks}" if leaks else None


def _only(*names: str) -> Callable[[RunResult], str | None]:
    return lambda result: None if sorted(result.files) == sorted(names) else f"came back: {sorted(result.files)[:9]}"


def _at_most_result_kb(result: RunResult) -> str | None:
    size = sum(map(len, result.files.values()))
    return None if size <= LIMITS.result_kb * 1024 else f"{size} bytes came back"


def _no_core(result: RunResult) -> str | None:
    return f"core file: {sorted(result.files)}" if any("core" in name for name in result.files) else None


def _exit_code(code: int) -> Callable[[RunResult], str | None]:
    return lambda result: None if result.exit_code == code else f"exit code {result.exit_code}, expected {code}"


CASES = (
    # processes
    _case("fork_bomb", C.PROC_LIMIT, C.KILL_TREE, status=ENDED | {S.TIMEOUT}),
    _case("thread_bomb", C.PROC_LIMIT),
    _case("exhaust_processes_and_leave", C.PROC_LIMIT, C.KILL_TREE, within_s=2.0),
    _case("zombie_farm", C.PROC_LIMIT),
    _case("spawn_storm", C.PROC_LIMIT, C.KILL_TREE, status=ENDED | {S.PROCESS_LIMIT}, within_s=3.0),
    _case("exec_bomb_with_threads"),
    _case("daemon_double_fork", C.KILL_TREE, prints="main done", within_s=1.5),
    _case("daemon_ignores_everything", C.KILL_TREE, prints="main done", within_s=1.5),
    _case("grandchild_holds_stdout", C.KILL_TREE, prints="main done", within_s=1.5),
    _case("another_name", C.KILL_TREE, prints="main done", within_s=1.5),
    _case("end_abruptly", C.KILL_TREE, prints="written", within_s=1.5),
    # time
    _timeout("cpu_spin", prints=""),
    _timeout("cpu_spin_many", C.KILL_TREE, prints=""),
    _case(
        "cpu_limit_ignored", prints="", status=frozenset({S.TIMEOUT}), limits={"cpu_s": 1, "wall_s": 12.0}, within_s=8.0
    ),
    _timeout("sleep_forever"),
    _timeout("ignore_every_signal", C.KILL_TREE),
    _timeout("nondaemon_thread_never_ends"),
    _timeout("exit_handler_never_ends"),
    _timeout("stop_self"),
    _timeout("stop_own_group", C.KILL_TREE),
    _timeout("stdout_closed_and_sleeps", prints=""),
    # memory
    _case("memory_bomb", C.MEM_PER_PROCESS, status=ENDED | {S.MEMORY}),
    _case("memory_of_many_processes", C.MEM_TOTAL, status=ENDED | {S.MEMORY, S.TIMEOUT}),
    _case("shared_mapping_bomb", C.MEM_TOTAL, status=ENDED | {S.MEMORY, S.TIMEOUT}),
    _case("memfd_bomb", C.SYSCALL_FILTER),
    _case("pipe_memory", C.MEM_TOTAL, status=ENDED | {S.MEMORY}),
    _case("socket_memory", C.MEM_TOTAL, status=ENDED | {S.MEMORY}),
    _case("tcp_memory", C.MEM_TOTAL, C.NO_NETWORK, status=ENDED | {S.MEMORY}),
    # files and descriptors
    _case("disk_fill", C.DISK_QUOTA),
    _case("disk_fill_everywhere", C.DISK_QUOTA),
    _case("inode_fill", C.DISK_QUOTA),
    _case("huge_sparse_file"),
    _case("descriptor_exhaustion"),
    _case("descriptors_in_flight", C.PROC_LIMIT),
    _case("undeletable_tree", C.DISK_QUOTA, prints="main done", collect=("*",)),
    _case("deep_tree", C.DISK_QUOTA, prints="main done", limits={"inodes": 8192}, collect=("*",)),
    # output
    _flood("stdout_flood"),
    _flood("stderr_flood"),
    _flood("flood_without_newline"),
    _flood("flood_from_children", C.KILL_TREE),
    _case("stdout_closed", prints=""),
    _case("stdout_does_not_block", prints=""),
    _case("never_reads_its_input", prints="main done", stdin="x" * 500_000, within_s=1.5),
    # the ways to end
    _case("kill_own_group", status=frozenset({S.NONZERO, S.CRASHED}), prints=""),
    _case("end_by_abort", status=frozenset({S.NONZERO}), prints="", collect=("*",), check=_no_core),
    _case("end_with_odd_exceptions", status=frozenset({S.NONZERO}), prints=""),
    _case("end_with_recursion", status=frozenset({S.NONZERO}), prints="", limits={"memory_mb": 128}),
    _case("break_the_interpreter", status=frozenset({S.NONZERO}), prints="", check=_exit_code(7)),
    _case("break_the_exit", C.KILL_TREE, status=ANY, prints="", limits={"wall_s": 1.0}),
    _case("forge_on_every_descriptor", status=frozenset({S.NONZERO}), prints="", check=_exit_code(9)),
    # what is open, readable, writable
    _case("inherited_descriptors"),
    _case("terminal", C.SYSCALL_FILTER),
    _case("write_dotdot", C.READONLY_HOST),
    _case("symlink_escape", C.READONLY_HOST),
    _case("hardlink_escape", C.READONLY_HOST),
    _case("change_files_outside", C.READONLY_HOST, C.HIDE_FILES),
    _case("write_host_folders", C.READONLY_HOST),
    _case("kernel_settings", C.READONLY_HOST, C.PID_ISOLATION),
    _case("read_secrets", C.HIDE_FILES),
    _case("environment_secrets"),
    _case("environment_of_others", C.PID_ISOLATION),
    _case("devices", C.READONLY_HOST),
    # other processes
    _case("see_other_processes", C.PID_ISOLATION),
    _case("kill_everything", C.PID_ISOLATION, status=ANY),
    _case("kill_parent", C.PID_ISOLATION, status=ANY),
    _case("kill_host_processes", C.PID_ISOLATION),
    _case("memory_of_others", C.SYSCALL_FILTER, C.PID_ISOLATION),
    # network and messages
    _case("network_outside", C.NO_NETWORK),
    _case("network_of_the_host", C.NO_NETWORK),
    _case("unix_sockets_of_the_host", C.NO_NETWORK, C.HIDE_FILES),
    _case("socket_families", C.SYSCALL_FILTER),
    _case("sysv_ipc", C.SYSCALL_FILTER),
    _case("posix_shared_memory", C.HIDE_FILES),
    # the kernel
    _case("kernel_surface", C.SYSCALL_FILTER),
    _case("new_namespaces", C.SYSCALL_FILTER, C.PID_ISOLATION),
    _case("raise_limits", C.PROC_LIMIT),
    _case("starve_the_first_process", C.SYSCALL_FILTER, collect=("large",), check=_only("large")),
    _case("more_rights", C.UNPRIVILEGED),
    # what all runs share
    _case("locks_on_shared_files", C.SYSCALL_FILTER),
    _case("watch_shared_files", C.SYSCALL_FILTER),
    _case("marks_in_the_page_cache", C.SYSCALL_FILTER),
    _case("times_of_shared_files", C.READONLY_HOST, C.SYSCALL_FILTER),
    _case("new_system_calls", C.SYSCALL_FILTER),
    _case("counters_of_the_host", C.PID_ISOLATION, C.SYSCALL_FILTER),
    _case("limits_of_the_user", C.SYSCALL_FILTER),
    _case("slow_everybody_down", C.SYSCALL_FILTER),
    _case("honest_with_locks", C.SYSCALL_FILTER, C.PID_ISOLATION, prints="main done", limits={"wall_s": 20.0}),
    # what comes back, and the next run
    _case("fifo_instead_of_answer", prints="main done", collect=("*",), check=_only("real.txt"), within_s=1.5),
    _case("symlink_instead_of_answer", prints="main done", collect=("*",), check=_no_secret),
    _case("replace_own_folder", prints="main done", collect=("*", "passwd"), check=_no_secret),
    _case("weird_names", prints="main done", collect=("*",)),
    _case("huge_answer_file", prints="main done", collect=("*",), check=_at_most_result_kb),
    _case("huge_environment", prints="", status=ENDED),
    _case("leave_traces", prints="main done"),
    _case("find_traces", C.HIDE_FILES),
)
LOWER_TIER_CASES = tuple(case for case in CASES if case.needs)
"""There, what a tier does not claim to stop is skipped, so only these prove anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a case went; JSON through `asdict`."""

    problems: list[str]
    skipped: str | None = None
    status: str = ""
    wall_s: float = 0.0
    stdout: str = ""


class Bench:
    """A sandbox of one tier and a host to attack; runs one case at a time."""

    def __init__(self, tier: str) -> None:
        self.host = Host()
        try:
            self.sandbox = Sandbox.open(python=sys.executable, limits=LIMITS, tier=tier)
        except BaseException:
            self.host.close()
            raise
        self._attack = (HERE / "attack.py").read_text()
        self._run("print('warm')", Case(name=""))
        gc.collect()  # descriptors that earlier tests left to the collector would hide a leak
        self._processes = descendants()
        self._descriptors = self._num_descriptors()

    def _run(self, source: str, case: Case) -> RunResult:
        limits = Limits(**{**asdict(LIMITS), **case.limits})  # type: ignore[arg-type]
        return self.sandbox.run_python(
            source,
            files={"attack.py": self._attack} if source.count("attack") else {},
            stdin=case.stdin,
            env=self.host.environment,
            collect=case.collect,
            limits=limits,
        )

    def _num_descriptors(self) -> dict[int | str, int | None]:
        return {pid: num_descriptors(pid) for pid in ("self", *self._processes)}

    def _grown_descriptors(self) -> dict[int | str, str]:
        """Processes that stay with more open files than before the case.

        Fewer are no leak: the collector closes what earlier tests of this process left behind.
        """
        deadline = time.monotonic() + 5
        while True:
            now = self._num_descriptors()
            grown = {
                pid: f"{before} -> {now[pid]}"
                for pid, before in self._descriptors.items()
                if (now.get(pid) or 0) > (before or 0)
            }
            if not grown or time.monotonic() > deadline:
                return grown
            time.sleep(0.05)

    def run(self, case: Case) -> Outcome:
        about = self.sandbox.describe()
        missing = [need for need in case.needs if need not in about["enforced"]]
        if missing:
            return Outcome(
                problems=[], skipped=f"tier {about['tier']} does not enforce {', '.join(missing)}: {about['reasons']}"
            )
        try:
            started = time.monotonic()
            result = self._run((HERE / "programs" / f"{case.name}.py").read_text(), case)
            wall_s = time.monotonic() - started
        except SandboxError as error:
            return Outcome(problems=[f"the program made the sandbox itself fail: {error}", *self._aftermath()])
        return Outcome(
            problems=[*self._judge(case, result, wall_s), *self._aftermath()],
            status=str(result.status),
            wall_s=wall_s,
            stdout=(result.stdout + result.stderr)[-3000:],
        )

    def _judge(self, case: Case, result: RunResult, wall_s: float) -> list[str]:
        lines = result.stdout.splitlines()
        found = [line for line in lines if line.startswith("PWNED")]
        if result.status not in case.status:
            found.append(f"status {result.status}, expected {', '.join(case.status)}; stderr: {result.stderr[-300:]}")
        if case.prints not in result.stdout and (result.status in ENDED or case.prints == "before"):
            found.append(f"it did not say {case.prints!r}; stderr: {result.stderr[-300:]}")
        if "Traceback" in result.stderr and "BLOCKED" in case.prints:
            found.append(f"the program itself is broken: {result.stderr[-300:]}")
        if case.within_s is not None and wall_s > case.within_s:
            found.append(f"took {wall_s:.1f} s, more than {case.within_s:g} s")
        if "main.py" in result.files and case.check is not _no_core:
            found.append("the program's own file came back")
        complaint = case.check(result)
        return [*found, complaint] if complaint else found

    def _aftermath(self) -> list[str]:
        found = self.host.damage()
        if extra := descendants() - self._processes:
            found.append(f"processes left below the server: {sorted(extra)}")
        if gone := self._processes - descendants():
            found.append(f"processes of the sandbox died: {sorted(gone)}")
        if self.sandbox.describe()["restarts"]:
            found.append("the server had to be replaced")
        if grown := self._grown_descriptors():
            found.append(f"more open descriptors than before, by process: {grown}")
        if found and (extra or gone or "the server had to be replaced" in found):
            self._processes = descendants()
        self._descriptors = self._num_descriptors()
        return found

    def close(self) -> None:
        self.sandbox.close()
        self.host.close()
