"""Tools of MCP servers: real servers of the SDK in the sandbox, as child processes and over HTTP, and how they fail."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes import ScriptedPolicy
from mcp.types import CallToolResult, EmbeddedResource, TextContent, TextResourceContents
from waiting import free_port, wait_for

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.config import MCPServerConfig, ToolsConfig
from agent_rl.core.episode import EpisodeLimits, run_episode
from agent_rl.envs.base import EnvFactory, StepResult, Task, ToolEnv
from agent_rl.envs.equipped import EquippedFactory
from agent_rl.errors import ConfigError, UserError
from agent_rl.sandbox.limits import Limits
from agent_rl.sandbox.sandbox import Sandbox
from agent_rl.tools import mcp_transport
from agent_rl.tools.base import ToolRegistry, ToolResult
from agent_rl.tools.mcp_tools import MAX_RESULT_CHARS, MCPConnections, read_result
from agent_rl.tools.mcp_transport import JOBS, MAX_FILES, read_program

SERVERS = Path(__file__).with_name("mcp_servers")


def sandboxed(name: str, **options: Any) -> MCPServerConfig:
    return MCPServerConfig(command=("python", str(SERVERS / name)), **options)


def plain(name: str, *arguments: str, **options: Any) -> MCPServerConfig:
    command = (sys.executable, str(SERVERS / name), *arguments)
    return MCPServerConfig(command=command, sandbox=False, **options)


def ask(connections: MCPConnections, name: str, **arguments: Any) -> ToolResult:
    return ToolRegistry(connections.tools).run(ToolCall(name=name, arguments=arguments))


def descendants() -> set[int]:
    """Without those that have ended: a fork server takes note of its branches' ends at the next request."""
    living = psutil.Process().children(recursive=True)
    return {process.pid for process in living if process.status() != psutil.STATUS_ZOMBIE}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox.open(python=sys.executable, jobs=JOBS) as opened:
        yield opened


@pytest.fixture(scope="module")
def everyday(sandbox: Sandbox) -> Iterator[MCPConnections]:
    """A server in the sandbox that no test breaks."""
    with MCPConnections([sandboxed("everyday.py")], sandbox=sandbox) as connections:
        yield connections


# ---------------------------------------------------------------- what a server offers, and its answers


def test_tools_come_with_the_servers_names_descriptions_and_schemas(everyday: MCPConnections) -> None:
    tools = {tool.name: tool for tool in everyday.tools}
    assert tools["add"].description == "Add two whole numbers."
    assert tools["add"].parameters["required"] == ["a", "b"]
    assert {name: entry["type"] for name, entry in tools["add"].parameters["properties"].items()} == {
        "a": "integer",
        "b": "integer",
    }
    assert set(tools["order"].parameters["$defs"]) == {"Line", "Order"}


def test_calls_are_answered_with_text(everyday: MCPConnections) -> None:
    assert ask(everyday, "add", a=1, b=2) == ToolResult(text="3")
    assert ask(everyday, "greet").text == "hello from the file beside"


def test_nested_arguments_reach_the_server(everyday: MCPConnections) -> None:
    order = {"customer": "Ann", "lines": [{"item": "pens", "count": 2}, {"item": "ink"}]}
    assert ask(everyday, "order", order=order).text == "Ann: 2 pens, 1 ink"


def test_an_error_result_and_a_refused_request_are_failed_calls(everyday: MCPConnections) -> None:
    assert ask(everyday, "divide", a=1, b=0) == ToolResult(
        text="error: Error executing tool divide: b must not be 0", ok=False
    )
    tool = next(tool for tool in everyday.tools if tool.name == "add")
    refused = tool(a="one", b=2)
    assert not refused.ok and "valid integer" in refused.text


def test_calls_from_eight_threads_get_their_own_answers(everyday: MCPConnections) -> None:
    with ThreadPoolExecutor(8) as pool:
        texts = [result.text for result in pool.map(lambda i: ask(everyday, "add", a=i, b=i), range(64))]
    assert texts == [str(2 * i) for i in range(64)]


def test_contents_that_are_not_text_are_named_in_brackets(everyday: MCPConnections) -> None:
    assert ask(everyday, "picture").text == "[image image/png]"
    note = TextResourceContents(uri="note://1", text="not shown")
    result = CallToolResult(content=[TextContent(text="see"), EmbeddedResource(resource=note)])
    assert read_result(result).text == "see\n[resource note://1]"


