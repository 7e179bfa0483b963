"""The host side of the sandbox: a pool of warm fork servers that run model-written code, one fresh fork per call.

`Sandbox` may be used from many threads. What comes back from a run is data from an opponent: the caller compares it
with what it knows, nothing here is a verdict. A failure of the sandbox itself is retried once on a fresh server and
then raised as SandboxError; it never looks like a failure of the program. Runs nothing in the host's own process.
"""

import contextlib
import json
import os
import queue
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent_rl.errors import SandboxError, UserError
from agent_rl.sandbox.limits import JobResult, Limits, RunResult, Status
from agent_rl.sandbox.workspace import validate_files

TIERS = ("namespaces", "process")
"""Isolation, best first; the first that works on this machine is used and shown by `describe`."""

_CAPABILITIES = (
    *("clean_environment", "kill_tree", "memory_per_process", "no_network", "process_namespace", "read_only_host"),
    *("hidden_home", "unprivileged", "process_limit"),
)
_GRACE_S = 10.0
"""The server enforces `wall_s` itself; only a server that is late by this much is taken for dead."""
_FORK_SERVER = Path(__file__).with_name("fork_server.py")
_BASE_JOBS = Path(__file__).with_name("base_jobs.py")
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/tmp",
    "NAT_TELEMETRY_ENABLED": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


class _Server:
    """One fork server process and the socket to it. Used by one thread at a time."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket, log: Any) -> None:
        self.process = process
        self.hello: dict[str, Any] = {}
        self._channel = channel
        self._log = log

    def greet(self, timeout_s: float) -> None:
        """Wait for the hello, which comes after the preload."""
        try:
            self.hello = json.loads(self._receive(time.monotonic() + timeout_s))
        except (OSError, EOFError) as error:
            self._log.seek(0)
            log = self._log.read()[-500:].decode("utf-8", "replace")
            raise SandboxError(f"the fork server did not start: {error!r}; it printed: {log!r}") from None

    def exchange(self, payload: bytes, timeout_s: float) -> tuple[dict[str, Any], bytes]:
        """Send a request, return header and body. Raises OSError or EOFError when the server is dead or late."""
        deadline = time.monotonic() + timeout_s
        self._channel.settimeout(timeout_s)
        self._channel.sendall(struct.pack(">I", len(payload)) + payload)
        return json.loads(self._receive(deadline)), self._receive(deadline)

    def _receive(self, deadline: float) -> bytes:
        size = struct.unpack(">I", self._receive_exactly(4, deadline))[0]
        return self._receive_exactly(size, deadline)

    def _receive_exactly(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._channel.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = self._channel.recv(min(size - len(data), 1 << 20))
            if not chunk:
                raise EOFError("the fork server closed its channel")
            data += chunk
        return bytes(data)

    def close(self) -> None:
        """Kill the server; whatever it was running dies with it."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        self._channel.close()
        self.process.kill()
        self.process.wait()
        self._log.close()
        if scratch := self.hello.get("scratch"):
            with contextlib.suppress(RecursionError):  # nested too deep by a run
                shutil.rmtree(scratch, ignore_errors=True)


