"""Texts and MCP servers made to break their readers: parsers under caps, sessions with deadlines."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sandboxes import sandbox_fixture

sys.path.insert(0, str(Path(__file__).parent))

from host import descendants

from agent_rl.envs.nat.errors import NatUnavailableError
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.sandbox.limits import Limits, Status
from agent_rl.sandbox.sandbox import BASE_JOBS, Sandbox
from agent_rl.sandbox.session import SessionEnded

LIMITS = Limits(wall_s=4.0, cpu_s=4, memory_mb=256, output_kb=16, output_hard_kb=512, result_kb=512)
SERVERS = Path(__file__).parent / "mcp_servers"
NAMES = sorted(path.stem for path in SERVERS.glob("*.py"))
MARK = Path("/tmp/hostile_data_was_here")


sandbox = sandbox_fixture(LIMITS, (*BASE_JOBS, "agent_rl.envs.nat.judge.worker.parse_jobs"))


# ---------------------------------------------------------------- texts

PRINTS = f"open({str(MARK)!r}, 'w').write('x')"
ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
MERGES = "a0: &a0 {k: v}\n" + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 9))
YAML = {
    "call": f"a: !!python/object/apply:os.system ['touch {MARK}']",
    "call to builtins": f"a: !!python/object/apply:builtins.exec [{json.dumps(PRINTS)}]",
    "new object": f"a: !!python/object/new:subprocess.Popen [[touch, {MARK}]]",
    "name": "a: !!python/name:os.system",
    "module": "a: !!python/module:os",
    "tuple": "a: !!python/tuple [1]",
    "own tag": "a: !evil x",
    "alias bomb": ALIASES,
    "alias to itself": "a: &a [*a]",
    "merge bomb": MERGES,
    "merge without alias": "a: {<<: {b: 1}, c: 2}",
    "deep lists": "[" * 30_000,
    "deep closed lists": "[" * 20_000 + "]" * 20_000,
    "too long and deep": "[" * 100_000,
    "deep mappings": "{a: " * 10_000,
    "deep blocks": "\n".join(" " * depth + "a:" for depth in range(300)) + "\n" + "- " * 20_000,
    "question marks": "? " * 20_000,
    "double key": "a: 1\na: 2",
    "double key in a list": "- {x: 1, x: 2}",
    "huge number": "a: " + "9" * 60_000,
    "number in base 60": "a: " + ":".join(["59"] * 20_000),
    "NUL": "a: \0",
    "control characters": "a: \x07\x1b[2J",
    "lone surrogate": "a: \ud800",
    "two documents": "a: 1\n---\nb: 2",
    "huge scalar": "a: " + "x" * 2_000_000,
    "list as key": "? [a]\n: 1",
    "directive": "%YAML 9.9\n---\na: 1",
}
JSON = {
    "deep": "[" * 60_000,
    "deep and long": "[" * 1_000_000,
    "deep objects": '{"a":' * 12_000,
    "huge number": "1" * 60_000,
    "huge and long number": "1" * 10_000_000,
    "NaN": "[NaN]",
    "Infinity": '{"reward": Infinity}',
    "double key": '{"a": 1, "a": 2}',
    "double key, escaped": '{"a": 1, "\\u0061": 2}',
    "NUL": '{"a": "\0"}',
    "two values": "{} {}",
    "nothing": "",
    "byte order mark": "\ufeff{}",
    "single quotes": "{'a': 1}",
}
TOML = {
    "deep lists": "a = " + "[" * 20_000,
    "deep tables": "a = " + "{a = " * 10_000,
    "deep dotted key": "a" + ".a" * 20_000 + " = 1",
    "deep quoted key": '"a b"' + " . 'a b'" * 8_000 + " = 1",
    "deep key after an escape": '"\\""' + ".a" * 20_000 + " = 1",
    "deep table": "[[" + "a." * 20_000 + "a]]",
    "deep key in a table": "a = {" + "a." * 20_000 + "a = 1}",
    "half a deep key": ("a." * 60 + "a = 1\n") * 500,
    "long word": "a" * 60_000,
    "many quotes": "\"'" * 30_000,
    "double key": "a = 1\na = 2",
    "double table": "[a]\n[a]",
    "huge number": "a = " + "9" * 60_000,
    "NUL": 'a = "\0"',
    "lone surrogate": 'a = "\\uD800"',
    "too long": "a = 1\n" * 20_000,
}
PYTHON = {
    "deep parentheses": "x = " + "(" * 5000 + "1" + ")" * 5000,
    "deep unary": "x = " + "-" * 60_000 + "1",
    "deep attributes": "x = a" + ".a" * 30_000,
    "deep calls": "x = a" + "()" * 30_000,
    "deep sums": "x = " + "1+" * 30_000 + "1",
    "deep blocks": "".join(" " * depth + "if x:\n" for depth in range(150)),
    "NUL": "x = 1\0\n",
    "huge number": "x = " + "1" * 60_000,
    "lone surrogate": "x = '\ud800'",
    "form feeds": "\x0c" * 30_000 + "(",
    "f-strings": "x = " + "f'{" * 200 + "1" + "}'" * 200,
    "decoding": "# -*- coding: no_such_codec -*-\nx = (",
    "too long": "x = 1\n" * 200_000,
    "many functions": "def f(): pass\n" * 4_000,
    "many parameters": f"def f({', '.join(f'a{i}' for i in range(9_000))}): pass",
    "many handlers": "try: x\nexcept: x\n" * 2_500,
}
NESTED: dict[str, Any] = {"i": "1.2.3.4, www.example.com. A. B. C."}
for letter in "hgfedcba":
    NESTED = {letter: NESTED}
EITHER = {"deep sums", "deep attributes", "deep calls", "deep unary", "lone surrogate"}
"""Whether Python takes these depends on its version; either answer is right, a crash is not."""
TEXTS = [
    pytest.param(kind, name, text, id=f"{kind}-{name}")
    for kind, texts in (("yaml", YAML), ("json", JSON), ("toml", TOML), ("python", PYTHON))
    for name, text in texts.items()
]


@pytest.mark.parametrize(("kind", "name", "text"), TEXTS)
def test_a_text_made_to_break_its_parser_is_refused_in_time_and_with_a_reason(
    sandbox: Sandbox, kind: str, name: str, text: str
) -> None:
    started = time.monotonic()
    job = sandbox.call(f"parse_{kind}", text=text)
    assert time.monotonic() - started < 15.0
    assert job.status is Status.OK, (job.status, job.error, job.stderr[-300:])
    if kind != "python" or name not in EITHER:
        assert set(job.result) == {"refused"} and job.result["refused"], job.result
    assert len(json.dumps(job.result)) < 512 * 1024
    assert not MARK.exists()
    assert sandbox.describe()["restarts"] == 0


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("yaml", "a: [1, 2.5, x]\nb: {c: null}", {"a": [1, 2.5, "x"], "b": {"c": None}}),
        ("yaml", "a: '<<'\nb: \"*x\"\nd: 2020-01-01", {"a": "<<", "b": "*x", "d": "2020-01-01"}),
        ("toml", "[a.b.c.d.e.f.g.h]\ni = '1.2.3.4, www.example.com. A. B. C.'", NESTED),
        ("toml", "[a.'b.c']\nd = 'x'\ne = 2020-01-01", {"a": {"b.c": {"d": "x", "e": "2020-01-01"}}}),
        ("json", '{"a": [1, -2.5e3, "\\u00e9"]}', {"a": [1, -2500.0, "é"]}),
    ],
)
def test_an_ordinary_text_is_read(sandbox: Sandbox, kind: str, text: str, value: Any) -> None:
    assert sandbox.call(f"parse_{kind}", text=text).result == {"value": value}


def test_an_outline_distinguishes_functions_classes_and_handlers(sandbox: Sandbox) -> None:
    source = """
