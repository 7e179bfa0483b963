"""The host's end of one fork server: start it, exchange frames with it, kill it.

One thread at a time, but any number may call `ServerProcess.close`.
"""

import contextlib
import json
import os
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_rl.errors import SandboxError
from agent_rl.sandbox.guest.server import HASH_SEED, TIDY
from agent_rl.sandbox.guest.trees import remove_all
from agent_rl.sandbox.run_files import RunFiles

_PACKAGE = Path(__file__).resolve().parents[1]
_SEND_S = 10.0
_GUARD_S = 5.0
_PROGRAM = """import sys
sys.path.insert(0, sys.argv[1])
from agent_rl.sandbox.guest.server import main
del sys.path[0]
main(sys.argv[2], sys.argv[4:], sys.argv[3])
"""
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


class Channel:
    """Length-prefixed frames on a socket, with deadlines."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, payload: bytes, descriptors: Sequence[int]) -> None:
        socket.send_fds(self._connection, [struct.pack(">I", len(payload))], list(descriptors))
        self._connection.sendall(payload)

    def receive(self, deadline: float) -> bytes:
        """The next frame. Raises OSError (late) or EOFError (closed)."""
        size = struct.unpack(">I", self._exactly(4, deadline))[0]
        return self._exactly(size, deadline)

    def _exactly(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._connection.settimeout(max(0.001, deadline - time.monotonic()))
            chunk = self._connection.recv(min(size - len(data), 1 << 20))
            if not chunk:
                raise EOFError("the fork server closed its channel")
            data += chunk
        return bytes(data)

    def send_runs(self, runs: Sequence[RunFiles]) -> None:
        """Request runs; the headers come with `headers`."""
        self.set_timeout(_SEND_S)
        payload = json.dumps({"op": "run", "runs": [run.plan for run in runs]}).encode()
        self.send(payload, [fd for run in runs for fd in run.descriptors])

    def headers(self, timeout_s: float) -> list[dict[str, Any]]:
        """Results of the requested runs. OSError, EOFError, ValueError: the server is late, dead or confused."""
        return list(json.loads(self.receive(time.monotonic() + timeout_s)))

    def stop(self) -> list[dict[str, Any]]:
        """End a run that is talked to, and its headers."""
        self.set_timeout(_SEND_S)
        self._connection.sendall(b"\0")
        return self.headers(_SEND_S)

    def set_timeout(self, seconds: float) -> None:
        self._connection.settimeout(seconds)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # shutdown wakes a thread that waits in recv; close does not
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class ServerProcess:
    """A fork server and the channel to it."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, log: Any) -> None:
        self.process = process
        self.channel = channel
        self.hello: dict[str, Any] = {}
        self._log = log
        self._closing = threading.Lock()

    @classmethod
    def spawn(cls, python: Path, tier: str, jobs: Sequence[str], groups: str, hash_seed: int) -> "ServerProcess":
        """Start it. It dies with the calling thread, so call this from one that lives as long as the sandbox.

        Servers with the same `hash_seed` have sets of texts in the same order.
        """
        command = [str(python), "-s", "-P", "-B", "-c", _PROGRAM, str(_PACKAGE.parent), tier, groups, *jobs]
        with contextlib.ExitStack() as held:
            try:
                ours, theirs = socket.socketpair()
                held.callback(ours.close)
                with theirs:
                    log = held.enter_context(tempfile.TemporaryFile())
                    process = subprocess.Popen(
                        command,
                        stdin=theirs,
                        stdout=subprocess.DEVNULL,
                        stderr=log,
                        env={**_ENVIRONMENT, HASH_SEED: str(hash_seed)},
                        cwd="/",
                        start_new_session=True,
                    )
            except OSError as error:
                raise SandboxError(f"cannot start {python}: {error}") from error
            held.pop_all()  # they live as long as the server
        return cls(process, Channel(ours), log)

    def wait_for_hello(self, timeout_s: float) -> None:
        """Wait for the hello, which comes after the preload."""
        try:
            self.hello = json.loads(self.channel.receive(time.monotonic() + timeout_s))
        except (OSError, EOFError) as error:
            self._log.seek(0)
            log = self._log.read()[-500:].decode("utf-8", "replace")
            raise SandboxError(f"the fork server did not start: {error!r}; it printed: {log!r}") from None

    def is_tidy(self, timeout_s: float) -> bool:
        """Wait until nothing of the run that has ended is left; False where the server does not get there."""
        if not self.hello.get("scratch"):
            return True
        with contextlib.suppress(OSError, EOFError):
            return self.channel.receive(time.monotonic() + timeout_s) == TIDY
        return False

    def branch(self) -> Channel:
        """A fork of this server with a channel of its own."""
        ours, theirs = socket.socketpair()
        with theirs:
            self.channel.set_timeout(_SEND_S)
            self.channel.send(b'{"op": "branch"}', [theirs.fileno()])
        return Channel(ours)

    def close(self) -> None:
        """Kill the server; whatever it was running dies with it. Safe to call from many threads."""
        self.channel.close()
        with self._closing:
            scratch = self.hello.get("scratch")
            if scratch:  # a lower tier: our child is the guard of the server, which kills all below it
                self.process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(_GUARD_S)
            self.process.kill()
            self.process.wait()
            self._log.close()
            if scratch:
                _remove_when_free(scratch)


def _remove_when_free(scratch: str) -> None:
    """In the lower tiers the last processes of a killed server may still be dying."""
    deadline = time.monotonic() + 2.0
    while os.path.exists(scratch) and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            remove_all(scratch)
        time.sleep(0.005)
