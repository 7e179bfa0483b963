"""The local web server of `agent-rl view`: the page's files and JSON about runs, read-only.

Every address starts with a random key made at the start, because other users of the machine can reach the port. No
part of an address ever becomes part of a path: pages and sets are looked up by name, runs and episodes by number. Not
here: the content of the answers (`data.py`).
"""

import json
import re
import secrets
import socket
import traceback
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qs

from agent_rl.errors import ConfigError, DataError
from agent_rl.reports.view.runs import ViewedRuns

SCRIPTS = (
    "view_tokens.js",
    "view_messages.js",
    "view_source.js",
    "view_address.js",
    "view_list.js",
    "view_curve.js",
    "view_episode.js",
    "view.js",
)
"""In the order in which the page loads them."""
_PAGES = {
    "": ("view.html", "text/html"),
    "view.css": ("view.css", "text/css"),
    **{name: (name, "text/javascript") for name in SCRIPTS},
}
_HEADERS = {
    # Nothing but our own files is loaded or run, whatever a model wrote.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

_Content = tuple[bytes, str, HTTPStatus]
"""Body, content type and status."""


class ViewServer(ThreadingHTTPServer):
    """Serves `runs`; `with ViewServer(runs, host="127.0.0.1", port=0) as server: server.serve_forever()`.

    ConfigError where nothing can listen on that address.
    """

    daemon_threads = True

    def __init__(self, runs: ViewedRuns, *, host: str, port: int) -> None:
        self.runs = runs
        self.key = secrets.token_urlsafe(12)
        self.names = {"localhost", host.lower(), socket.gethostname().lower()}
        """Names of this machine."""
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot listen on --host {host} --port {port} ({error}); give another, port 0 takes a free one"
            ) from None

    @property
    def address(self) -> str:
        """The URL of the page."""
        host, port = self.server_address[:2]
        return f"http://{host}:{port}/{self.key}/"


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    timeout = 60

    def do_GET(self) -> None:
        with suppress(ConnectionError):  # the browser went on to something else
            try:
                content, kind, status = self._content()
            except DataError as error:
                content, kind, status = _json({"error": str(error)}, HTTPStatus.NOT_FOUND)
            except Exception as error:  # the boundary to the browser, which waits for an answer whatever happened
                traceback.print_exc()
                sentence = f"agent-rl view failed at this ({type(error).__name__}: {error}); its terminal says more"
                content, kind, status = _json({"error": sentence}, HTTPStatus.INTERNAL_SERVER_ERROR)
            self.send_response(status)
            for name, value in (_HEADERS | {"Content-Type": kind, "Content-Length": str(len(content))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_args: Any) -> None:
        """No line in the terminal per request."""

    def _is_for_us(self) -> bool:
        """Against DNS rebinding: a page of another site may point its name at this machine.

        Its requests carry that name; an address in numbers cannot be rebound.
        """
        name = re.sub(r":\d+$", "", self.headers.get("Host", "")).lower()
        with suppress(ValueError):
            ip_address(name.strip("[]"))
            return True
        return name in self.server.names

    def _content(self) -> _Content:
        if not self._is_for_us():
            return _json({"error": "this server does not go by that name"}, HTTPStatus.FORBIDDEN)
        path, _, query = self.path.partition("?")
        key, *parts = path.removeprefix("/").split("/")
        if not secrets.compare_digest(key.encode(), self.server.key.encode()):
            return _json({"error": "take the whole address that agent-rl view printed"}, HTTPStatus.FORBIDDEN)
        if len(parts) == 1 and parts[0] in _PAGES:
            name, kind = _PAGES[parts[0]]
            return static_file(name), f"{kind}; charset=utf-8", HTTPStatus.OK
        answer = self._ask(parts, parse_qs(query))
        if answer is None:
            return _json({"error": "there is no such page"}, HTTPStatus.NOT_FOUND)
        return _json(answer, HTTPStatus.OK)

    def _ask(self, parts: list[str], query: dict[str, list[str]]) -> Any:
        """The answer to an address; None where there is none."""
        runs, text = self.server.runs, query.get("text", [""])[0]
        match parts:
            case ["api", "runs"]:
                return runs.overview()
            case ["api", "tasks"]:
                return runs.of_task(text)
            case ["api", "runs", run, name] if _is_number(run):
                return runs.run(int(run)).episodes(name)
            case ["api", "runs", run, name, "search"] if _is_number(run):
                return runs.run(int(run)).search(name, text)
            case ["api", "runs", run, name, "episodes", index] if _is_number(run) and _is_number(index):
                return runs.run(int(run)).episode(name, int(index))
        return None


def static_file(name: str) -> bytes:
    """A file of the page."""
    return resources.files("agent_rl.reports.view").joinpath("static", name).read_bytes()


def _json(answer: Any, status: HTTPStatus) -> _Content:
    # Half a surrogate pair, which UTF-8 cannot hold, stays the escape that it was in the file.
    return json.dumps(answer, allow_nan=False).encode(), "application/json", status


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
