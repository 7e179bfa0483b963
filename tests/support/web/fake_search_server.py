"""A fake search provider for tests: a threaded HTTP server that answers as configured and records requests.

It misbehaves on demand: late, broken off, dripping, with any status, headers and bytes.
"""

import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What one request gets."""

    status: int = 200
    body: Any = field(default_factory=lambda: {"results": []})
    """Bytes as they are, anything else as JSON."""
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    """Before the status line."""
    drip_s: float = 0.0
    """Before each byte of the body."""
    header_drip_s: float = 0.0
    """Before each byte of a header that goes in front of all others."""
    is_drop: bool = False
    """Break the connection off without an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What came: header names in lower case, JSON of the body (None without one)."""

    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    body: Any
    at_s: float


class FakeSearchServer:
    """Use as a context manager. `replies` go out in order, then the results of `answer`."""

    def __init__(self) -> None:
        self.replies: deque[Reply] = deque()
        self.answer: Callable[[Request], Reply] = lambda _request: Reply()
        self.requests: list[Request] = []
        self.lock = threading.Lock()
        self.release = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "FakeSearchServer":
        fake = self

        class Handler(_Handler):
            state = fake

        self._server = _Quiet(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()

    def reply_to(self, request: Request) -> Reply:
        with self.lock:
            self.requests.append(request)
            if self.replies:
                return self.replies.popleft()
        return self.answer(request)


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    state: FakeSearchServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing to the terminal."""

    def do_GET(self) -> None:
        self.handle_one()

    def do_POST(self) -> None:
        self.handle_one()

    def handle_one(self) -> None:
        parts = urlsplit(self.path)
        text = self.rfile.read(int(self.headers.get("content-length", 0)))
        reply = self.state.reply_to(
            Request(
                method=self.command,
                path=parts.path,
                params=dict(parse_qsl(parts.query)),
                headers={name.lower(): value for name, value in self.headers.items()},
                body=json.loads(text) if text else None,
                at_s=time.monotonic(),
            )
        )
        self.state.release.wait(reply.delay_s)
        if reply.is_drop:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        self.send_response(reply.status)
        if reply.header_drip_s:
            self.flush_headers()
            self.drip(b"x-slow: " + b"y" * 200 + b"\r\n", reply.header_drip_s)
        for name, value in {"content-length": str(len(body)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if not reply.drip_s:
            self.wfile.write(body)
            return
        self.drip(body, reply.drip_s)

    def drip(self, data: bytes, every_s: float) -> None:
        for byte in data:
            self.state.release.wait(every_s)
            self.wfile.write(bytes([byte]))