from typing import Any as Whatever
from nat.plugin_api import FunctionInfo, register_function as registers

class Config(lib.Base, name="x"):
    'Configuration.'
    size: Annotated[int, Field(ge=1, description="How many.")]
    rest: list[Whatever] = []

@registers(config_type=Config)
async def tool(config: Config, builder):
    async def run(text: Whatever, *parts: "str | Any") -> str:
        try:
            return parts[0]
        except (IndexError, Exception):
            return "none" + "!"
    yield FunctionInfo.from_fn(run, description="Join the parts.")
"""
    value = sandbox.call("parse_python", text=source).result["value"]
    (config,) = value["classes"]
    tool, run = value["functions"]
    assert (config["line"], config["bases"], config["keywords"]) == (5, ["Base"], {"name": "x"})
    assert [(each["name"], each["is_required"], each["vague"]) for each in config["fields"]] == [
        ("size", True, "no"),
        ("rest", False, "part"),
    ]
    assert (config["fields"][0]["description"], config["docstring"]) == ("How many.", "Configuration.")
    assert tool["registers"] == [{"decorator": "register_function", "config_type": "Config"}]
    assert (tool["num_yields"], tool["num_positional"], tool["is_async"], tool["path"]) == (1, 2, True, [])
    assert [each["vague"] for each in tool["parameters"]] == ["no", "whole"]
    assert tool["hands_over"] == [
        {"function": "run", "described": "text", "description": "Join the parts.", "line": 17}
    ]
    assert (run["path"], run["num_value_returns"], run["num_yields"], run["stub"]) == (["tool"], 2, 0, None)
    assert [(each["name"], each["vague"]) for each in run["parameters"]] == [("text", "whole"), ("parts", "whole")]
    assert run["returned"] == {"name": "return", "hint": "str", "vague": "no"}
    assert value["handlers"] == [{"line": 15, "catches": ["IndexError", "Exception"], "does": "returns a constant"}]


# ---------------------------------------------------------------- MCP servers over a session


def first_answer(sandbox: Sandbox, name: str, *, request: str = "", timeout_s: float = 1.0) -> str:
    """The line that answers request 1, as a client that checks ids would find it; SessionEnded when there is none."""
    deadline = time.monotonic() + timeout_s
    source = (SERVERS / f"{name}.py").read_text()
    question = request or json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}})
    with sandbox.session("server.py", {"server.py": source}) as session:
        session.write_line(question)
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise SessionEnded("silent", "no answer in time")
            line = session.read_line(left_s)
            try:
                message = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise SessionEnded("malformed", f"not JSON: {error!r}") from None
            if isinstance(message, dict) and message.get("id") == 1 and type(message["id"]) is int:
                return line


@pytest.mark.parametrize("name", [name for name in NAMES if name != "answers_before_requests"])
def test_a_session_with_a_hostile_server_ends_in_time_and_leaves_nothing(sandbox: Sandbox, name: str) -> None:
    before = descendants()
    started = time.monotonic()
    with pytest.raises(SessionEnded):
        first_answer(sandbox, name)
    assert time.monotonic() - started < 10.0
    _wait_until_no_more_than(before)
    assert sandbox.run_python("print(1)").stdout == "1\n"
    assert sandbox.describe()["restarts"] == 0


@pytest.mark.parametrize("name", ["closes_stdout_lives_on", "exits_at_once", "forks_and_dies"])
def test_the_end_of_a_server_is_noticed_before_the_deadline(sandbox: Sandbox, name: str) -> None:
    started = time.monotonic()
    with pytest.raises(SessionEnded):
        first_answer(sandbox, name, timeout_s=20.0)
    assert time.monotonic() - started < 10.0


def test_more_than_a_pipe_holds_can_be_written_to_a_server_that_never_reads(sandbox: Sandbox) -> None:
    started = time.monotonic()
    with pytest.raises(SessionEnded):
        first_answer(sandbox, "never_reads", request="x" * 400_000)
    assert time.monotonic() - started < 20.0


def _wait_until_no_more_than(before: set[int]) -> None:
    deadline = time.monotonic() + 20.0
    while not descendants() <= before:
        assert time.monotonic() < deadline, f"left alive: {descendants() - before}"
        time.sleep(0.02)


# ---------------------------------------------------------------- MCP servers as the toolkit checks them


@pytest.fixture(scope="module")
def toolkit() -> Iterator[NatToolkit]:
    try:
        opened = NatToolkit.open()
    except NatUnavailableError as error:
        pytest.skip(f"the toolkit's interpreter is missing: {error}")
    with opened:
        yield opened


@pytest.mark.parametrize("name", NAMES)
def test_the_toolkit_blames_a_hostile_server_in_time_and_believes_nothing(toolkit: NatToolkit, name: str) -> None:
    started = time.monotonic()
    evidence = toolkit.run_mcp(
        {"mcp_server.py": (SERVERS / f"{name}.py").read_text()},
        server_path="mcp_server.py",
        calls=[("convert", {"value": 1.0})],
        request_timeout_s=0.5,
    )
    assert time.monotonic() - started < 30.0
    assert evidence.error is not None
    assert (evidence.stage, evidence.answers, evidence.is_error) == ("initialize", (), ())
    assert evidence.server_name is None and evidence.tools == {}
