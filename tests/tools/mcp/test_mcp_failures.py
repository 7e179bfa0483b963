"""Tools of MCP servers that are late, dead, crowded or break the protocol, and what is left of them at the end."""

import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from anyio.abc import ByteReceiveStream
from hypothesis import given
from hypothesis import strategies as st
from mcp_calls import HttpServer, call, descendants, plain, sandboxed
from waiting import free_port, wait_for

from agent_rl.config import MCPServerConfig
from agent_rl.errors import UserError
from agent_rl.sandbox.limits import Limits
from agent_rl.sandbox.sandbox import Sandbox
from agent_rl.tools.base import ToolResult
from agent_rl.tools.mcp import connection
from agent_rl.tools.mcp import transport as mcp_transport
from agent_rl.tools.mcp.budget import Budget
from agent_rl.tools.mcp.tools import MCPConnections
from agent_rl.tools.mcp.transport import JOBS, message_of, read_messages


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox.open(python=sys.executable, jobs=JOBS) as opened:
        yield opened


# ---------------------------------------------------------------- late, dead and misbehaving servers


def test_a_slow_call_hits_its_deadline_while_others_go_on(sandbox: Sandbox) -> None:
    with MCPConnections([sandboxed("everyday.py", timeout_s=2.5)], sandbox=sandbox) as connections:
        assert call(connections, "count").text == "1"
        with ThreadPoolExecutor(1) as pool:
            started = time.monotonic()
            slow = pool.submit(call, connections, "wait", seconds=60.0)
            assert all(call(connections, "add", a=i, b=1).text == str(i + 1) for i in range(20))
            assert not slow.done()
            assert slow.result() == ToolResult(text="error: wait: the server gave no answer within 2.5 s", ok=False)
        assert 2.5 <= time.monotonic() - started < 20.0
        time.sleep(0.3)
        assert call(connections, "count").text == "2", "a server that answers others is not started anew"


def test_a_server_that_dies_in_a_call_is_back_for_the_next_one(sandbox: Sandbox) -> None:
    with MCPConnections([sandboxed("everyday.py")], sandbox=sandbox) as connections:
        for _ in range(4):
            assert [call(connections, "count").text for _ in range(2)] == ["1", "2"]
            died = call(connections, "die")
            assert not died.ok and "ended before it answered" in died.text


def test_a_server_that_ended_between_two_calls_is_started_before_the_next(tmp_path: Path) -> None:
    log, before = tmp_path / "starts", descendants()
    with MCPConnections([plain("dying.py", str(log))]) as connections:
        (pid,) = descendants() - before
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not psutil.pid_exists(pid))
        time.sleep(0.2)
        call(connections, "fall")
    assert log.read_text().splitlines() == ["started", "started"]


def test_a_server_that_froze_is_replaced(sandbox: Sandbox) -> None:
    with MCPConnections([sandboxed("everyday.py", timeout_s=2.5)], sandbox=sandbox) as connections:
        assert call(connections, "count").text == "1"
        running = len(descendants())
        assert "no answer within 2.5 s" in call(connections, "freeze").text
        wait_for(lambda: call(connections, "count").text == "1", timeout_s=20.0)
        wait_for(lambda: len(descendants()) == running, timeout_s=20.0)


@pytest.mark.slow
def test_a_server_whose_time_in_the_sandbox_is_over_is_started_anew(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_transport, "LIMITS", Limits(wall_s=1.0, processes=64))
    with MCPConnections([sandboxed("everyday.py")], sandbox=sandbox) as connections:
        assert call(connections, "count").text == "1"
        time.sleep(1.2)
        assert call(connections, "count").text == "1"


def test_a_server_that_dies_at_every_call_gets_one_request_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_FIRST_WAIT_S", 60.0)  # longer than a slow machine takes to start it again
    monkeypatch.setattr(connection, "_LONGEST_WAIT_S", 60.0)
    log = tmp_path / "starts"
    with MCPConnections([plain("dying.py", str(log))]) as connections:
        texts = [call(connections, "fall").text for _ in range(20)]
    assert all("ended before it answered" in text for text in texts[:2])
    is_down = re.compile(r"error: fall: the server is down \(the connection ended\) and is not asked again for \d")
    assert all(is_down.match(text) for text in texts[2:])
    assert log.read_text().splitlines() == ["started", "started"]


