"""Tools of MCP servers: servers in the sandbox, as child processes and over HTTP, and what they give."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from fakes import ScriptedPolicy
from mcp.types import CallToolResult, EmbeddedResource, TextContent, TextResourceContents
from mcp_calls import HttpServer, call, plain, sandboxed
from waiting import free_port

from agent_rl.agent.messages import Message
from agent_rl.config import MCPServerConfig, ToolsConfig
from agent_rl.envs.base import EnvFactory, StepResult, Task, ToolEnv
from agent_rl.envs.opening import offer_tools
from agent_rl.errors import ConfigError, UserError
from agent_rl.rollout.episode import run_episode
from agent_rl.rollout.turns import EpisodeLimits
from agent_rl.sandbox.sandbox import Sandbox
from agent_rl.tools.base import ToolResult
from agent_rl.tools.mcp.tools import MAX_RESULT_CHARS, MCPConnections, read_result
from agent_rl.tools.mcp.transport import JOBS, MAX_FILES, read_program


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
    assert call(everyday, "add", a=1, b=2) == ToolResult(text="3")
    assert call(everyday, "greet").text == "hello from the file beside"


def test_nested_arguments_reach_the_server(everyday: MCPConnections) -> None:
    order = {"customer": "Ann", "lines": [{"item": "pens", "count": 2}, {"item": "ink"}]}
    assert call(everyday, "order", order=order).text == "Ann: 2 pens, 1 ink"


def test_an_error_result_and_a_refused_request_are_failed_calls(everyday: MCPConnections) -> None:
    assert call(everyday, "divide", a=1, b=0) == ToolResult(
        text="error: Error executing tool divide: b must not be 0", ok=False
    )
    tool = next(tool for tool in everyday.tools if tool.name == "add")
    refused = tool(a="one", b=2)
    assert not refused.ok and "valid integer" in refused.text


def test_calls_from_eight_threads_get_their_own_answers(everyday: MCPConnections) -> None:
    with ThreadPoolExecutor(8) as pool:
        texts = [result.text for result in pool.map(lambda i: call(everyday, "add", a=i, b=i), range(64))]
    assert texts == [str(2 * i) for i in range(64)]


def test_contents_that_are_not_text_are_named_in_brackets(everyday: MCPConnections) -> None:
    assert call(everyday, "picture").text == "[image image/png]"
    note = TextResourceContents(uri="note://1", text="not shown")
    result = CallToolResult(content=[TextContent(text="see"), EmbeddedResource(resource=note)])
    assert read_result(result).text == "see\n[resource note://1]"


def test_the_middle_of_a_long_answer_is_left_out() -> None:
    text = read_result(CallToolResult(content=[TextContent(text="a" * MAX_RESULT_CHARS + "bcd")])).text
    assert text.startswith("aaaa") and text.endswith("abcd") and "\n[... 3 characters left out ...]\n" in text


def test_all_pages_of_tools_are_listed_and_structured_content_replaces_missing_text(
    sandbox: Sandbox,
) -> None:
    with MCPConnections([sandboxed("paged.py")], sandbox=sandbox) as connections:
        assert [tool.name for tool in connections.tools] == ["first", "second", "third"]
        assert call(connections, "third").text == '{"called": "third"}'


# ---------------------------------------------------------------- names


def test_a_name_offered_by_two_servers_is_refused_and_include_resolves_it(sandbox: Sandbox) -> None:
    both = [sandboxed("paged.py", include=("second",)), sandboxed("paged.py")]
    with pytest.raises(ConfigError, match=r"'second' is offered twice, by tools.mcp\[0\].* and tools.mcp\[1\]"):
        MCPConnections(both, sandbox=sandbox).__enter__()
    both[1] = sandboxed("paged.py", include=("third", "first"))
    with MCPConnections(both, sandbox=sandbox) as connections:
        assert [tool.name for tool in connections.tools] == ["second", "first", "third"]


def test_a_name_that_no_tool_may_have_is_refused_and_include_resolves_it() -> None:
    config = plain("rude.py", os.devnull, "look up," + "a" * 64)
    with pytest.raises(
        ConfigError, match=r"tools.mcp\[0\] \(.*\): the server has a tool named 'look up'; .* in include"
    ):
        MCPConnections([config]).__enter__()
    with MCPConnections([config.model_copy(update={"include": ("slow", "a" * 64)})]) as connections:
        assert [tool.name for tool in connections.tools] == ["slow", "a" * 64]


def test_include_of_an_unknown_tool_names_the_nearest(sandbox: Sandbox) -> None:
    with pytest.raises(ConfigError, match=r"include names 'secnd': .* did you mean 'second'"):
        MCPConnections([sandboxed("paged.py", include=("secnd",))], sandbox=sandbox).__enter__()


# ---------------------------------------------------------------- where servers run


def test_a_server_in_the_sandbox_sees_neither_files_nor_network_nor_environment_of_the_host(
    everyday: MCPConnections, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("only for the host")
    monkeypatch.setenv("SECRET_KEY", "x")
    with MCPConnections([plain("everyday.py")]) as child, socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert call(child, "read", path=str(secret)).text == "only for the host"
        assert call(everyday, "read", path=str(secret)).text == "refused: FileNotFoundError"
        assert call(everyday, "read", path=__file__).text == "refused: FileNotFoundError"
        assert call(child, "connect", host="127.0.0.1", port=port).text == "connected"
        assert call(everyday, "connect", host="127.0.0.1", port=port).text.startswith("refused")
        assert "SECRET_KEY" not in call(child, "environment").text + call(everyday, "environment").text
        pid = int(call(child, "whoami").text)
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
                texts = [result.text for result in pool.map(lambda i: call(connections, "add", a=i, b=i), range(24))]
            assert texts == [str(2 * i) for i in range(24)]
            died = call(connections, "die")
            assert not died.ok
            assert not call(connections, "count").ok


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
    for command, expected in [
        (("npx", "server"), "'npx server' cannot run in the sandbox, which takes `python FILE.py`"),
        (("python",), "'python' cannot run"),
        (("python", "nowhere.py"), "there is no file 'nowhere.py'"),
        (("python", str(tmp_path / "0.py")), "more than 64 files .* a folder of its own, or set sandbox: false"),
    ]:
        with pytest.raises(ConfigError, match=expected):
            MCPConnections([MCPServerConfig(command=command)])


# ---------------------------------------------------------------- the rest of the library


class AskEnv(ToolEnv):
    """Scores the text of the first tool reply."""

    def reset(self, task: Task) -> list[Message]:
        self.registry = self.add_tools(task, [])
        return [Message.user(task["question"])]

    def step(self, message: Message) -> StepResult:
        self.last = super().step(message)
        return self.last

    def on_terminal(self, tool_name: str) -> StepResult:
        raise AssertionError("no tool here is terminal")

    def no_call(self, message: Message) -> StepResult:
        return StepResult(reward=float(message.content == "5"), terminated=True)


def test_an_episode_runs_with_the_tools_of_a_configuration() -> None:
    config = ToolsConfig(mcp=(sandboxed("everyday.py", include=("add",)),))
    factory = offer_tools(EnvFactory(AskEnv), config)
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


def test_without_the_sdk_the_error_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("agent_rl.tools.mcp.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ConfigError, match=r"pip install -r requirements-mcp\.txt"):
        import agent_rl.tools.mcp.tools  # noqa: F401


def test_the_sdk_is_only_imported_for_tools_mcp() -> None:
    check = "import sys, agent_rl.tools.toolset; sys.exit('mcp' in sys.modules or 'anyio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
