"""What tools, MCP servers and search providers send: bounded in size, time and memory, and without the user's keys."""

import base64
import gzip
import json
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from cpu_time import cpu_s
from fake_search_server import FakeSearchServer, Reply, Request
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.agent.messages import ToolCall
from agent_rl.config import MCPServerConfig
from agent_rl.config.tools import SearchToolConfig
from agent_rl.errors import AgentRLError, ConfigError, ServiceError, UserError
from agent_rl.redacted import Secrets, redacted
from agent_rl.tools.base import MAX_TEXT_CHARS, BaseTool, ToolRegistry, ToolResult
from agent_rl.tools.mcp.tools import MAX_ERROR_CHARS, MAX_RESULT_CHARS, MCPConnections
from agent_rl.tools.mcp.transport import MAX_LINE_BYTES, message_of, read_program
from agent_rl.tools.web_search_tool import WebSearch

MAX_S, MAX_BYTES = 0.1, 50 * 2**20


@dataclass
class Talkative(BaseTool):
    text: str
    is_raised: bool = False
    name = "talk"
    description = ""

    def __post_init__(self) -> None:
        self.parameters: dict[str, Any] = {"type": "object", "properties": {}}

    def __call__(self, **arguments: Any) -> ToolResult:
        if self.is_raised:
            raise ValueError(self.text)
        return ToolResult(text=self.text)


@pytest.mark.parametrize("is_raised", [False, True])
@pytest.mark.parametrize("text", ["x" * 4_000_000, "\x1b[31m" * 800_000, "\x00" * 4_000_000, "a\n" * 2_000_000])
def test_no_tool_fills_a_context(text: str, is_raised: bool) -> None:
    def run() -> None:
        result = ToolRegistry([Talkative(text, is_raised)]).run(ToolCall(name="talk", arguments={}))
        assert len(result.text) < MAX_TEXT_CHARS + 100

    assert cpu_s(run, 1.0) < 1.0


def test_an_answer_at_the_limit_comes_whole() -> None:
    text = "x" * MAX_TEXT_CHARS
    assert ToolRegistry([Talkative(text)]).run(ToolCall(name="talk", arguments={})).text == text


# ---------------------------------------------------------------- MCP

SERVER = """
import json, sys
def say(value):
    print(json.dumps(value), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    method, params = asked["method"], asked.get("params") or {}
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "s", "version": "1"}}
    elif method == "tools/list":
        result = TOOLS
    elif method == "tools/call":
        ANSWER
        continue
    else:
        result = {}
    say({"jsonrpc": "2.0", "id": asked["id"], "result": result})
"""
TOOL = {"name": "t", "description": "d", "inputSchema": {"type": "object", "properties": {}}}
ONE = repr({"tools": [TOOL]})


def server(folder: Path, tools: str = ONE, answer: str = "pass", **options: Any) -> MCPServerConfig:
    path = folder / "server.py"
    path.write_text(SERVER.replace("TOOLS", tools).replace("ANSWER", answer))
    command = (sys.executable, str(path), *options.pop("arguments", ()))
    return MCPServerConfig(command=command, sandbox=False, timeout_s=options.pop("timeout_s", 2.0), **options)


