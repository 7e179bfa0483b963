"""MCP servers that write without end, during a call and after it: ended with a sentence, and nobody else waits."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_calls import call

from agent_rl.config import MCPServerConfig
from agent_rl.sandbox.sandbox import Sandbox
from agent_rl.tools.mcp.budget import IDLE_MESSAGES, MAX_BYTES, MAX_MESSAGES, Budget, FloodError
from agent_rl.tools.mcp.tools import MCPConnections
from agent_rl.tools.mcp.transport import JOBS

NOTE = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}'
SERVER = """
import json, sys, time
def say(value):
    print(json.dumps(value), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    method, params = asked["method"], asked.get("params") or {}
    result = {}
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "s", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "t", "inputSchema": {"type": "object", "properties": {}}}]}
    elif method == "tools/call":
        honest = {"jsonrpc": "2.0", "id": asked["id"], "result": {"content": [{"type": "text", "text": "x"}]}}
        ANSWER
        continue
    say({"jsonrpc": "2.0", "id": asked["id"], "result": result})
"""
FLOODS = {
    "notifications": f"while True: sys.stdout.write({NOTE!r} + '\\n')",
    "requests": 'while True: sys.stdout.write(\'{"jsonrpc":"2.0","id":1,"method":"ping"}\\n\')',
    "empty lines": "while True: sys.stdout.write('\\n' * 10000)",
    "junk": "while True: sys.stdout.write('x' * 100 + '\\n')",
    "long lines": "while True: sys.stdout.write('\"' + 'x' * 8_000_000 + '\"\\n')",
    "UTF-16": "data = ('[\"\\\\\"\",' + '[],' * 1_390_000 + '0]').encode('utf-16-le') + b'\\n'\n"
    "        while True: sys.stdout.buffer.write(data)",
}


def server(folder: Path, answer: str, **options: Any) -> MCPServerConfig:
    path = folder / "server.py"
    path.write_text(SERVER.replace("ANSWER", answer))
    return MCPServerConfig(command=(sys.executable, str(path)), **{"sandbox": False, "timeout_s": 60.0, **options})


@contextmanager
def longest_stop() -> Iterator[Callable[[], float]]:
    """How long another thread had to wait for its turn, at most."""
    stops, is_over = [0.0], threading.Event()

    def watch() -> None:
        last = time.perf_counter()
        while not is_over.is_set():
            time.sleep(0.001)
            now = time.perf_counter()
            stops.append(now - last)
            last = now

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: max(stops)
    finally:
        is_over.set()
        thread.join()


def load_per_s() -> float:
    """The share of a core that this process takes."""
    before = time.process_time()
    time.sleep(1.0)
    return time.process_time() - before


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_in_a_call_ends_the_server_and_holds_up_nobody(tmp_path: Path, name: str) -> None:
    with MCPConnections([server(tmp_path, FLOODS[name])]) as connections:
        with longest_stop() as stop:
            started = time.monotonic()
            result = call(connections, "t")
            assert time.monotonic() - started < 30.0
        assert not result.ok and "it wrote more than" in result.text and "starts anew" in result.text
        assert stop() < 2.0  # 0.1 on a machine that does nothing else
        assert load_per_s() < 0.3


@pytest.mark.parametrize("is_sandboxed", [False, True])
def test_a_flood_after_a_call_ends_the_server_and_the_next_call_has_a_new_one(
    tmp_path: Path, is_sandboxed: bool
) -> None:
    flood = f"say(honest)\n        for n in range(3000): sys.stdout.write({NOTE!r} + '\\n')"
    config = server(tmp_path, flood, sandbox=is_sandboxed)
    with Sandbox.open(python=sys.executable, jobs=JOBS) as sandbox, MCPConnections([config], sandbox=sandbox) as opened:
        link = opened.tools[0]._server._link
        assert call(opened, "t").text == "x"
        time.sleep(0.5)
        assert load_per_s() < 0.3
        assert link.lost.is_set()
        assert "while no call waited" in link.budget.failure
        assert call(opened, "t").text == "x"


def test_a_server_that_reads_nothing_delays_no_deadline(tmp_path: Path) -> None:
    pings = (
        'for n in range(900): print(json.dumps({"jsonrpc": "2.0", "id": "x" * 400 + str(n), "method": "ping"}))\n'
        "        sys.stdout.flush(); time.sleep(60)"
    )
    with MCPConnections([server(tmp_path, pings, timeout_s=1.5)]) as connections:
        started = time.monotonic()
        assert "no answer within 1.5 s" in call(connections, "t").text
        assert time.monotonic() - started < 10.0


def test_what_an_everyday_server_says_beside_its_answers_is_no_flood(tmp_path: Path) -> None:
    busy = f"for n in range(400): print({NOTE!r})\n        say(honest)"
    with MCPConnections([server(tmp_path, busy)]) as connections:
        link = connections.tools[0]._server._link
        assert [call(connections, "t").text for _ in range(5)] == ["x"] * 5
        assert connections.tools[0]._server._link is link


class Floods(BaseHTTPRequestHandler):
    """Answers with events. `kind`: in the answer to a call, or on the stream of news, which may also end at once."""

    kind = ""
    num_gets = 0
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "s", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object", "properties": {}}}]},
            "tools/call": {"content": [{"type": "text", "text": "x"}]},
        }
        method = asked["method"]
        self.begin(200 if "id" in asked else 202, is_short="id" not in asked)
        if "id" not in asked:
            return
        if method == "tools/call" and self.kind == "call":
            self.flood(f"data: {NOTE}\n\n".encode() * 100)
        if method == "tools/call" and self.kind == "blank events":
            self.flood(b"\n" * 10_000)
        answer = {"result": results[method]} if method in results else {"error": {"code": -32601, "message": "x"}}
        self.flood(f"data: {json.dumps({'jsonrpc': '2.0', 'id': asked['id'], **answer})}\n\n".encode(), times=1)

    def do_GET(self) -> None:
        type(self).num_gets += 1
        self.begin(200)
        if self.kind == "news":
            self.flood(f"data: {NOTE}\n\n".encode() * 100)
        self.flood(b"retry: 0\ndata: \n\n", times=1)
        if self.kind != "no news":
            time.sleep(2.0)

    def begin(self, status: int, *, is_short: bool = False) -> None:
        self.send_response(status)
        self.send_header("content-type", "text/event-stream")
        self.send_header("mcp-session-id", "1")
        self.send_header("connection", "close")
        if is_short:
            self.send_header("content-length", "0")
        self.end_headers()
        self.close_connection = True

    def flood(self, data: bytes, times: int = 10**9) -> None:
        with suppress(OSError):
            for _ in range(times):
                self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Nothing to the terminal."""


