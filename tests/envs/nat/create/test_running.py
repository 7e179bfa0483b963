"""Packaged agents served by the real toolkit: right answers over HTTP and MCP, in the sandbox and without it."""

import base64
import contextlib
import json
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from created_agents import ANY, creator, reference
from nat_projects import spec_of

from agent_rl.envs.nat.create.packaging import packaged
from agent_rl.envs.nat.create.running import ServedAgent, check_runnable, read_package, served
from agent_rl.envs.nat.create.tunnel import TunnelServer
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.errors import UserError
from agent_rl.sandbox.session import SessionEnded

ROOT = Path(__file__).resolve().parents[4]
SPEC = spec_of("unit_converter", 2)
ROUTER = spec_of("unit_converter", 3)
READS_FILES = """
import os, urllib.request
def look(path):
    try:
        return os.listdir(path)
    except OSError as error:
        return type(error).__name__
def call(address):
    try:
        return urllib.request.urlopen(address, timeout=2).read(20).decode("latin-1")
    except Exception as error:
        return type(error).__name__
"""


def files_of(toolkit: NatToolkit, spec: NATSpec) -> dict[str, str]:
    creation = creator(toolkit, [reference(spec)], writes=ANY).create(spec=spec)
    assert creation.state == "accepted"
    return packaged(creation, toolkit).files


