"""Start vLLM servers, wait until they answer, restart those that die, and end all of them.

Every server runs under a guard (`launch_guard.py`) in a process group of its own; what it prints goes to a file.
Not here: flags and environment of a server (`launch_plan.py`), the command line (`scripts/commands/serve_vllm.py`).
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

from agent_rl.errors import UserError
from agent_rl.inference.vllm.server import launch_guard
from agent_rl.inference.vllm.server.launch_plan import ServerPlan

MAX_DEATHS = 4
WITHIN_S = 900.0
"""A server that dies more than `MAX_DEATHS` times in this span is not restarted."""
FIRST_DELAY_S = 1.0
"""The wait before a restart, which doubles with every death."""
_POLL_S = 0.25
_ANSWER_S = 5.0
_TAIL_LINES = 6
_TAIL_BYTES = 200_000
_ERROR = re.compile(r"\b[A-Z]\w*(Error|Exception): ")
Say = Callable[[str], None]


class ServerSupervisor:
    """The servers of one launcher. Used by one thread at a time; `close` ends them all."""

    def __init__(self, plans: Sequence[ServerPlan], *, say: Say = print) -> None:
        """Starts nothing."""
        self._servers = [_Server(plan) for plan in plans]
        self._say = say

    def start(self, *, timeout_s: float) -> None:
        """Start all and wait until all answer. UserError, with the end of its log, for one that does not."""
        deadline = time.monotonic() + timeout_s
        for server in self._servers:
            server.spawn()
        while not all(server.is_up for server in self._servers):
            for server in self._servers:
                if server.has_ended():
                    raise UserError(f"the server on port {server.plan.port} did not start; {server.log_excerpt()}")
                self._report_if_up(server)
            if time.monotonic() > deadline:
                late = next(server for server in self._servers if not server.is_up)
                raise UserError(f"{late.plan.address} did not answer within {timeout_s:g} s; {late.log_excerpt()}")
            time.sleep(_POLL_S)

    def watch(self, stop: threading.Event) -> None:
        """Restart servers that die, until `stop` is set.

        A server that dies again and again is reported and not restarted; UserError when none is left.
        """
        while not stop.wait(_POLL_S):
            for server in list(self._servers):
                if server.has_ended():
                    self._handle_death(server)
                elif server.process is None and time.monotonic() >= server.next_start:
                    server.spawn()
                self._report_if_up(server)

    def close(self) -> None:
        """End all servers and everything that they started."""
        running = [server.process for server in self._servers if server.process is not None]
        for process in running:
            process.stdin.close()  # the signal to the guard
        deadline = time.monotonic() + launch_guard.GRACE_S + 2.0
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            _kill_group(process)
        for server in self._servers:
            server.process = None

    def _report_if_up(self, server: "_Server") -> None:
        if server.process is not None and not server.is_up and server.answers():
            server.is_up = True
            where = f"GPU {', '.join(server.plan.devices)}" if server.plan.devices else "CPU"
            self._say(f"{server.plan.address} answers ({where}, log in {server.plan.log_path})")

    def _handle_death(self, server: "_Server") -> None:
        delay_s = server.record_death()
        if delay_s is not None:
            log_path = server.plan.log_path
            self._say(f"{server.plan.address} died; it is started again in {delay_s:g} s (log in {log_path})")
            return
        self._servers.remove(server)
        failure = (
            f"the server on port {server.plan.port} died {MAX_DEATHS + 1} times within {WITHIN_S:g} s and is not "
            f"restarted; {len(self._servers)} still run; {server.log_excerpt()}"
        )
        if not self._servers:
            raise UserError(failure)
        self._say(failure)


class _Server:
    """One server: its process, when it died, whether it answered since."""

    def __init__(self, plan: ServerPlan) -> None:
        self.plan = plan
        self.process: subprocess.Popen[bytes] | None = None
        self.is_up = False
        self.next_start = 0.0
        self._deaths: list[float] = []
        self._log_start = 0

    def spawn(self) -> None:
        path = self.plan.log_path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as log:
                self._log_start = log.tell()
                self.process = subprocess.Popen(
                    [sys.executable, "-I", "-S", launch_guard.__file__, *self.plan.command],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=dict(self.plan.environment),
                    start_new_session=True,
                )
        except OSError as error:
            raise UserError(f"{path} cannot be written ({error.strerror}); give another --log-dir") from None

    def has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.plan.address}/health", timeout=_ANSWER_S, trust_env=False).is_success
        except httpx.HTTPError:
            return False

    def record_death(self) -> float | None:
        """Record a death; the wait before the next start, or None if there were too many."""
        _kill_group(self.process)
        self.process, self.is_up = None, False
        now = time.monotonic()
        self._deaths = [*(then for then in self._deaths if now - then < WITHIN_S), now]
        if len(self._deaths) > MAX_DEATHS:
            return None
        delay_s = FIRST_DELAY_S * 2 ** (len(self._deaths) - 1)
        self.next_start = now + delay_s
        return delay_s

    def log_excerpt(self) -> str:
        """The first error in the log since the last start, the cause of the others, and the end of the log."""
        text = _read_tail(self.plan.log_path, self._log_start)
        lines = [line for line in text.splitlines() if line.strip()]
        causes = [line for line in lines[:-_TAIL_LINES] if _ERROR.search(line)][:1]
        return "\n".join([f"from {self.plan.log_path}:", *(f"  {line}" for line in causes + lines[-_TAIL_LINES:])])


def _read_tail(path: Path, start: int) -> str:
    with path.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(start, size - _TAIL_BYTES))
        return log.read().decode("utf-8", "replace")


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill the rest of a guard's group, and the guard."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.stdin.close()
    process.wait()
