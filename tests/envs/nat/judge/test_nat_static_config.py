"""The static checks of configurations and pyproject.toml, and the gate before the toolkit loads one."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.envs.nat.judge.static_config import ConfigType, check_config, check_pyproject, config_types, why_unsafe
from agent_rl.envs.nat.judge.worker.parse_jobs import read

PATH = "src/nat_x/configs/config.yml"
FILES = {PATH: "", "src/nat_x/configs/config-mcp-client.yml": "", "mcp_server.py": ""}
TYPES = {
    "nat_x_tool": ConfigType("function", {"precision"}, {"precision"}),
    "nat_x_router": ConfigType("function", {"first"}, {"first"}, {"first": ("functions",)}),
    "nat_x_store": ConfigType("group", {"size"}, ()),
}
GOOD = """\
functions:
  conv: {_type: nat_x_tool, precision: 2}
function_groups:
  box: {_type: nat_x_store, include: [put]}
workflow: {_type: nat_x_router, first: conv}
"""
CLIENT = """\
function_groups:
  units:
    _type: mcp_client
    server: {transport: stdio, command: python, args: [mcp_server.py]}
    include: [conv]
workflow: {_type: nat_x_router, first: units__conv}
"""
AGENT = """\
functions: {conv: {_type: nat_x_tool, precision: 2}}
function_groups: {box: {_type: nat_x_store, include: [put]}}
llms: {main: {_type: openai, model_name: x}}
workflow: {_type: react_agent, llm_name: main, tool_names: [conv, box, box__put]}
"""


def value_of(text: str) -> Any:
    return read("yaml", text)["value"]


def scores(text: str, **changed: Any) -> dict[str, float]:
    points = check_config(PATH, value_of(text), **{"known_types": TYPES, "project_files": FILES, **changed})
    assert all(point.stage == "config" and point.evidence for point in points)
    return {point.name: point.score for point in points}


def evidence(text: str, name: str) -> str:
    points = check_config(PATH, value_of(text), known_types=TYPES, project_files=FILES)
    return next(point.evidence for point in points if point.name == name)


def lost(text: str, **changed: Any) -> set[str]:
    return {name for name, score in scores(text, **changed).items() if score < 1.0}


@pytest.mark.parametrize("text", [GOOD, CLIENT, AGENT])
def test_a_good_configuration_gets_every_point_and_may_be_loaded(text: str) -> None:
    assert lost(text) == set()
    assert why_unsafe(value_of(text), text=text) is None
    assert ("MCP client" in scores(text)) is (text == CLIENT)


@pytest.mark.parametrize(
    ("text", "name", "problem"),
    [
        (GOOD + "tools: {}\n", "top keys", "unknown key 'tools'"),
        (GOOD.replace("functions:", "function:"), "top keys", "unknown key 'function'; did you mean 'functions'?"),
        (GOOD.replace("_type: nat_x_router, ", ""), "workflow", "no workflow with a _type"),
        (GOOD.replace("_type: nat_x_router", "_type: nat_x_ruter"), "workflow", "did you mean 'nat_x_router'?"),
        (GOOD.replace("_type: nat_x_tool", "_type: nat_x_store"), "components", "no function has the _type"),
        (GOOD.replace("{_type: nat_x_tool, precision: 2}", "nat_x_tool"), "components", "conv is not a mapping"),
        (GOOD.replace("include: [put]", "include: [put], exclude: [pop]"), "components", "include and exclude"),
        (GOOD.replace("precision: 2", "precison: 2"), "fields", "did you mean 'precision'?"),
        (GOOD.replace(", precision: 2", ""), "fields", "the required field 'precision' is missing"),
        (GOOD.replace("first: conv", "first: convert"), "references", "'convert' is not defined in functions"),
        (GOOD.replace("first: conv", "first: box__pop"), "references", "'box__pop' is not defined"),
        (GOOD.replace("first: conv", "first: 3"), "references", "a int is not defined"),
        (CLIENT.replace("include: [conv]", "tool_call_timeout: 9"), "references", "'units__conv' is not defined"),
        (CLIENT.replace("command: python", "command: sh"), "MCP client", "must be `python`, not 'sh'"),
        (CLIENT.replace("[mcp_server.py]", "[other.py]"), "MCP client", "'other.py' is no file of the project"),
        (AGENT.replace("[conv, box", "[conv, bax"), "references", "'bax' is not defined in functions or function_gr"),
        (AGENT.replace("llm_name: main", "llm_name: mian"), "references", "'mian' is not defined in llms"),
        (GOOD.replace("precision: 2", "precision: 2, middleware: [m]"), "references", "'m' is not defined in middlew"),
    ],
)
def test_a_defect_costs_its_point_and_is_named(text: str, name: str, problem: str) -> None:
    assert scores(text)[name] < 1.0
    assert problem in evidence(text, name)
    assert evidence(text, name).startswith(PATH)


def test_own_types_may_not_have_the_names_of_built_in_ones() -> None:
    types = {**TYPES, "current_datetime": ConfigType("function", (), ())}
    assert lost(GOOD, known_types=types) == {"components"}


def test_types_may_be_given_as_plain_triples() -> None:
    types = {name: tuple(each)[:3] for name, each in TYPES.items()}
    assert lost(GOOD, known_types=types) == set()


@pytest.mark.parametrize("value", [None, {}, [], "workflow", 3, {"functions": {}}])
def test_a_file_without_a_workflow_gets_nothing_for_the_parts_it_lacks(value: Any) -> None:
    points = {point.name: point.score for point in check_config(PATH, value, known_types=TYPES, project_files=FILES)}
    assert {points[name] for name in ("workflow", "components", "fields", "references")} == {0.0}


def test_a_base_is_merged_and_must_be_a_file_of_the_project() -> None:
    path = "src/nat_x/configs/config-mcp-client.yml"

    def found(base: str, base_value: Any) -> set[str]:
        value = {"base": base, "functions": {"conv": {"precision": 3}}}
        points = check_config(path, value, known_types=TYPES, project_files=FILES, base_value=base_value)
        return {point.name for point in points if point.score < 1.0}

    assert found("config.yml", value_of(GOOD)) == set()
    assert found("other.yml", value_of(GOOD)) == {"workflow"}
    assert found("../x.yml", value_of(GOOD)) == {"safe to load", "workflow"}
    assert "workflow" in found("config.yml", None)


def test_a_file_that_names_no_base_stands_alone() -> None:
    alone = "workflow: {_type: nat_x_router, first: conv}"
    assert lost(alone, base_value=value_of(GOOD)) == {"references"}


# ---------------------------------------------------------------- the gate

SERVER = "function_groups: {u: {_type: own, server: %s}}"
UNSAFE = {
    "absolute base": "base: /etc/x.yml",
    "climbing base": "base: ../../x.yml",
    "base that is no YAML": "base: notes.txt",
    "base that is a list": "base: [config.yml]",
    "variable": "workflow: {_type: x, key: '${SECRET}'}",
    "variable in a key": "workflow: {_type: x, '${SECRET}': 1}",
    "variable from an escape": 'workflow: {_type: x, key: "\\x24{SECRET}"}',
    "variable from an escaped escape": 'workflow: {_type: x, key: "\\\\x24{SECRET}"}',
    "file": "workflow: {_type: x, prompt: file:///etc/passwd}",
    "file in a list": "workflow: {_type: x, prompts: [a, 'file://x.md']}",
    # The toolkit drops what is between the braces, and then sees a base where YAML sees a text.
    "base behind a comment": '# ${X:+\nx: "\n# }\nbase: ../x.yml # "\n',
    # The toolkit makes one backslash of two, so that the quote after them no longer ends the text.
    "base behind a backslash": '{a: "\\\\" # ", base: ../x.yml\n}\n',
    "shell": SERVER % "{transport: stdio, command: sh, args: [x.py]}",
    "python by path": SERVER % "{transport: stdio, command: /tmp/python, args: [x.py]}",
    "code in an argument": SERVER % "{transport: stdio, command: python, args: ['-c', 'import os']}",
    "module": SERVER % "{transport: stdio, command: python, args: ['-mx.py']}",
    "climbing script": SERVER % "{transport: stdio, command: python, args: [../x.py]}",
    "environment": SERVER % "{transport: stdio, command: python, args: [x.py], env: {LD_PRELOAD: x}}",
    "arguments alone, for a base": SERVER % "{args: ['-c', 'import os']}",
    "network": SERVER % "{transport: sse, url: 'http://x'}",
    "a provider that imports": "authentication: {a: {_type: mcp_service_account, service_token: {function: x.y}}}",
    "text": "workflow",
    "nothing": "",
}


@pytest.mark.parametrize("name", UNSAFE)
def test_a_configuration_that_reaches_outside_is_not_loaded(name: str) -> None:
    assert why_unsafe(value_of(UNSAFE[name]), text=UNSAFE[name])


def test_what_the_value_shows_costs_the_point_as_well() -> None:
    assert scores("base: /etc/x.yml\n" + GOOD)["safe to load"] == 0.0
    assert scores(CLIENT.replace("stdio,", "stdio, env: {},"))["safe to load"] == 0.0


# ---------------------------------------------------------------- types, pyproject, any value


def test_types_are_read_from_an_outline_with_what_their_fields_refer_to() -> None:
    text = """