def ask(url: str, inputs: Any) -> Any:
    request = urllib.request.Request(
        f"{url}/v1/workflow", data=json.dumps(inputs).encode(), headers={"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=20) as answer:
        return json.load(answer)["value"]


def answers_rightly(agent: ServedAgent, spec: NATSpec) -> None:
    """The plan's cases over HTTP."""
    for case in spec.plan.test_cases:
        assert ask(agent.url, case.inputs) == case.expected


@pytest.mark.parametrize("sandboxed", [True, False])
def test_the_plans_cases_get_the_right_answers_over_http(nat_toolkit: NatToolkit, sandboxed: bool) -> None:
    with served(files_of(nat_toolkit, SPEC), "http", sandboxed=sandboxed) as agent:
        answers_rightly(agent, SPEC)
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(agent.url, {"value": "many"})
        assert refused.value.code == 422
    assert ("WITHOUT" in agent.isolation) != sandboxed
    with pytest.raises(OSError):
        ask(agent.url, {})


def test_a_router_takes_its_lines_over_http_from_many_clients(nat_toolkit: NatToolkit) -> None:
    flow = ROUTER.workflow
    assert flow.kind == "router"
    with served(files_of(nat_toolkit, ROUTER), "http") as agent:
        answers: list[str] = []
        line = str(next(iter(flow.example.inputs.values())))
        threads = [
            threading.Thread(target=lambda: answers.append(ask(agent.url, {"request": line}))) for _ in range(24)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == [flow.example.output] * 24


def test_its_functions_are_mcp_tools(nat_toolkit: NatToolkit) -> None:
    tool = SPEC.tools[0]
    with served(files_of(nat_toolkit, SPEC), "mcp") as agent:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}

        def post(message: dict[str, Any], session: str | None) -> tuple[str, str | None]:
            more = {"Mcp-Session-Id": session} if session else {}
            body = json.dumps({"jsonrpc": "2.0", **message}).encode()
            request = urllib.request.Request(f"{agent.url}/mcp", data=body, headers={**headers, **more})
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.read().decode(), answer.headers.get("Mcp-Session-Id")

        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        _, session = post({"id": 1, "method": "initialize", "params": about}, None)
        post({"method": "notifications/initialized"}, session)
        call = {"name": tool.instance, "arguments": tool.example.inputs}
        text, _ = post({"id": 2, "method": "tools/call", "params": call}, session)
    assert json.dumps(tool.example.output) in text


def test_in_the_sandbox_an_agent_sees_neither_files_nor_network(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    """The function of an accepted agent, replaced by one that looks around."""
    files = files_of(nat_toolkit, SPEC)
    (tmp_path / "secret").write_text("mine")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        body = (
            f"return str([look({str(tmp_path)!r}), look({str(ROOT / 'dataset')!r}), call('http://127.0.0.1:{port}/')])"
        )
        function = SPEC.tools[0].function
        files[SPEC.logic_path] = f"{READS_FILES}\ndef {function}(*_: object, **_named: object) -> str:\n    {body}\n"
        with served(files, "http") as agent:
            assert ask(agent.url, SPEC.tools[0].example.inputs) == str(
                ["FileNotFoundError", "FileNotFoundError", "URLError"]
            )


@pytest.mark.parametrize("sandboxed", [True, False])
def test_a_server_that_does_not_come_up_says_what_it_printed(nat_toolkit: NatToolkit, sandboxed: bool) -> None:
    files = files_of(nat_toolkit, SPEC)
    files[SPEC.register_path] = "raise RuntimeError('broken on purpose')\n"
    with (
        pytest.raises(UserError, match=r"did not start: .*broken on purpose"),
        served(files, "http", sandboxed=sandboxed),
    ):
        pass


def test_a_port_that_is_taken_is_one_sentence(nat_toolkit: NatToolkit) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with (
            pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{port}"),
            served(files_of(nat_toolkit, SPEC), "http", port=port),
        ):
            pass


def test_what_was_not_accepted_or_was_changed_is_not_run(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    files = files_of(nat_toolkit, SPEC)

    def written(name: str, **changes: str | None) -> Path:
        for path, text in {**files, **changes}.items():
            if text is not None:
                (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name / path).write_text(text)
        return tmp_path / name

    assert read_package(written("good"))[0] == files
    (tmp_path / "good/notes.txt").write_text("one's own notes change nothing")
    assert read_package(tmp_path / "good")[1]["state"] == "accepted"
    for name, changes, word in (
        ("changed", {SPEC.logic_path: "x = 1"}, "logic.py is not what was judged"),
        ("more", {"src/sitecustomize.py": ""}, "sitecustomize.py is not what was judged"),
        ("unknown", {"PROVENANCE.json": None}, "nobody checked it"),
        ("rejected", {"PROVENANCE.json": files["PROVENANCE.json"].replace('"accepted"', '"rejected"')}, "not accepted"),
        ("garbled", {"PROVENANCE.json": "[" * 100_000}, "no readable"),
    ):
        folder = written(name, **changes)
        with pytest.raises(UserError, match=word):
            read_package(folder)
        assert read_package(folder, unverified=True)[0]
    with pytest.raises(UserError, match="no such folder"):
        read_package(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", written("half", **{"pyproject.toml": None})):
        with pytest.raises(UserError, match="holds no agent") as caught:
            read_package(folder)
        assert "--unverified" not in str(caught.value)


def test_an_agent_with_an_llm_is_not_served_without_a_network() -> None:
    plan = {"plan": {"workflow": {"kind": "react"}}}
    with pytest.raises(UserError, match="no network"):
        check_runnable(plan, sandboxed=True, python=None)
    assert check_runnable(plan, sandboxed=False, python="/x/python") == "/x/python"
    assert check_runnable({"plan": None}, sandboxed=True, python=None) is None


class FakeSession:
    """A session whose program writes these lines, then says nothing."""

    def __init__(self, *lines: str) -> None:
        self.lines, self.written = list(lines), []

    def read_line(self, timeout_s: float) -> str:
        if self.lines:
            return self.lines.pop(0)
        threading.Event().wait(0.01)
        raise SessionEnded("silent", "nothing")

    def write_line(self, text: str, timeout_s: float = 2.0) -> None:
        self.written.append(json.loads(text))


HOSTILE_FRAMES = (
    "",
    "no JSON",
    "[]",
    "[" * 100_000,
    '{"from": 999, "data": "AAAA"}',
    '{"from": "x", "data": "AAAA"}',
    '{"from": 1, "data": "***"}',
    '{"from": 1, "data": 7}',
    '{"closed": {}}',
    '{"log": "\\u001b[31mred"}',
    '{"from": NaN, "data": ""}',
)


def test_frames_that_are_none_reach_nobody_and_break_nothing() -> None:
    printed: list[str] = []
    session = FakeSession(*HOSTILE_FRAMES)
    with TunnelServer(session, "127.0.0.1", 0, say=printed.append) as tunnel:
        while session.lines:
            threading.Event().wait(0.01)
        with socket.create_connection(("127.0.0.1", tunnel.port)) as client:
            client.sendall(b"hello")
            while len(session.written) < 2:
                threading.Event().wait(0.01)
            session.lines.append('{"from": 1, "data": "aGk="}')
            assert client.recv(10) == b"hi"
            session.lines.append('{"closed": 1}')
            assert client.recv(10) == b""
        assert not tunnel.ended.is_set()
    assert session.written[0] == {"open": 1}
    assert printed == [" [31mred"]


class SlowSession(FakeSession):
    """A session whose program reads nothing until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = threading.Event()

    def write_line(self, text: str, timeout_s: float = 2.0) -> None:
        self.reads.wait()
        super().write_line(text, timeout_s)


def test_an_upload_waits_for_an_agent_that_does_not_read() -> None:
    session, sent, size = SlowSession(), 0, 2**20
    with TunnelServer(session, "127.0.0.1", 0, say=print) as tunnel:
        with socket.create_connection(("127.0.0.1", tunnel.port)) as client:
            client.settimeout(1.0)
            try:
                while sent < 100 * size:
                    sent += client.send(b"x" * size)
            except TimeoutError:
                pass
            assert sent < 40 * size  # the rest is in the kernel's buffers
            session.reads.set()
            client.settimeout(20.0)
            client.sendall(b"end")
        while {"close": 1} not in session.written:
            threading.Event().wait(0.01)
        received = b"".join(base64.b64decode(frame["data"]) for frame in session.written if "to" in frame)
        assert len(received) == sent + 3 and received.endswith(b"xend")
        assert not tunnel.ended.is_set()


def test_a_tunnel_whose_agent_reads_nothing_is_closed_at_once() -> None:
    session = SlowSession()
    tunnel = TunnelServer(session, "127.0.0.1", 0, say=print)
    with socket.create_connection(("127.0.0.1", tunnel.port)) as client:
        client.settimeout(1.0)
        with contextlib.suppress(TimeoutError):
            while True:
                client.send(b"x" * 2**20)
        closing = threading.Thread(target=tunnel.close)
        closing.start()
        session.reads.set()
        closing.join(5.0)
        assert not closing.is_alive()
    left = [thread for thread in threading.enumerate() if "_pump" in thread.name]
    for thread in left:
        thread.join(5.0)
    assert not any(thread.is_alive() for thread in left)