@pytest.mark.parametrize("kind", ["call", "blank events", "news", "no news"])
def test_a_flood_of_events_over_http_ends_the_connection(kind: str) -> None:
    handler = type("Flooding", (Floods,), {"kind": kind})
    served = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    served.daemon_threads = True
    threading.Thread(target=served.serve_forever, args=[0.01], daemon=True).start()
    config = MCPServerConfig(url=f"http://127.0.0.1:{served.server_address[1]}/mcp", timeout_s=5.0)
    try:
        with MCPConnections([config]) as connections:
            link = connections.tools[0]._server._link
            if kind in ("call", "blank events"):
                result = call(connections, "t")
                assert not result.ok and "it wrote more than" in result.text
            deadline = time.monotonic() + 3.0
            while not link.lost.is_set() and time.monotonic() < deadline:
                time.sleep(0.05)
            assert link.lost.is_set() and "it wrote more than" in link.budget.failure
            assert handler.num_gets <= 2 * IDLE_MESSAGES
    finally:
        served.shutdown()
        served.server_close()


# ---------------------------------------------------------------- the budget


def taken(budget: Budget, num_bytes: int = 10) -> int:
    """How many messages can be taken, of ten thousand."""

    async def take() -> int:
        for n in range(10_000):
            try:
                await budget.take(num_bytes)
            except FloodError:
                return n
        return 10_000

    return anyio.run(take)


def test_a_budget_is_that_of_the_calls_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_pause(_seconds: float) -> None: ...

    monkeypatch.setattr("agent_rl.tools.mcp.budget.anyio.sleep", no_pause)
    now, ended = [0.0], []
    budget = Budget(lambda: ended.append(1), clock=lambda: now[0])
    with budget.call():
        pass
    assert taken(budget) == IDLE_MESSAGES and "no call waited" in budget.failure
    assert taken(budget) == 0 and ended == [1]
    budget = Budget(clock=lambda: now[0])
    with budget.call():
        assert taken(budget) == MAX_MESSAGES and "before it answered" in budget.failure
    budget = Budget(clock=lambda: now[0])
    assert taken(budget, MAX_BYTES // 7) == 7 and "MiB" in budget.failure
    budget, rest = Budget(clock=lambda: now[0]), 0
    for _ in range(1000):  # one message a second is no flood, for however long
        now[0] += 1.0
        rest += anyio.run(budget.take, 1000) is None
    assert rest == 1000 and not budget.failure