class Sandbox:
    """A pool of `size` fork servers of one interpreter. Make it with `Sandbox.open`, use it as a context manager."""

    def __init__(
        self, *, python: Path, jobs_file: Path, limits: Limits, size: int, start_timeout_s: float, tiers: Sequence[str]
    ) -> None:
        self.limits = limits
        self._python = python
        self._jobs_file = jobs_file
        self._size = size
        self._start_timeout_s = start_timeout_s
        self._tiers = tuple(tiers)
        self._unavailable: list[str] = []
        self._hello: dict[str, Any] = {}
        self._num_restarts = 0
        self._closed = False
        self._lock = threading.Lock()
        self._servers: set[_Server] = set()
        self._free: queue.LifoQueue[_Server | None] = queue.LifoQueue()
        # A server dies with the thread that spawned it (PR_SET_PDEATHSIG), so one long-lived thread spawns them all.
        self._spawner = ThreadPoolExecutor(1, thread_name_prefix="sandbox-spawner")

    @classmethod
    def open(
        cls,
        *,
        python: str | Path,
        jobs_file: str | Path | None = None,
        limits: Limits | None = None,
        size: int = 1,
        start_timeout_s: float = 60.0,
        tiers: Sequence[str] = TIERS,
    ) -> "Sandbox":
        """Start `size` servers with the best of `tiers` that works here.

        `jobs_file` defines `JOBS`; by default base_jobs.py, which needs pytest in that interpreter. Raises UserError
        for a missing interpreter and SandboxError when no server comes up.
        """
        path = Path(os.path.abspath(python))
        if not os.access(path, os.X_OK):
            raise UserError(f"there is no Python interpreter at {path}; run `make setup` or give another path")
        sandbox = cls(
            python=path,
            jobs_file=Path(jobs_file or _BASE_JOBS).resolve(),
            limits=limits or Limits(),
            size=size,
            start_timeout_s=start_timeout_s,
            tiers=tiers,
        )
        try:
            sandbox._start_pool()
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def _start_pool(self) -> None:
        self._free.put(self._start())  # the first one settles the tier
        with ThreadPoolExecutor(self._size) as pool:
            for server in pool.map(lambda _: self._start(), range(self._size - 1)):
                self._free.put(server)

    def _start(self) -> _Server:
        while True:
            server = self._spawner.submit(self._spawn, self._tiers[0]).result()
            try:
                server.greet(self._start_timeout_s)
                reason = server.hello.get("unavailable")
                if "error" in server.hello:
                    raise SandboxError(
                        f"{self._jobs_file.name} failed to load in {self._python}: {server.hello['error']}"
                    )
                if reason and len(self._tiers) == 1:
                    raise SandboxError(f"no isolation tier works on this machine: {[*self._unavailable, reason]}")
            except SandboxError:
                server.close()
                raise
            if not reason:
                break
            server.close()
            with self._lock:
                self._tiers = self._tiers[1:]
                self._unavailable.append(reason)
        with self._lock:
            self._hello = server.hello
            self._servers.add(server)
        return server

    def _spawn(self, tier: str) -> _Server:
        ours, theirs = socket.socketpair()
        log = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the server
        try:
            process = subprocess.Popen(
                [str(self._python), "-I", "-B", str(_FORK_SERVER), str(self._jobs_file), tier, os.path.expanduser("~")],
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=_ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            log.close()
            raise SandboxError(f"cannot start {self._python}: {error}") from error
        finally:
            theirs.close()
        return _Server(process, ours, log)

    def call(
        self, job: str, files: Mapping[str, str] | None = None, limits: Limits | None = None, **request: Any
    ) -> JobResult:
        """Run one job of the jobs file in a fresh fork with `files` in its private working folder.

        Thread-safe; waits for a free server. Raises WorkspaceError for files that are refused and SandboxError when
        the sandbox failed twice.
        """
        limits = limits or self.limits
        wire = {"job": job, "files": validate_files(files or {}), "limits": asdict(limits), "request": request}
        payload = json.dumps(wire).encode()
        failure: Exception | None = None
        for _attempt in range(2):
            server = self._take()
            try:
                header, body = server.exchange(payload, limits.wall_s + _GRACE_S)
            except (OSError, EOFError, ValueError) as error:
                failure = error
                self._discard(server)
                continue
            except BaseException:  # for example Ctrl-C: an answer may still be on its way
                self._discard(server)
                raise
            self._free.put(server)
            return _job_result(header, body)
        raise SandboxError(f"the fork server died twice on job {job!r}: {failure!r}")

    def _take(self) -> _Server:
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

    def _discard(self, server: _Server) -> None:
        with self._lock:
            self._servers.discard(server)
        server.close()
        self._free.put(None)  # a place to start a fresh one in

    def run_python(
        self, source: str, *, files: Mapping[str, str] | None = None, stdin: str = "", limits: Limits | None = None
    ) -> RunResult:
        """Run `source` as a program beside `files`."""
        return _run_result(self.call("run_python", files, limits, source=source, stdin=stdin))

    def run_pytest(
        self, files: Mapping[str, str], targets: Sequence[str], *, limits: Limits | None = None
    ) -> RunResult:
        """Run pytest on `targets`, `src/` importable; its report is the result's stdout."""
        return _run_result(self.call("run_pytest", files, limits, targets=list(targets)))

    def describe(self) -> dict[str, Any]:
        """What is enforced on this machine, to print at the start and to store with a run."""
        enforced = self._hello["enforced"]
        return {
            "tier": self._tiers[0],
            "no_network": "no_network" in enforced,
            "enforced": enforced,
            "not_enforced": [name for name in _CAPABILITIES if name not in enforced],
            "unavailable": self._unavailable,
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

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _job_result(header: dict[str, Any], body: bytes) -> JobResult:
    status, result, error = Status(header["status"]), None, None
    if status is Status.OK:
        try:
            message = json.loads(body)
            result, error = message.get("result"), message.get("error")
            status = Status.ERROR if "error" in message else Status.OK
        except (ValueError, RecursionError, AttributeError) as problem:  # forged or torn by the candidate
            status, error = Status.CRASHED, f"unreadable result: {type(problem).__name__}"
    elif status is Status.CRASHED:
        error = f"the process ended with exit code {header['exit_code']} and no result"
    else:
        error = f"killed at the limit: {status.value}"
    return JobResult(
        status=status,
        result=result,
        error=error,
        exit_code=header["exit_code"],
        stdout=header["stdout"],
        stderr=header["stderr"],
        truncated=header["truncated"],
        wall_s=header["wall_s"],
    )


def _run_result(job: JobResult) -> RunResult:
    """A program that ended by itself is OK or NONZERO, however it ended."""
    status, exit_code = job.status, job.exit_code
    if status is Status.OK and isinstance(job.result, dict) and type(job.result.get("exit_code")) is int:
        exit_code = job.result["exit_code"]
        status = Status.OK if exit_code == 0 else Status.NONZERO
    elif status is Status.CRASHED and exit_code is not None and exit_code >= 0:  # os._exit
        status = Status.OK if exit_code == 0 else Status.NONZERO
    return RunResult(
        status=status,
        exit_code=exit_code,
        stdout=job.stdout,
        stderr=job.stderr or (job.error or "" if status is Status.ERROR else ""),
        truncated=job.truncated,
        wall_s=job.wall_s,
    )
