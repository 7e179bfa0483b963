"""A router in front of fake vLLM servers, which keeps a session at one server; and the requests that it passed on."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fake_vllm_server import FakeVLLMServer


class FakeRouter:
    """`behind` are its servers; the sessions are dealt out to them in turn."""

    def __init__(self, *behind: FakeVLLMServer) -> None:
        self.behind = list(behind)
        self.health = 200
        self.passed: list[tuple[str, dict[str, str]]] = []
        """Path and headers, names in small letters, of every post."""
        self.failing: list[int] = []
        """Status of the next answers, which no server sees."""
        self.sessions: dict[str | None, FakeVLLMServer] = {}
        self.lock = threading.Lock()

    def server_of(self, session: str | None) -> FakeVLLMServer:
        with self.lock:
            return self.sessions.setdefault(session, self.behind[len(self.sessions) % len(self.behind)])


@contextmanager
def serving(router: FakeRouter, *, port: int = 0) -> Iterator[str]:
    """Its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Nothing to the terminal."""

        def do_GET(self) -> None:
            self.answer(router.health, b"{}")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            router.passed.append((self.path, headers))
            if router.failing:
                self.answer(router.failing.pop(), b'{"error": "no upstream"}')
                return
            chosen = router.server_of(headers.get("x-session-id"))
            try:
                upstream = http.client.HTTPConnection("127.0.0.1", chosen.port, timeout=20)
                upstream.request("POST", self.path, body, {"content-type": "application/json"})
                response = upstream.getresponse()
                self.answer(response.status, response.read())
            except OSError:
                self.answer(502, b'{"error": "bad gateway"}')

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