def test_the_middle_of_a_long_answer_is_left_out() -> None:
    text = read_result(CallToolResult(content=[TextContent(text="a" * MAX_RESULT_CHARS + "bcd")])).text
    assert text.startswith("aaaa") and text.endswith("abcd") and "\n[... 3 characters left out ...]\n" in text


def test_all_pages_of_tools_are_asked_for_and_structured_content_is_shown_where_there_is_no_text(
    sandbox: Sandbox,
) -> None:
    with MCPConnections([sandboxed("paged.py")], sandbox=sandbox) as connections:
        assert [tool.name for tool in connections.tools] == ["first", "second", "third"]
        assert ask(connections, "third").text == '{"called": "third"}'


# ---------------------------------------------------------------- names


def test_a_name_offered_by_two_servers_is_refused_and_include_mends_it(sandbox: Sandbox) -> None:
    both = [sandboxed("paged.py", include=("second",)), sandboxed("paged.py")]
    with pytest.raises(ConfigError, match=r"'second' is offered twice, by tools.mcp\[0\].* and tools.mcp\[1\]"):
        MCPConnections(both, sandbox=sandbox).__enter__()
    both[1] = sandboxed("paged.py", include=("third", "first"))
    with MCPConnections(both, sandbox=sandbox) as connections:
        assert [tool.name for tool in connections.tools] == ["second", "first", "third"]


def test_include_of_an_unknown_tool_names_the_nearest(sandbox: Sandbox) -> None:
    with pytest.raises(ConfigError, match=r"include names 'secnd': .* did you mean 'second'"):
        MCPConnections([sandboxed("paged.py", include=("secnd",))], sandbox=sandbox).__enter__()


# ---------------------------------------------------------------- late, dead and misbehaving servers


def test_a_slow_call_hits_its_deadline_while_others_go_on(sandbox: Sandbox) -> None:
    with MCPConnections([sandboxed("everyday.py", timeout_s=0.6)], sandbox=sandbox) as connections:
        assert ask(connections, "count").text == "1"
        with ThreadPoolExecutor(1) as pool:
            started = time.monotonic()
            slow = pool.submit(ask, connections, "wait", seconds=60.0)
            assert all(ask(connections, "add", a=i, b=1).text == str(i + 1) for i in range(20))
            assert not slow.done()
            assert slow.result() == ToolResult(text="error: wait: the server gave no answer within 0.6 s", ok=False)
        assert 0.6 <= time.monotonic() - started < 3.0
        time.sleep(0.3)
        assert ask(connections, "count").text == "2", "a server that answers others is not started anew"


def test_a_server_that_dies_in_a_call_is_back_for_the_next_one(sandbox: Sandbox) -> None:
    with MCPConnections([sandboxed("everyday.py")], sandbox=sandbox) as connections:
        for _ in range(4):
            assert [ask(connections, "count").text for _ in range(2)] == ["1", "2"]
            died = ask(connections, "die")
            assert not died.ok and "ended before it answered" in died.text


def test_a_server_that_ended_between_two_calls_is_started_before_the_next(tmp_path: Path) -> None:
    log, before = tmp_path / "starts", descendants()
    with MCPConnections([plain("dying.py", str(log))]) as connections:
        (pid,) = descendants() - before
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not psutil.pid_exists(pid))
        time.sleep(0.2)
        ask(connections, "fall")
    assert log.read_text().splitlines() == ["started", "started"]


def test_a_server_that_froze_is_replaced(sandbox: Sandbox) -> None:
    with MCPConnections([sandboxed("everyday.py", timeout_s=0.5)], sandbox=sandbox) as connections:
        assert ask(connections, "count").text == "1"
        running = len(descendants())
        assert "no answer within 0.5 s" in ask(connections, "freeze").text
        wait_for(lambda: ask(connections, "count").text == "1", timeout_s=5.0)
        wait_for(lambda: len(descendants()) == running, timeout_s=5.0)


@pytest.mark.slow
def test_a_server_whose_time_in_the_sandbox_is_over_is_started_anew(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_transport, "LIMITS", Limits(wall_s=1.0, processes=64))
    with MCPConnections([sandboxed("everyday.py")], sandbox=sandbox) as connections:
        assert ask(connections, "count").text == "1"
        time.sleep(1.2)
        assert ask(connections, "count").text == "1"


