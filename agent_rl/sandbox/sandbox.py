"""The host side of the sandbox: a pool of warm fork servers that run model-written code, one fresh fork per call.

`Sandbox` may be used from many threads. What comes back from a run is data from an opponent: the caller compares it
with what it knows, nothing here is a verdict. A failure of the sandbox itself is retried once on a fresh server and
then raised as SandboxError; it never looks like a failure of the program. Runs nothing in the host's own process.
"""

import itertools
import os
import platform
import queue
import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from agent_rl.closing import Closing
from agent_rl.errors import SandboxError, UserError
from agent_rl.memo import Memo
from agent_rl.sandbox.guest import cgroups, trees
from agent_rl.sandbox.limits import Capability, JobResult, Limits, RunResult
from agent_rl.sandbox.run_files import Call, RunFiles, SandboxFailed, run_result
from agent_rl.sandbox.server_process import Channel, ServerProcess
from agent_rl.sandbox.session import Session
from agent_rl.sandbox.workspace import validate_files

AUTO_TIERS = ("namespaces", "landlock")
"""What `tier="auto"` tries, best first. `rlimits` hides and forbids nearly nothing, so it must be named."""
TIERS = (*AUTO_TIERS, "rlimits")
BASE_JOBS = tuple(f"agent_rl.sandbox.guest.{name}" for name in ("base_jobs", "grading_jobs"))
"""Running Python and pytest, reading texts, grading; needs pytest and PyYAML in the interpreter."""
_GRACE_S = 10.0
"""The server enforces `wall_s` itself; only a server that is late by this much is taken for dead."""
_TIDY_S = 30.0
"""For removing what a run left in a lower tier; a server that takes longer is replaced."""
_names = itertools.count()
T = TypeVar("T")


