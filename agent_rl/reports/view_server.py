"""The local web server of `agent-rl view`: the page's files and JSON about one run, to be read and not changed.

No part of an address ever becomes part of a path: pages are looked up by name, steps and episodes by number.
Not here: what the answers say (`view_data.py`).
"""

import json
import re
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qs

from agent_rl.errors import ConfigError, DataError
from agent_rl.reports.view_data import RunSamples

_PAGES = {
    "/": ("view.html", "text/html"),
    "/view.css": ("view.css", "text/css"),
    "/view.js": ("view.js", "text/javascript"),
    "/view_tokens.js": ("view_tokens.js", "text/javascript"),
}
_HEADERS = {
    # Nothing but our own files is loaded or run, whatever a model wrote.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class ViewServer(ThreadingHTTPServer):
    """Serves `run`; `with ViewServer(run, host="127.0.0.1", port=0) as server: server.serve_forever()`.

    ConfigError where nothing can listen on that address.
    """

    daemon_threads = True

    def __init__(self, run: RunSamples, *, host: str, port: int) -> None:
        self.run = run
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot listen on --host {host} --port {port} ({error}); give another, port 0 takes a free one"
            ) from None

    @property
    def address(self) -> str:
        """Where a browser finds it."""
        host, port = self.server_address[:2]
        return f"http://{host}:{port}/"

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return ip_address(self.server_address[0]).is_loopback


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    timeout = 60

    def do_GET(self) -> None:
        with suppress(ConnectionError):  # the browser went on to something else
            if not self._is_for_us():
                return self._answer({"error": "this page is for browsers on its own machine"}, HTTPStatus.FORBIDDEN)
            path, _, query = self.path.partition("?")
            if path in _PAGES:
                name, kind = _PAGES[path]
                content = resources.files("agent_rl.reports").joinpath("static", name).read_bytes()
                return self._send(content, f"{kind}; charset=utf-8", HTTPStatus.OK)
            try:
                answer = self._ask(path.split("/")[1:], parse_qs(query))
            except DataError as error:
                return self._answer({"error": str(error)}, HTTPStatus.NOT_FOUND)
            if answer is None:
                return self._answer({"error": "there is no such page"}, HTTPStatus.NOT_FOUND)
            return self._answer(answer, HTTPStatus.OK)

    def log_message(self, *_args: Any) -> None:
        """Requests are not worth a line in the terminal."""

    def _is_for_us(self) -> bool:
        """A page of another site may point a name of its own at this machine; then it asks under that name."""
        name = re.sub(r":\d+$", "", self.headers.get("Host", "")).lower()
        return not self.server.is_local or name in ("localhost", self.server.server_address[0])

    def _ask(self, parts: list[str], query: dict[str, list[str]]) -> Any:
        """The answer to an address; None where there is none."""
        run = self.server.run
        match parts:
            case ["api", "run"]:
                return run.overview()
            case ["api", "steps", step] if _is_number(step):
                return run.episodes(int(step))
            case ["api", "steps", step, "search"] if _is_number(step):
                return run.search(int(step), query.get("text", [""])[0])
            case ["api", "steps", step, "episodes", index] if _is_number(step) and _is_number(index):
                return run.episode(int(step), int(index))
        return None

    def _answer(self, answer: Any, status: HTTPStatus) -> None:
        # Half a surrogate pair, which UTF-8 cannot hold, stays the escape that it was in the file.
        self._send(json.dumps(answer, allow_nan=False).encode(), "application/json", status)

    def _send(self, content: bytes, kind: str, status: HTTPStatus) -> None:
        self.send_response(status)
        for name, value in (_HEADERS | {"Content-Type": kind, "Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