def test_a_server_that_dies_is_asked_again_after_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_FIRST_WAIT_S", 0.0)
    log = tmp_path / "starts"
    with MCPConnections([plain("dying.py", str(log))]) as connections:
        texts = [call(connections, "fall").text for _ in range(3)]
    assert all("ended before it answered" in text for text in texts)
    assert log.read_text().splitlines() == ["started"] * 3


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (plain("silent.py", timeout_s=2.0), "handshake within 2 s; its last words: 'I say nothing'"),
        (sandboxed("silent.py", timeout_s=2.0), "handshake within 2 s; its last words: 'I say nothing'"),
        pytest.param(
            *(plain("babbling.py", timeout_s=20.0), "wrote more than 1000 messages before it answered"),
            marks=pytest.mark.slow,  # the SDK gives a child two seconds to end by itself
        ),
        (sandboxed("babbling.py", timeout_s=20.0), "wrote more than 1000 messages before it answered"),
        (sandboxed("helper.py"), "Connection closed"),
        (MCPServerConfig(command=("no-such-program",), sandbox=False), "No such file or directory: 'no-such-program'"),
        (MCPServerConfig(url="http://user:secret@127.0.0.1:1/mcp?key=secret"), r"\(http://127.0.0.1:1/mcp\) did not"),
    ],
    ids=["silent child", "silent", "babbling child", "babbling", "ends", "no program", "no server"],
)
def test_a_server_that_does_not_come_up_is_a_sentence(
    sandbox: Sandbox, config: MCPServerConfig, expected: str, capfd: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    with pytest.raises(UserError, match=r"tools.mcp\[0\] \(.*\) did not come up") as caught:
        MCPConnections([config], sandbox=sandbox).__enter__()
    caught.match(expected)
    assert "secret" not in str(caught.value)
    assert time.monotonic() - started < 30.0
    assert capfd.readouterr().err == "", "the progress display is there"


def test_what_the_sdk_logs_stays_off_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    for name in ("mcp.client.stdio", "client"):
        logging.getLogger(name).error("not for the terminal")
    logging.getLogger("another").error("printed")
    assert capsys.readouterr().err == "printed\n"


def test_a_traceback_at_the_start_is_reported(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    with pytest.raises(UserError, match="its last words: \"ModuleNotFoundError: No module named 'no_such_module'"):
        MCPConnections([MCPServerConfig(command=("python", str(tmp_path / "broken.py")))], sandbox=sandbox).__enter__()


@pytest.mark.slow
def test_an_http_server_that_was_started_again_is_found_again() -> None:
    url = f"http://127.0.0.1:{(port := free_port())}/mcp"
    with HttpServer(port):
        connections = MCPConnections([MCPServerConfig(url=url, timeout_s=5.0)]).__enter__()
        assert call(connections, "count").text == "1"
    assert not call(connections, "count").ok
    with closing(connections), HttpServer(port):
        wait_for(lambda: call(connections, "count").ok, timeout_s=20.0)


# ---------------------------------------------------------------- many calls, long and unreadable answers


def texts_of(connections: MCPConnections, name: str, num: int, **arguments: Any) -> list[str]:
    """What so many threads get."""
    with ThreadPoolExecutor(num) as pool:
        return [each.text for each in pool.map(lambda _: call(connections, name, **arguments), range(num))]


def test_a_server_that_answers_one_after_the_other_is_not_blamed_for_our_crowd(tmp_path: Path) -> None:
    log = tmp_path / "starts"
    with MCPConnections([plain("rude.py", str(log), timeout_s=2.5)]) as connections:
        started = time.monotonic()
        assert texts_of(connections, "slow", 64, seconds=0.06) == ["slept"] * 64
        assert time.monotonic() - started > 3.5, "the last ones waited longer than a server may take"
    assert log.read_text().splitlines() == ["started"]


def test_calls_that_a_busy_server_answers_late_do_not_end_it(tmp_path: Path) -> None:
    log = tmp_path / "starts"
    with MCPConnections([plain("rude.py", str(log), timeout_s=2.5)]) as connections:
        late = "error: slow: the server gave no answer within 2.5 s"
        assert sorted(texts_of(connections, "slow", 5, seconds=1.7)) == [late] * 4 + ["slept"]
        wait_for(lambda: call(connections, "slow", seconds=0).ok, timeout_s=20.0)
    assert log.read_text().splitlines() == ["started"]


def test_an_endless_answer_is_an_error_at_once_and_delays_no_other_call(tmp_path: Path) -> None:
    log = tmp_path / "starts"
    config = plain("rude.py", str(log), timeout_s=30.0)
    with MCPConnections([config, plain("everyday.py", include=("add",))]) as connections, ThreadPoolExecutor(1) as pool:
        started = time.monotonic()
        big = pool.submit(call, connections, "big", megabytes=60)
        waits = []
        while not big.done():
            asked = time.monotonic()
            assert call(connections, "add", a=1, b=2).text == "3"
            waits.append(time.monotonic() - asked)
        assert big.result() == ToolResult(text="error: big: the server's answer is longer than 8388608 bytes", ok=False)
        assert time.monotonic() - started < 25.0
        assert max(waits) < 5.0
        assert call(connections, "slow", seconds=0).text == "slept"
    assert log.read_text().splitlines() == ["started"]


def test_an_answer_without_measure_over_http_is_an_error_too() -> None:
    with HttpServer(port := free_port()):
        url = f"http://127.0.0.1:{port}/mcp"
        with MCPConnections([MCPServerConfig(url=url, timeout_s=20.0)]) as connections:
            assert call(connections, "count").text == "1"
            big = call(connections, "big", megabytes=9)
            assert not big.ok
            assert big.text.endswith("the server's answer is longer than 8388608 bytes")
            assert call(connections, "count").text == "2"


class Events(BaseHTTPRequestHandler):
    """Answers with events, as older servers do; its one tool gives a text of nine megabytes, or a short one."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        tool = {"name": "text", "inputSchema": {"type": "object", "properties": {"num": {"type": "integer"}}}}
        results = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "events", "version": "1"},
            },
            "tools/list": {"tools": [tool]},
        }
        if request["method"] == "tools/call":
            results["tools/call"] = {"content": [{"type": "text", "text": "x" * request["params"]["arguments"]["num"]}]}
        answer = {"error": {"code": -32601, "message": "unknown"}}
        if request["method"] in results:
            answer = {"result": results[request["method"]]}
        data = json.dumps({"jsonrpc": "2.0", "id": request.get("id"), **answer})
        self.send_response(200 if "id" in request else 202)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        if "id" in request:
            with suppress(ConnectionError):
                self.wfile.write(f"event: message\ndata: {data}\n\n".encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing to the terminal."""


def test_an_event_without_measure_fails_its_call_and_not_the_connection() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Events) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/mcp"
        with MCPConnections([MCPServerConfig(url=url, timeout_s=20.0)]) as connections:
            assert call(connections, "text", num=2_000_000).ok
            link = connections.tools[0]._server._link
            assert call(connections, "text", num=9_000_000).text.startswith("error: text: SSE stream failed: ")
            assert call(connections, "text", num=2).text == "xx"
            assert connections.tools[0]._server._link is link
        server.shutdown()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("broken", "the server's answer is no message: 1 validation error"),
        ("listed", "the server's answer is no message: "),
        ("odd", "1 validation error for CallToolResult"),
    ],
)
def test_an_answer_that_cannot_be_read_ends_its_call_at_once(tmp_path: Path, name: str, expected: str) -> None:
    with MCPConnections([plain("rude.py", os.devnull, timeout_s=30.0)]) as connections:
        started = time.monotonic()
        result = call(connections, name)
        assert time.monotonic() - started < 20.0
        assert not result.ok and result.text.startswith(f"error: {name}: {expected}")
        assert "\n" not in result.text and "http" not in result.text
        assert call(connections, "slow", seconds=0).text == "slept"