LISTS = {
    "a long description": "{'tools': [{**TOOL, 'description': 'x' * 100_000}]}".replace("TOOL", repr(TOOL)),
    "a large schema": "{'tools': [{**TOOL, 'inputSchema': {'type': 'object', 'properties': "
    "{str(n): {'type': 'string'} for n in range(5000)}}}]}".replace("TOOL", repr(TOOL)),
    "many tools": "{'tools': [{**TOOL, 'name': f't{n}'} for n in range(200)]}".replace("TOOL", repr(TOOL)),
    "very many tools": "{'tools': [{**TOOL, 'name': f't{n}'} for n in range(10_000)]}".replace("TOOL", repr(TOOL)),
    "endless pages": "{'tools': [{**TOOL, 'name': 'x', 'description': 'x' * 1_000_000}], 'nextCursor': 'x'}".replace(
        "TOOL", repr(TOOL)
    ),
    "a name without end": "{'tools': [{**TOOL, 'name': 'x' * 1_000_000}]}".replace("TOOL", repr(TOOL)),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_tools_that_would_fill_every_prompt_is_refused(tmp_path: Path, name: str) -> None:
    with (
        pytest.raises(UserError, match=r"\A[^\n]{20,1500}\Z"),
        MCPConnections([server(tmp_path, LISTS[name], timeout_s=20.0)]),
    ):
        pass


def test_include_takes_one_of_many_tools(tmp_path: Path) -> None:
    with MCPConnections([server(tmp_path, LISTS["many tools"], include=("t7",))]) as connections:
        assert [tool.name for tool in connections.tools] == ["t7"]


ANSWERS = {
    "a long error": "say({'jsonrpc': '2.0', 'id': asked['id'], 'error': {'code': 1, 'message': 'x' * 3_000_000}})",
    "a long text": "say({'jsonrpc': '2.0', 'id': asked['id'], 'result': {'content': "
    "[{'type': 'text', 'text': 'x' * 3_000_000}]}})",
    "a long error result": "say({'jsonrpc': '2.0', 'id': asked['id'], 'result': {'isError': True, 'content': "
    "[{'type': 'text', 'text': 'x' * 3_000_000}]}})",
    "many parts": "say({'jsonrpc': '2.0', 'id': asked['id'], 'result': {'content': "
    "[{'type': 'text', 'text': 'x'}] * 100_000}})",
    "a long wrong type": "say({'jsonrpc': '2.0', 'id': asked['id'], 'result': {'content': 'x' * 3_000_000}})",
    "an id as text": "say({'jsonrpc': '2.0', 'id': str(asked['id']), 'result': {'content': "
    "[{'type': 'text', 'text': 'FORGED'}]}})",
    "another id": "say({'jsonrpc': '2.0', 'id': asked['id'] + 1, 'result': {'content': "
    "[{'type': 'text', 'text': 'FORGED'}]}})",
    "empty lists": 'print(\'{"jsonrpc": "2.0", "id": %d, "result": {"x": [\' % asked[\'id\'] + \'[],\' * 1_500_000 '
    "+ '[]]}}', flush=True)",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_no_answer_of_a_server_fills_a_context_or_comes_under_a_wrong_id(tmp_path: Path, name: str) -> None:
    with MCPConnections([server(tmp_path, answer=ANSWERS[name])]) as connections:
        result = ToolRegistry(connections.tools).run(ToolCall(name="t", arguments={}))
    assert "FORGED" not in result.text
    assert len(result.text) <= MAX_RESULT_CHARS + 100
    assert result.ok == (name == "a long text")
    if "error" in name and "result" not in name:
        assert len(result.text) < MAX_ERROR_CHARS + 100


SCHEMAS = {
    "a slow pattern": ({"properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}}, "a" * 40 + "!"),
    "references that double": (
        {
            "$defs": {
                **{f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)},
                "d40": {"type": "string"},
            },
            "properties": {"x": {"$ref": "#/$defs/d0"}},
        },
        5,
    ),
}
CALLS_A_TOOL = """
import sys
from agent_rl.agent.messages import ToolCall
from agent_rl.config import MCPServerConfig
from agent_rl.tools.base import ToolRegistry
from agent_rl.tools.mcp.tools import MCPConnections
config = MCPServerConfig(command=(sys.executable, sys.argv[1]), sandbox=False, timeout_s=5.0)
with MCPConnections([config]) as connections:
    for _ in range(2):
        print(ToolRegistry(connections.tools).run(ToolCall(name="t", arguments={})).text)
"""


@pytest.mark.parametrize("name", SCHEMAS)
def test_no_schema_of_a_server_for_its_answers_is_computed_with(tmp_path: Path, name: str) -> None:
    schema, value = SCHEMAS[name]
    tools = repr({"tools": [{**TOOL, "outputSchema": {"type": "object", **schema}}]})
    result = {"content": [{"type": "text", "text": "seen"}], "structuredContent": {"x": value}}
    answer = f"say({{'jsonrpc': '2.0', 'id': asked['id'], 'result': {result!r}}})"
    server(tmp_path, tools, answer)
    command = [sys.executable, "-c", CALLS_A_TOOL, str(tmp_path / "server.py")]  # a pattern would hold this process
    assert subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout == "seen\nseen\n"


def test_a_server_that_repeats_its_keys_puts_them_into_no_transcript(tmp_path: Path) -> None:
    answer = (
        "say({'jsonrpc': '2.0', 'id': asked['id'], 'result': {'content': "
        "[{'type': 'text', 'text': ' '.join(sys.argv[1:])}]}})"
    )
    arguments = ("--api-key", "k-73517-secret", "--token=t-99931-secret", "--depth", "advanced")
    with MCPConnections([server(tmp_path, answer=answer, arguments=arguments)]) as connections:
        text = ToolRegistry(connections.tools).run(ToolCall(name="t", arguments={})).text
    assert "73517" not in text and "99931" not in text and "advanced" in text


@pytest.mark.parametrize("kind", ["link", "link to a folder's file", "pipe"])
def test_what_lies_elsewhere_does_not_come_into_the_sandbox(tmp_path: Path, kind: str) -> None:
    import os

    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "server.py").write_text("pass")
    (folder / "own.txt").write_text("own")
    (folder / "inside.txt").symlink_to("own.txt")
    assert set(read_program(("python", str(folder / "server.py")), "here").files) == {
        "server.py",
        "own.txt",
        "inside.txt",
    }
    if kind == "pipe":
        os.mkfifo(folder / "pipe")
    elif kind == "link":
        (folder / "note.txt").symlink_to("../secret.txt")
    else:
        (folder / "data").mkdir()
        (folder / "data" / "note.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(ConfigError, match="does not fit into the sandbox"):
        read_program(("python", str(folder / "server.py")), "here")


HEAD, TAIL = b'{"jsonrpc": "2.0", "id": 1, "result": {"content": ', b"}}"
LINES = {
    "empty lists": HEAD + b"[" + b"[]," * ((MAX_LINE_BYTES - 100) // 3) + b"[]]" + TAIL,
    "nested lists": HEAD + b"[" * (MAX_LINE_BYTES // 2) + b"]" * (MAX_LINE_BYTES // 2 - 100) + TAIL,
    "numbers": HEAD + b"[" + b"1," * ((MAX_LINE_BYTES - 100) // 2) + b"1]" + TAIL,
    "digits": HEAD + b"9" * (MAX_LINE_BYTES - 100) + TAIL,
    "keys": HEAD + b"{" + b'"a":1,' * ((MAX_LINE_BYTES - 100) // 6) + b'"a":1}' + TAIL,
    "a text": HEAD + b'"' + b"x" * (MAX_LINE_BYTES - 100) + b'"' + TAIL,
    "escapes": HEAD + b'"' + b"\\u00e9" * ((MAX_LINE_BYTES - 100) // 6) + b'"' + TAIL,
    "quotes": HEAD + b'"' + b'\\"' * ((MAX_LINE_BYTES - 100) // 2) + b'"' + TAIL,
    "blanks": b" " * (MAX_LINE_BYTES - 100) + HEAD + b"1" + TAIL,
    "no message": b"\xff" * MAX_LINE_BYTES,
    "an open text": HEAD + b'"' + b"\\" * (MAX_LINE_BYTES - 100),
    "parts": HEAD + b"[" + b'{"type":"text","text":"x"},' * 10_000 + b'{"type":"text","text":"x"}]' + TAIL,
}


@pytest.mark.parametrize("name", LINES)
def test_no_line_holds_up_the_process(name: str) -> None:
    line = LINES[name]
    message_of(line)
    started = time.perf_counter()
    message_of(line)
    seconds = time.perf_counter() - started
    tracemalloc.start()
    message_of(line)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(line) * 2 + MAX_BYTES, peak
    assert seconds < 10 * MAX_S, seconds  # the benchmark measures; this is for hangs


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400) | st.text(max_size=200).map(lambda text: json.dumps(text).encode()))
def test_any_line_is_a_message_or_a_reason(line: bytes) -> None:
    assert message_of(line) is not None


# ---------------------------------------------------------------- search


@pytest.fixture
def provider() -> Iterator[FakeSearchServer]:
    with FakeSearchServer() as opened:
        yield opened


def search(provider: FakeSearchServer, **options: Any) -> WebSearch:
    address = provider.address + options.pop("path", "")
    config = SearchToolConfig(provider="own", endpoint=address, max_retries=0, timeout_s=20.0, **options)
    return WebSearch(config, sleep=lambda _s: None)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "x"])
def test_a_packed_answer_is_refused_unread(provider: FakeSearchServer, coding: str) -> None:
    bomb = gzip.compress(b'{"results": [' + b" " * 200_000_000 + b"]}")
    provider.replies.append(Reply(body=bomb, headers={"content-encoding": coding}))
    tracemalloc.start()
    with pytest.raises(ServiceError, match="packed"):
        search(provider)("q")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MAX_BYTES
    assert provider.requests[0].headers["accept-encoding"] == "identity"


BODIES = {
    "empty lists": b'{"results": [' + b"[]," * 1_200_000 + b"[]]}",
    "deep": b"[" * 2_000_000,
    "digits": b'{"results": ' + b"9" * 3_900_000 + b"}",
    "numbers": b'{"results": [' + b"1," * 1_900_000 + b"1]}",
    "too long": b'{"results": ["' + b"x" * 4_100_000 + b'"]}',
    "no end": b'{"results": ["' + b"\\" * 3_900_000,
}


@pytest.mark.parametrize("name", BODIES)
def test_no_body_holds_up_the_process(provider: FakeSearchServer, name: str) -> None:
    provider.replies.append(Reply(body=BODIES[name]))
    with pytest.raises(ServiceError, match=r"\A[^\n]{10,300}\Z"):
        search(provider)("q")


KEY, PASSWORD = "sk-live-83jf72hd91+/=", "hunter2hunter2"
FORMS = (KEY, quote(KEY), KEY[::-1], KEY.upper(), KEY.encode().hex(), base64.b64encode(KEY.encode()).decode())


def _echo(request: Request) -> Reply:
    parts = [json.dumps(request.body), request.path, json.dumps(request.params), json.dumps(request.headers)]
    forms = [
        *FORMS,
        base64.b64encode(b"user:" + KEY.encode()).decode(),
        base64.b64encode(f"me:{PASSWORD}".encode()).decode(),
    ]
    text = " ".join([*parts, *forms])
    return Reply(body={"results": [{"title": text, "url": f"http://h/?{text}", "content": text}]})


@pytest.mark.parametrize("place", ["default_params", "query", "user", "nested"])
def test_no_key_of_the_settings_comes_back(provider: FakeSearchServer, place: str) -> None:
    provider.answer = _echo
    options: dict[str, Any] = {"max_results": 1}
    if place == "default_params":
        options["default_params"] = {"api_key": KEY, "search_depth": "advanced"}
    elif place == "nested":
        options["default_params"] = {"auth": {"token": KEY}, "tags": ["a", KEY]}
    elif place == "query":
        options["path"] = f"/search?key={quote(KEY, safe='')}&depth=advanced"
    finder = search(provider, **options)
    if place == "user":
        finder = WebSearch(
            SearchToolConfig(
                provider="own",
                endpoint=provider.address.replace("//", f"//me:{quote(KEY, safe='')}@"),
                max_retries=0,
                max_results=1,
            )
        )
    passage = finder("q")[0]
    for text in (passage.title, passage.text, passage.url or ""):
        for form in (
            KEY,
            quote(KEY),
            KEY[::-1],
            KEY.upper(),
            KEY.encode().hex(),
            base64.b64encode(KEY.encode()).decode(),
        ):
            assert form not in text, form
        within = base64.b64encode(b"user:" + KEY.encode()).decode()
        assert within not in text
        assert place in ("user", "nested") or "advanced" in text


# ---------------------------------------------------------------- keys in settings


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"url": "https://me:pw@host/mcp?key=1#x"}, {"url": "https://host/mcp?(not shown)"}),
        (
            {"command": ["python", "s.py", "--api-key", "abc"]},
            {"command": ["python", "s.py", "--api-key", "(not shown)"]},
        ),
        ({"command": ["a", "--token=abc", "-v"]}, {"command": ["a", "--token=(not shown)", "-v"]}),
        ({"command": ["env", "GITHUB_PAT=abc", "x"]}, {"command": ["env", "GITHUB_PAT=(not shown)", "x"]}),
        ({"default_params": {"a": "b"}}, {"default_params": {"a": "(not shown)"}}),
        ({"options": {"judge_api_key": "abc"}}, {"options": {"judge_api_key": "(not shown)"}}),
        ({"options": {"password": "abc", "n": 3}}, {"options": {"password": "(not shown)", "n": 3}}),
        ({"api_key_env": "MY_KEY", "max_tokens": 7}, {"api_key_env": "MY_KEY", "max_tokens": 7}),
        ({"command": ["a", "--tokens", "7"]}, {"command": ["a", "--tokens", "7"]}),
    ],
)
def test_settings_are_shown_without_keys(given: dict[str, Any], shown: dict[str, Any]) -> None:
    assert redacted(given) == shown


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=4, max_size=40), st.text(max_size=20), st.text(max_size=20))
def test_a_secret_is_hidden_wherever_it_stands(secret: str, before: str, after: str) -> None:
    hidden = Secrets([secret]).hide(f"{before}{secret}{after}")
    assert secret not in hidden or secret in "[key]" or secret in f"{before}[key]{after}"
    assert "[key]" in hidden