class Base(FunctionBaseConfig):
    depth: int
    size: int

class Config(Base, name="nat_x_tool"):
    size: int = 3
    first: FunctionRef = Field(description="x")
    agents: list[FunctionRef | FunctionGroupRef] = []
    llm: LLMRef = Field(..., description="x")
    _private: int
    kept: ClassVar[int] = 2

class Other(BaseModel, name="other"):
    x: int
"""
    types = config_types(read("python", text)["value"])
    assert types == {
        "nat_x_tool": ConfigType(
            "function",
            {"depth", "size", "first", "agents", "llm"},
            {"depth", "first", "llm"},
            {"first": ("functions",), "agents": ("functions", "function_groups"), "llm": ("llms",)},
        )
    }
    assert config_types({"functions": 3}) == {}


@pytest.mark.parametrize(
    ("text", "name", "entry"),
    [
        ("[project]\nname='nat_x'\n[project.entry-points.'nat.components']\nx='nat_x.register'", 1.0, 1.0),
        ("[project]\nname='Nat-X'\n[project.entry-points.'nat.plugins']\nx='nat_x.register'", 1.0, 1.0),
        ("[project]\nname='y'\n[project.entry-points.'nat.components']\nx='nat_x.tools'", 0.0, 0.0),
        ("[project]\nname='nat_x'\n[project.entry-points.'nat.components']\nx='nat_x.register'\ny='os'", 1.0, 0.5),
        ("[project]\nname='nat_x'\n[project.entry-points.nat.components]\nx='nat_x.register'", 1.0, 0.0),
        ("project = 1", 0.0, 0.0),
        ("not toml", 0.0, 0.0),
    ],
)
def test_pyproject_needs_its_name_and_one_entry_point(text: str, name: float, entry: float) -> None:
    points = check_pyproject(read("toml", text).get("value"), "nat_x", "nat_x.register")
    assert {point.name: point.score for point in points} == {"project name": name, "entry point": entry}


KEYS = ["base", "functions", "function_groups", "workflow", "_type", "server", "args", "include", "project", "c"]
KEYS += ["entry-points", "nat.components", "transport", "command", "first", "tool_names", "name", "\ud800\x07"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["mcp_client", "nat_x_router", "c__x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=30,
)


@given(value=JSON, base=JSON)
@settings(max_examples=50, deadline=None)
def test_any_value_is_answered(value: Any, base: Any) -> None:
    whole = {"base": "config.yml", "functions": value, "function_groups": base, "workflow": value}
    server = {"function_groups": {"c": {"_type": "mcp_client", "server": value}}, "workflow": base}
    for config in (value, whole, server, {"function_groups": {"c": base}, "workflow": {"_type": value, "first": base}}):
        points = check_config(PATH, config, known_types=TYPES, project_files=FILES, base_value=base)
        assert all(point.evidence.isprintable() for point in points)
        assert points[0].score == float(isinstance(config, dict) and bool(config))
        why_unsafe(config, text="")
    for project in (value, {"project": value}, {"project": {"entry-points": value, "name": base}}):
        assert sum(point.score for point in check_pyproject(project, "nat_x", "nat_x.register")) == 0.0
