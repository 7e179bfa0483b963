"""The host's end of a server in the sandbox: a port here, whose connections go through the run's standard streams.

What comes out of the sandbox is data from an opponent: frames are bounded and checked, and can reach nobody but the
connection they name. Nothing of HTTP is known here. Not here: what runs inside (`serve_jobs.py`).
"""

import base64
import binascii
import contextlib
import itertools
import json
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

from agent_rl.closing import Closing
from agent_rl.errors import UserError
from agent_rl.sandbox.session import Session, SessionEnded

CHUNK = 32 * 1024
MAX_CONNECTIONS = 64
_READ_S = 0.5
_SEND_S = 10.0
"""A client that takes no byte for so long is cut off."""
_LOG_CHARS = 2000
_MAX_FRAMES = 64
"""That wait for the sandbox; clients that send more are slowed."""


class TunnelServer(Closing):
    """A listening port for a session with `serve_jobs`. `close` ends both."""

    def __init__(self, session: Session, host: str, port: int, *, say: Callable[[str], None]) -> None:
        """Listen; `say` gets each line that the project prints. UserError for an address that cannot be had."""
        self._session, self._say = session, say
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family)
        except OSError as error:
            raise UserError(
                f"cannot listen on {host}:{port} ({error.strerror or error}); choose another --host or --port"
            ) from None
        self.port: int = self._listener.getsockname()[1]
        self.ended = threading.Event()
        """Set when the project's server is gone, or this was closed."""
        self._numbers = itertools.count(1)
        self._connections: dict[int, socket.socket] = {}
        self._guard = threading.Lock()
        self._frames: queue.Queue[dict[str, Any]] = queue.Queue(_MAX_FRAMES)
        targets = (self._accept, self._read, self._write)
        self._threads = [threading.Thread(target=each, daemon=True, name=f"tunnel{each.__name__}") for each in targets]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self.ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in `accept`
        self._listener.close()
        for number in list(self._connections):
            self._drop(number)
        for thread in self._threads:
            thread.join(_SEND_S)

    def _accept(self) -> None:
        while not self.ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._guard:
                is_full = len(self._connections) >= MAX_CONNECTIONS
            if is_full:
                connection.close()
                continue
            connection.settimeout(_SEND_S)
            number = next(self._numbers)
            with self._guard:
                self._connections[number] = connection
            self._send({"open": number})
            threading.Thread(target=self._pump, args=(number, connection), daemon=True).start()

    def _pump(self, number: int, connection: socket.socket) -> None:
        """From a client to the sandbox; a client may be silent for as long as it likes."""
        while not self.ended.is_set():
            try:
                data = connection.recv(CHUNK)
            except TimeoutError:
                continue
            except OSError:
                break
            if not data:
                break
            self._send({"to": number, "data": base64.b64encode(data).decode()})
        self._send({"close": number})
        self._drop(number)

    def _send(self, frame: dict[str, Any]) -> None:
        """Queue a frame, once there is room."""
        while not self.ended.is_set():
            with contextlib.suppress(queue.Full):
                return self._frames.put(frame, timeout=_READ_S)

    def _write(self) -> None:
        while not self.ended.is_set():
            try:
                frame = self._frames.get(timeout=_READ_S)
            except queue.Empty:
                continue
            try:
                self._session.write_line(json.dumps(frame), timeout_s=_SEND_S)
            except (SessionEnded, OSError):
                self.ended.set()
                return

    def _read(self) -> None:
        while not self.ended.is_set():
            try:
                line = self._session.read_line(_READ_S)
            except SessionEnded as end:
                if end.reason == "silent":
                    continue
                break
            except OSError:
                break
            self._take(line)
        self.ended.set()

    def _take(self, line: str) -> None:
        try:
            frame = json.loads(line)
            if "log" in frame:
                text = str(frame["log"])[:_LOG_CHARS]
                self._say("".join(char if char.isprintable() else " " for char in text))
            elif "from" in frame:
                self._deliver(int(frame["from"]), base64.b64decode(frame["data"], validate=True))
            elif "closed" in frame:
                self._drop(int(frame["closed"]))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error):
            return  # no frame of ours

    def _deliver(self, number: int, data: bytes) -> None:
        connection = self._connections.get(number)
        if connection is None:
            return
        try:
            connection.sendall(data)
        except OSError:
            self._drop(number)

    def _drop(self, number: int) -> None:
        with self._guard:
            connection = self._connections.pop(number, None)
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
