"""A server of the tests' own that takes the messages of `log.notify`."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-0123456789abcdef0123"
"""Part of its address."""


@contextmanager
def webhook(*, status: int = 200, delay_s: float = 0.0) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An address that takes messages, and what it got."""
    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            time.sleep(delay_s)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hooks/T000/{KEY}", got
    finally:
        server.shutdown()
        server.server_close()