class Sandbox(Closing):
    """A pool of `size` fork servers of one interpreter. Make it with `Sandbox.open`, use it as a context manager."""

    def __init__(
        self,
        *,
        python: Path,
        jobs: Sequence[str],
        limits: Limits,
        size: int,
        start_timeout_s: float,
        tiers: Sequence[str],
        reuse_verdicts: bool,
    ) -> None:
        self.limits = limits
        self.memo = Memo(is_on=reuse_verdicts)
        """In front of the graders. It lives as long as the sandbox: tier and versions are no part of a question."""
        self._python, self._jobs = python, tuple(jobs)
        self._size = size
        self._start_timeout_s = start_timeout_s
        self._tiers = tuple(tiers)
        self._reasons: list[str] = []
        self._hello: dict[str, Any] = {}
        self._groups = ""
        self._num_restarts = 0
        self._hash_seed = secrets.randbelow(2**32)
        """Of all servers, also of one that replaces another: two runs of one program must not differ by the server."""
        self.on_run: Callable[[str, float], None] = lambda status, seconds: None
        """Told of every run: its status, `failed` where the sandbox itself did, and the seconds that it took."""
        self._closed = False
        self._lock = threading.Lock()
        self._servers: set[ServerProcess] = set()
        self._free: queue.LifoQueue[ServerProcess | None] = queue.LifoQueue()
        # A server dies with the thread that spawned it (PR_SET_PDEATHSIG), so one long-lived thread spawns them all.
        self._spawner = ThreadPoolExecutor(1, thread_name_prefix="sandbox-spawner")

    @classmethod
    def open(
        cls,
        *,
        python: str | Path,
        jobs: Sequence[str] = BASE_JOBS,
        limits: Limits | None = None,
        size: int = 1,
        start_timeout_s: float = 60.0,
        tier: str = "auto",
        require: Collection[Capability] = (),
        reuse_verdicts: bool = False,
    ) -> "Sandbox":
        """Start `size` servers in `tier`: `auto` is `namespaces`, else `landlock`; `rlimits` must be named.

        With `reuse_verdicts`, graders judge equal files once; plain runs are never reused.
        `jobs` are modules (or paths of .py files) that define `JOBS`; the default one needs pytest in that interpreter.
        Raises UserError for a missing interpreter or an unknown tier, and SandboxError when no server comes up or a
        capability of `require` is not enforced.
        """
        path = Path(os.path.abspath(python))
        if not os.access(path, os.X_OK):
            raise UserError(f"there is no Python interpreter at {path}; run `make setup` or give another path")
        if tier not in ("auto", *TIERS):
            raise UserError(f"unknown isolation tier {tier!r}; expected auto, {', '.join(TIERS)}")
        sandbox = cls(
            python=path,
            jobs=[str(Path(name).resolve()) if name.endswith(".py") else name for name in map(str, jobs)],
            limits=limits or Limits(),
            size=size,
            start_timeout_s=start_timeout_s,
            tiers=AUTO_TIERS if tier == "auto" else (tier,),
            reuse_verdicts=reuse_verdicts,
        )
        try:
            sandbox._start_pool(require)
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def _start_pool(self, require: Collection[Capability]) -> None:
        cgroups.remove_stale()
        trees.remove_stale()
        self._groups = cgroups.make_bases(f"{os.getpid()}_{next(_names)}", num_servers=self._size)
        self._free.put(self._start())
        self._tiers = self._tiers[:1]  # for good: what a caller was promised holds for every later server
        if missing := [capability for capability in require if capability not in self.enforced]:
            raise SandboxError(f"tier {self._tiers[0]} does not enforce {', '.join(missing)} here: {self._reasons}")
        nothing = Call(job="")
        self.call_linked(nothing, [nothing])  # the set-up of both kinds of runs works here, or this raises
        with ThreadPoolExecutor(self._size) as pool:
            for server in pool.map(lambda _: self._start(), range(self._size - 1)):
                self._free.put(server)

    def _start(self) -> ServerProcess:
        """A fresh server: the first in the best tier that works here, all others in that tier."""
        while True:
            arguments = (self._python, self._tiers[0], self._jobs, self._groups, self._hash_seed)
            server = self._spawner.submit(ServerProcess.spawn, *arguments).result()
            try:
                server.wait_for_hello(self._start_timeout_s)
                reason = self._refusal(server.hello)
            except BaseException:
                server.close()
                raise
            if not reason:
                break
            server.close()
            self._tiers = self._tiers[1:]
            self._reasons.append(reason)
        with self._lock:
            self._hello = self._hello or server.hello
            self._servers.add(server)
        return server

    def _refusal(self, hello: dict[str, Any]) -> str:
        """Why to try the next tier, if so. Raises SandboxError where there is none to try."""
        if "error" in hello:
            raise SandboxError(f"{self._jobs} failed to load in {self._python}: {hello['error']}")
        reason = str(hello.get("unavailable", ""))
        if reason and self._hello:
            raise SandboxError(f"a server of this sandbox could not be replaced: {reason}")
        if reason and len(self._tiers) == 1:
            raise SandboxError(f"no isolation tier works on this machine: {'; '.join([*self._reasons, reason])}")
        if self._hello and (lost := set(self._hello["enforced"]) - set(hello.get("enforced", ()))):
            raise SandboxError(f"a new server does not enforce {', '.join(sorted(lost))}, which the first one did")
        return reason

    @property
    def enforced(self) -> frozenset[Capability]:
        """What holds for every run of this sandbox."""
        return frozenset(map(Capability, self._hello["enforced"]))

    # ------------------------------------------------------------ calls

    def call(
        self, job: str, files: Mapping[str, str | bytes] | None = None, limits: Limits | None = None, **request: Any
    ) -> JobResult:
        """Run one job of the jobs modules in a fresh fork with `files` in its private working folder.

        Thread-safe; waits for a free server. Raises WorkspaceError for files that are refused and SandboxError when
        the sandbox failed twice.
        """
        return self.run(Call(job=job, files=files or {}, request=request), limits)

    def run(self, call: Call, limits: Limits | None = None) -> JobResult:
        """As `call`, with everything a `Call` can hold."""
        return self._exchange([call], limits or self.limits)[0]

    def call_linked(
        self, server: Call, clients: Sequence[Call], limits: Limits | None = None
    ) -> tuple[JobResult, tuple[JobResult, ...]]:
        """Run `server` in one sandbox, and each client after the other in its own, with a socket between the two.

        The server's ends are descriptors LINK_FD, LINK_FD+1, ...; a client's is LINK_FD. `limits` hold for each
        client; the server may live as long as all of them and is killed after the last one. After a client that had
        to be killed at a limit no other is started: they end with its status.
        """
        first, *others = self._exchange([server, *clients], limits or self.limits)
        return first, tuple(others)

    def _exchange(self, calls: Sequence[Call], limits: Limits) -> list[JobResult]:
        wall_s = limits.wall_s * max(1, len(calls) - 1)
        failure = ""
        for _attempt in range(2):
            # First the server: the files of calls that wait for one would use up the descriptors of this process.
            server = self._take()
            with ExitStack() as stack:
                try:
                    bounds = [replace(limits, wall_s=wall_s), *[limits] * (len(calls) - 1)]
                    runs = [stack.enter_context(closing(RunFiles(*each))) for each in zip(calls, bounds, strict=True)]
                except BaseException:
                    self._free.put(server)
                    raise
                try:
                    server.channel.send_runs(runs)
                    for run in runs:
                        run.close_theirs()
                    headers = server.channel.headers(wall_s + _GRACE_S)
                    for run, header in zip(runs, headers, strict=True):
                        run.settle(header, self._tiers[0])
                except (OSError, EOFError, ValueError, SandboxFailed) as error:
                    failure = str(error) if isinstance(error, SandboxFailed) else repr(error)
                    self._discard(server)
                    continue
                except BaseException:  # for example Ctrl-C: an answer may still be on its way
                    self._discard(server)
                    raise
                self._give_back(server)
                return [self._read(run) for run in runs]
        raise SandboxError(f"the sandbox failed twice on job {calls[0].job!r}: {failure}")

    def _read(self, run: RunFiles) -> JobResult:
        result = run.result(self._tiers[0], self.enforced)
        self.on_run(result.status.value, result.wall_s)
        return result

    def _read_late(self, run: RunFiles, header: dict[str, Any]) -> JobResult:
        run.settle(header, self._tiers[0])
        return self._read(run)

    def _take(self) -> ServerProcess:
        server = self._free.get()
        if self._closed:
            self._free.put(None)  # wake the next one that waits
            raise SandboxError("the sandbox is closed")
        if server is not None:
            return server
        try:
            started = self._start()
        except BaseException:
            self._free.put(None)
            raise
        self._num_restarts += 1
        return started

    def _give_back(self, server: ServerProcess) -> None:
        """For the next run. That it takes long to tidy up after the last one is no failure of either."""
        is_tidy = False
        try:
            is_tidy = server.is_tidy(_TIDY_S)
        finally:
            if is_tidy:
                self._free.put(server)
            else:
                self._discard(server, has_failed=False)

    def _discard(self, server: ServerProcess, *, has_failed: bool = True) -> None:
        with self._lock:
            self._servers.discard(server)
        server.close()
        if has_failed:
            self.on_run("failed", 0.0)
        self._free.put(None)  # a place to start a fresh one in

    def run_python(
        self,
        source: str,
        *,
        files: Mapping[str, str | bytes] | None = None,
        argv: Sequence[str] = (),
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        collect: Sequence[str] = (),
        limits: Limits | None = None,
    ) -> RunResult:
        """Run `source` as `python main.py ARGV` beside `files`; `collect` names files to bring back, `*` for all."""
        request = {"source": source, "argv": list(argv)}
        call = Call(job="run_python", files=files or {}, request=request, stdin=stdin, env=env or {}, collect=collect)
        return run_result(self.run(call, limits))

    def run_command(
        self,
        argv: Sequence[str],
        *,
        files: Mapping[str, str | bytes] | None = None,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        collect: Sequence[str] = (),
        limits: Limits | None = None,
    ) -> RunResult:
        """Run a program that can be seen in the sandbox (`/usr`, the interpreter) instead of the warm interpreter."""
        request = {"argv": list(argv)}
        call = Call(job="run_command", files=files or {}, request=request, stdin=stdin, env=env or {}, collect=collect)
        return run_result(self.run(call, limits))

    def run_pytest(
        self, files: Mapping[str, str | bytes], targets: Sequence[str], *, limits: Limits | None = None
    ) -> RunResult:
        """Run pytest on `targets`, `src/` importable; its report is the result's stdout."""
        return run_result(self.call("run_pytest", files, limits, targets=list(targets)))

    def session(
        self,
        path: str,
        files: Mapping[str, str | bytes],
        *,
        argv: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> Session:
        """Start `python PATH ARGV` (a file of `files`) and talk to it line by line; `wall_s` is its whole life.

        It runs in a fork of its own of a warm server, so it blocks no other run.
        """
        source = files[path]
        request = {"source": source if isinstance(source, str) else source.decode(), "argv": list(argv), "path": path}
        call = Call(job="run_python", files=validate_files(files), request=request, env=env or {})
        return Session(self._branch(), call, limits or self.limits, self._read_late, keep_channel=False)

    def converse(self, call: Call, talk: Callable[[Session], T], limits: Limits | None = None) -> tuple[T, JobResult]:
        """Start a job, `talk` to its standard streams, end it; (what `talk` returned, how the job ended).

        For short conversations: it uses one of the pool's servers. Done again, once, when the sandbox fails in it.
        """
        validate_files(call.files)  # before a server is taken: what is refused here is no failure of one
        for _attempt in range(2):
            server = self._take()
            try:
                with Session(
                    server.channel, call, limits or self.limits, self._read_late, keep_channel=True
                ) as session:
                    answer = talk(session)
                    job = session.close()
            except SandboxError as error:
                failure = error
                self._discard(server)
                continue
            except BaseException:
                self._discard(server)
                raise
            self._give_back(server)
            return answer, job
        raise failure

    def _branch(self) -> Channel:
        server = self._take()
        try:
            channel = server.branch()
        except BaseException as error:
            self._discard(server)
            if isinstance(error, OSError):
                raise SandboxError(f"the fork server is gone: {error!r}") from error
            raise
        self._free.put(server)
        return channel

    # ------------------------------------------------------------ what it is, and its end

    def describe(self) -> dict[str, Any]:
        """What is enforced on this machine, to print at the start and to store with a run."""
        enforced = self.enforced
        return {
            "tier": self._tiers[0],
            "enforced": sorted(map(str, enforced)),
            "not_enforced": sorted(map(str, set(Capability) - enforced)),
            "reasons": list(self._reasons),
            "memory": self._hello["memory"],
            "cpu": self._hello["cpu"],
            "kernel": platform.release(),
            "servers": self._size,
            "restarts": self._num_restarts,
            "python": self._hello["python"],
            "about": self._hello["about"],
        }

    def close(self) -> None:
        """Kill all servers. Calls still running raise SandboxError."""
        self._closed = True
        with self._lock:
            servers, self._servers = self._servers, set()
        for server in servers:
            server.close()
        self._free.put(None)
        self._spawner.shutdown()
        cgroups.remove_bases(self._groups)
        self._groups = ""