def test_a_server_that_dies_at_every_call_is_asked_once_a_call_and_not_hammered(tmp_path: Path) -> None:
    log = tmp_path / "starts"
    with MCPConnections([plain("dying.py", str(log))]) as connections:
        texts = [ask(connections, "fall").text for _ in range(20)]
    assert all("ended before it answered" in text for text in texts[:2])
    assert "error: fall: the server is down (the connection ended) and is not asked again for 0." in texts[2]
    assert 2 <= len(log.read_text().splitlines()) <= 4


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (plain("silent.py", timeout_s=0.5), "handshake within 0.5 s; its last words: 'I say nothing'"),
        (sandboxed("silent.py", timeout_s=0.5), "handshake within 0.5 s; its last words: 'I say nothing'"),
        pytest.param(
            *(plain("babbling.py", timeout_s=20.0), "more than 1000 lines that are no messages"),
            marks=pytest.mark.slow,  # the SDK gives a child two seconds to end by itself
        ),
        (sandboxed("babbling.py", timeout_s=20.0), "more than 1000 lines that are no messages"),
        (sandboxed("helper.py"), "Connection closed"),
        (MCPServerConfig(command=("no-such-program",), sandbox=False), "No such file or directory: 'no-such-program'"),
        (MCPServerConfig(url="http://user:secret@127.0.0.1:1/mcp?key=secret"), r"\(http://127.0.0.1:1/mcp\) did not"),
    ],
    ids=["silent child", "silent", "babbling child", "babbling", "ends", "no program", "nobody there"],
)
def test_a_server_that_does_not_come_up_is_a_sentence(
    sandbox: Sandbox, config: MCPServerConfig, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    with pytest.raises(UserError, match=r"tools.mcp\[0\] \(.*\) did not come up") as caught:
        MCPConnections([config], sandbox=sandbox).__enter__()
    caught.match(said)
    assert "secret" not in str(caught.value)
    assert time.monotonic() - started < 5.0
    assert capfd.readouterr().err == "", "the progress display is there"


def test_what_the_sdk_logs_stays_off_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    for name in ("mcp.client.stdio", "client"):
        logging.getLogger(name).error("not for the terminal")
    logging.getLogger("another").error("printed")
    assert capsys.readouterr().err == "printed\n"


def test_a_traceback_at_the_start_is_told(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    with pytest.raises(UserError, match="its last words: \"ModuleNotFoundError: No module named 'no_such_module'"):
        MCPConnections([MCPServerConfig(command=("python", str(tmp_path / "broken.py")))], sandbox=sandbox).__enter__()


# ---------------------------------------------------------------- where servers run


def test_a_server_in_the_sandbox_sees_neither_files_nor_network_nor_environment_of_the_host(
    everyday: MCPConnections, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("only for the host")
    monkeypatch.setenv("SECRET_KEY", "x")
    with MCPConnections([plain("everyday.py")]) as child, socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert ask(child, "read", path=str(secret)).text == "only for the host"
        assert ask(everyday, "read", path=str(secret)).text == "refused: FileNotFoundError"
        assert ask(everyday, "read", path=__file__).text == "refused: FileNotFoundError"
        assert ask(child, "connect", host="127.0.0.1", port=port).text == "connected"
        assert ask(everyday, "connect", host="127.0.0.1", port=port).text.startswith("refused")
        assert "SECRET_KEY" not in ask(child, "environment").text + ask(everyday, "environment").text
        pid = int(ask(child, "whoami").text)
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)


def test_a_module_of_the_interpreter_runs_in_the_sandbox(sandbox: Sandbox) -> None:
    config = MCPServerConfig(command=("python3", "-m", "json.tool", "no-such-file"))
    with pytest.raises(UserError, match="argument infile: can't open 'no-such-file'"):  # it is no server, but it ran
        MCPConnections([config], sandbox=sandbox).__enter__()


def test_a_server_speaks_http() -> None:
    with HttpServer(port := free_port()):
        url = f"http://127.0.0.1:{port}/mcp"
        with MCPConnections([MCPServerConfig(url=url, timeout_s=5.0)]) as connections:
            with ThreadPoolExecutor(8) as pool:
                texts = [result.text for result in pool.map(lambda i: ask(connections, "add", a=i, b=i), range(24))]
            assert texts == [str(2 * i) for i in range(24)]
            died = ask(connections, "die")
            assert not died.ok
            assert not ask(connections, "count").ok


@pytest.mark.slow
def test_an_http_server_that_was_started_again_is_found_again() -> None:
    url = f"http://127.0.0.1:{(port := free_port())}/mcp"
    with HttpServer(port):
        connections = MCPConnections([MCPServerConfig(url=url, timeout_s=5.0)]).__enter__()
        assert ask(connections, "count").text == "1"
    assert not ask(connections, "count").ok
    with closing(connections), HttpServer(port):
        wait_for(lambda: ask(connections, "count").ok, timeout_s=20.0)


class HttpServer:
    """`everyday.py` on a port."""

    def __init__(self, port: int) -> None:
        self.port = port

    def __enter__(self) -> None:
        command = [sys.executable, str(SERVERS / "everyday.py"), str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(self.answers)

    def answers(self) -> bool:
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


# ---------------------------------------------------------------- commands for the sandbox


def test_a_program_is_the_script_with_the_files_beside_it(tmp_path: Path) -> None:
    for name in ("server.py", "data/words.txt", ".env", "__pycache__/x.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    program = read_program(("/usr/bin/python3.11", str(tmp_path / "server.py"), "--fast"), "here")
    assert (program.path, program.argv) == ("server.py", ("--fast",))
    assert program.files == {"server.py": b"server.py", "data/words.txt": b"data/words.txt"}


def test_a_command_that_cannot_run_in_the_sandbox_is_refused(tmp_path: Path) -> None:
    for i in range(MAX_FILES + 1):
        (tmp_path / f"{i}.py").touch()
    for command, said in [
        (("npx", "server"), "'npx server' cannot run in the sandbox, which takes `python FILE.py`"),
        (("python",), "'python' cannot run"),
        (("python", "nowhere.py"), "there is no file 'nowhere.py'"),
        (("python", str(tmp_path / "0.py")), "more than 64 files .* a folder of its own, or set sandbox: false"),
    ]:
        with pytest.raises(ConfigError, match=said):
            MCPConnections([MCPServerConfig(command=command)])


# ---------------------------------------------------------------- the end


def test_after_the_end_calls_say_so_and_nothing_is_left(sandbox: Sandbox) -> None:
    before, threads = descendants(), threading.active_count()
    with MCPConnections([sandboxed("everyday.py"), plain("dying.py", os.devnull)], sandbox=sandbox) as connections:
        assert len(descendants()) > len(before) + 1
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ask, connections, "wait", seconds=60.0)
            time.sleep(0.1)
            connections.close()
            assert not waiting.result(5.0).ok
    assert ask(connections, "add", a=1, b=2).text == "error: add: the connection to the server was closed"
    wait_for(lambda: descendants() == before)
    wait_for(lambda: threading.active_count() <= threads)


def test_nothing_is_left_after_ctrl_c(sandbox: Sandbox) -> None:
    before, threads = descendants(), threading.active_count()
    timer = threading.Timer(0.8, lambda: os.kill(os.getpid(), signal.SIGINT))
    both = [sandboxed("everyday.py"), plain("dying.py", os.devnull)]
    with pytest.raises(KeyboardInterrupt), MCPConnections(both, sandbox=sandbox) as connections:
        timer.start()
        ask(connections, "wait", seconds=60.0)
    wait_for(lambda: descendants() == before)
    wait_for(lambda: threading.active_count() <= threads)


# ---------------------------------------------------------------- the rest of the library


class AskEnv(ToolEnv):
    """Scores the text of the first tool reply."""

    def reset(self, task: Task) -> list[Message]:
        self.registry = self.equip(task, [])
        return [Message.user(task["question"])]

    def step(self, message: Message) -> StepResult:
        self.last = super().step(message)
        return self.last

    def on_terminal(self, tool_name: str) -> StepResult:
        raise AssertionError("no tool here is terminal")

    def no_call(self, message: Message) -> StepResult:
        return StepResult(reward=float(message.content == "5"), terminated=True)


def test_an_episode_is_played_with_the_tools_of_a_configuration() -> None:
    config = ToolsConfig(mcp=(sandboxed("everyday.py", include=("add",)),))
    factory = EquippedFactory(EnvFactory(AskEnv), config)
    factory.start()
    try:
        env = factory()
        policy = ScriptedPolicy(['<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>', "5"])
        trajectory = run_episode(
            policy,
            env,
            {"task_id": "t", "question": "2 + 3?"},
            limits=EpisodeLimits(max_new_tokens=200),
            group_id="g",
            seed=0,
            temperature=1.0,
        )
        assert [tool.name for tool in env.tools] == ["add"]
        assert factory.describe() == {"tools": "add"}
    finally:
        factory.close()
    assert trajectory.reward == 1.0
    assert bytes(token for token in policy.prompts[1] if token < 256).decode().endswith("5")


def test_without_the_sdk_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("agent_rl.tools.mcp_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ConfigError, match=r"pip install -r requirements-mcp\.txt"):
        import agent_rl.tools.mcp_tools  # noqa: F401


def test_the_sdk_is_only_imported_for_tools_mcp() -> None:
    check = "import sys, agent_rl.tools.toolset; sys.exit('mcp' in sys.modules or 'anyio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