def answer(text: str) -> bytes:
    return f'{{"jsonrpc":"2.0","id":1,"result":{{"text":"{text}"}}}}'.encode()


class Parts(ByteReceiveStream):
    """A stream of bytes that come in these parts."""

    def __init__(self, parts: list[bytes]) -> None:
        self.parts = list(parts)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if not self.parts:
            raise anyio.EndOfStream
        return self.parts.pop(0)

    async def aclose(self) -> None:
        self.parts.clear()


def messages_in(parts: list[bytes]) -> list[Any]:
    found: list[Any] = []

    async def send(message: Any) -> None:
        found.append(message)

    anyio.run(read_messages, Parts(parts), Budget(), send)
    return found


@given(
    lines=st.lists(
        st.sampled_from([answer("a"), answer("ü"), b"", b"bla", b'{"id": 3, "result": x', b"\xff"]), max_size=5
    ),
    size=st.integers(1, 60),
)
def test_lines_are_the_same_however_they_are_cut_up(lines: list[bytes], size: int) -> None:
    data = b"".join(line + b"\n" for line in lines)
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    assert list(map(repr, messages_in(parts))) == [repr(message_of(line)) for line in lines]


def test_a_line_that_is_too_long_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_transport, "MAX_LINE_BYTES", 100)
    [error] = messages_in([answer("x" * 200)])
    assert (error.message.id, error.message.error.message) == (1, mcp_transport.TOO_LONG)
    _, message, error = messages_in([answer("x" * 200), b"x" * 500, b"x\n" + answer("a") + b"\n", b"y" * 101 + b"\n"])
    assert message.message.result == {"text": "a"}
    assert str(error) == mcp_transport.TOO_LONG


# ---------------------------------------------------------------- the end


def test_after_the_end_calls_fail_and_nothing_is_left(sandbox: Sandbox) -> None:
    before, threads = descendants(), threading.active_count()
    with MCPConnections([sandboxed("everyday.py"), plain("dying.py", os.devnull)], sandbox=sandbox) as connections:
        assert len(descendants()) > len(before) + 1
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(call, connections, "wait", seconds=60.0)
            time.sleep(0.1)
            connections.close()
            assert not waiting.result(5.0).ok
    assert call(connections, "add", a=1, b=2).text == "error: add: the connection to the server was closed"
    wait_for(lambda: descendants() == before)
    wait_for(lambda: threading.active_count() <= threads)


def test_nothing_is_left_after_ctrl_c(sandbox: Sandbox) -> None:
    before, threads = descendants(), threading.active_count()
    timer = threading.Timer(0.8, lambda: os.kill(os.getpid(), signal.SIGINT))
    both = [sandboxed("everyday.py"), plain("dying.py", os.devnull)]
    with pytest.raises(KeyboardInterrupt), MCPConnections(both, sandbox=sandbox) as connections:
        timer.start()
        call(connections, "wait", seconds=60.0)
    wait_for(lambda: descendants() == before)
    wait_for(lambda: threading.active_count() <= threads)