def test_short_values_hide_nothing() -> None:
    assert Secrets(["a", "", "abc"]).hide("a abc") == "a abc"
    assert Secrets([]).hide("a") == "a"


def test_errors_are_of_the_library() -> None:
    assert issubclass(ServiceError, AgentRLError)


BOMBS = {
    "json": LINES["empty lists"],
    "event-stream": b"data: " + LINES["empty lists"] + b"\n\n",
    "event-stream in parts": b"".join(b"data: %s\r\n" % (b"[]," * 10_000) for _ in range(100)) + b"\r\n",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_body_over_http_is_measured_before_a_value_is_made(kind: str) -> None:
    class Bomb(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(200)
            self.send_header("content-type", f"{'application' if kind == 'json' else 'text'}/{kind.partition(' ')[0]}")
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(BOMBS[kind])

        def log_message(self, *_: Any) -> None: ...

    served = ThreadingHTTPServer(("127.0.0.1", 0), Bomb)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    try:
        config = MCPServerConfig(url=f"http://127.0.0.1:{served.server_address[1]}/mcp", timeout_s=5.0)
        tracemalloc.start()
        with pytest.raises(UserError, match="did not come up"), MCPConnections([config]):
            pass
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 6 * MAX_LINE_BYTES + MAX_BYTES, peak
    finally:
        served.shutdown()
        served.server_close()


@cache
def large_when_unpacked() -> bytes:
    return gzip.compress(b'data: {"jsonrpc":"2.0","id":1,"result":{"x":"' + b"x" * 200_000_000 + b'"}}\n\n')


@pytest.mark.parametrize("coding", ["gzip", "br"])
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("method", ["initialize", "tools/call"])
def test_a_packed_body_over_http_is_refused_unread(kind: str, method: str, coding: str) -> None:
    bomb = large_when_unpacked()
    accepted: set[str | None] = set()

    class Packed(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            accepted.add(self.headers["accept-encoding"])
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            results = {
                "initialize": {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "s", "version": "1"},
                },
                "tools/list": {"tools": [TOOL]},
            }
            answer = {"error": {"code": -32601, "message": "unknown"}}
            if asked["method"] in results:
                answer = {"result": results[asked["method"]]}
            body = json.dumps({"jsonrpc": "2.0", "id": asked.get("id"), **answer}).encode()
            is_packed = asked["method"] == method
            self.send_response(200 if "id" in asked else 202)
            self.send_header("content-type", kind if is_packed else "application/json")
            if is_packed:
                self.send_header("content-encoding", coding)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(bomb if is_packed else body if "id" in asked else b"")

        def log_message(self, *_: Any) -> None: ...

    served = ThreadingHTTPServer(("127.0.0.1", 0), Packed)
    threading.Thread(target=served.serve_forever, args=[0.01], daemon=True).start()
    config = MCPServerConfig(url=f"http://127.0.0.1:{served.server_address[1]}/mcp", timeout_s=10.0)
    tracemalloc.start()
    try:
        started = time.perf_counter()
        if method == "initialize":
            with pytest.raises(UserError, match=r"did not come up") as caught, MCPConnections([config]):
                pass
            said = str(caught.value)
        else:
            with MCPConnections([config]) as connections:
                result = ToolRegistry(connections.tools).run(ToolCall(name="t", arguments={}))
            assert not result.ok
            said = result.text
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        served.shutdown()
        served.server_close()
    assert "packed" in said or "SSE stream" in said, said
    assert peak < MAX_BYTES and time.perf_counter() - started < 30.0
    assert accepted == {"identity"}
