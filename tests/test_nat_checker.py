"""The checker and the environment, on the real toolkit: references earn everything, cheats earn no success."""

import itertools
from collections.abc import Iterator

import pytest

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.envs.nat_agent_env import TOOL_SPECS, NATAgentEnv, NATEnvFactory, NATEnvOptions
from agent_rl.errors import NatUnavailableError
from agent_rl.nat.checker import CheckReport, check_project
from agent_rl.nat.families import FAMILIES
from agent_rl.nat.generate import generate_specs
from agent_rl.nat.project import render_logic, render_project
from agent_rl.nat.spec import NATSpec
from agent_rl.nat.toolkit import NatToolkit
from agent_rl.records import StopReason
from agent_rl.sandbox.freeze import Flag

SPECS = list(itertools.islice(generate_specs(0, "train"), 16))
SPEC = next(spec for spec in SPECS if spec.family == "unit_converter" and spec.level == 2)
LOGIC = f"src/{SPEC.package}/logic.py"
REGISTER = f"src/{SPEC.package}/register.py"
CONFIG = f"src/{SPEC.package}/configs/config.yml"
TESTS = f"tests/test_{SPEC.package}.py"


@pytest.fixture(scope="module")
def factory() -> Iterator[NATEnvFactory]:
    factory = NATEnvFactory(NATEnvOptions(checkers=1), seed=0)
    factory.start()
    yield factory
    factory.close()


@pytest.fixture(scope="module")
def toolkit(factory: NATEnvFactory) -> NatToolkit:
    return factory.get_toolkit()


def check(toolkit: NatToolkit, changes: dict[str, str | None], spec: NATSpec = SPEC) -> CheckReport:
    """Check the reference project with some files replaced, added, or (None) left out."""
    files = {**render_project(spec), **changes}
    return check_project(toolkit, spec, {path: text for path, text in files.items() if text is not None}, seed=0)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.family}-{spec.level}-{spec.task_id}")
def test_a_reference_project_is_complete(toolkit: NatToolkit, spec: NATSpec) -> None:
    report = check(toolkit, {}, spec)
    assert report.problems == ()
    assert report.complete


@pytest.mark.parametrize("spec", SPECS[:8], ids=lambda spec: f"{spec.family}-{spec.level}-{spec.task_id}")
def test_forgetting_the_error_check_costs_the_success_and_is_named(toolkit: NatToolkit, spec: NATSpec) -> None:
    body = FAMILIES[spec.family].mutants(spec)[0]
    report = check(toolkit, render_project(spec, body=body, test_error=False), spec)
    assert not report.complete
    assert report.workflow < 1.0
    assert any(spec.errors[0] in problem for problem in report.problems)


def replaced(path: str, old: str, new: str) -> dict[str, str | None]:
    text = render_project(SPEC)[path]
    assert old in text
    return {path: text.replace(old, new)}


SABOTAGE: dict[str, tuple[dict[str, str | None], str]] = {
    "empty project": (dict.fromkeys(SPEC.files), "tools"),
    "no tests": ({TESTS: None}, "tests"),
    "tests that assert nothing": ({TESTS: "def test_a():\n    assert True\n\ndef test_b():\n    pass\n"}, "tests"),
    "tests that are all skipped": (
        {TESTS: "import pytest\n\n@pytest.mark.skip\ndef test_a():\n    assert False\n"},
        "tests",
    ),
    "tests that end the process": ({TESTS: "import os\n\ndef test_a():\n    os._exit(0)\n"}, "tests"),
    "tests that always fail": ({TESTS: "def test_a():\n    assert False\n"}, "tests"),
    "syntax error": (replaced(REGISTER, "async def tool", "async deff tool"), "workflow"),
    "return for yield": (replaced(REGISTER, "    yield FunctionInfo", "    return FunctionInfo"), "workflow"),
    "sync function": (replaced(REGISTER, "    async def run", "    def run"), "workflow"),
    "wrong type name": (replaced(REGISTER, f'name="{SPEC.type_name}"', 'name="other"'), "workflow"),
    "a config field that does nothing": (replaced(REGISTER, "config.precision", "3"), "workflow"),
    "no workflow": (replaced(CONFIG, "workflow:", "agent:"), "workflow"),
    "another instance name": (replaced(CONFIG, f"  {SPEC.instance}:", "  somebody_else:"), "workflow"),
    "the process ends at import": ({LOGIC: "import os\nos._exit(0)\n"}, "workflow"),
    "sys.exit at import": ({LOGIC: "import sys\nsys.exit(0)\n"}, "workflow"),
    "a stub that echoes": (
        {LOGIC: f"def convert({', '.join(f.name for f in SPEC.inputs)}, precision=2) -> str:\n    return str(value)\n"},
        "workflow",
    ),
    "the visible example hard-coded": (
        {LOGIC: f"def convert(*a, **k) -> str:\n    return {SPEC.example.output!r}\n"},
        "workflow",
    ),
    "an answer that equals everything": (
        {
            LOGIC: "class Any(str):\n    def __eq__(self, other):\n        return True\n\n"
            "    __hash__ = str.__hash__\n\n\n"
            "def convert(value, from_unit, to_unit, precision=2):\n    return Any('x')\n"
        },
        "workflow",
    ),
    "MCP server missing": ({"mcp_server.py": None}, "integration"),
    "MCP server that dies": ({"mcp_server.py": "raise SystemExit(0)\n"}, "integration"),
    "MCP server that prints": (
        replaced("mcp_server.py", "    server.run()", "    print('hello')\n    server.run()"),
        "integration",
    ),
    "MCP tool under another name": (
        replaced("mcp_server.py", f"def {SPEC.instance}(", "def another_name("),
        "integration",
    ),
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_a_sabotaged_or_cheating_project_is_no_success(toolkit: NatToolkit, name: str) -> None:
    changes, part = SABOTAGE[name]
    report = check(toolkit, changes)
    assert not report.complete
    assert getattr(report, part) < 1.0
    assert report.problems


def test_patching_pytest_or_adding_plugins_changes_nothing(toolkit: NatToolkit) -> None:
    conftest = "import pytest\n\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport():\n"
    conftest += "    outcome = yield\n    outcome.get_result().outcome = 'passed'\n"
    cheat = {"tests/conftest.py": conftest, "conftest.py": conftest, TESTS: "def test_a():\n    assert False\n"}
    assert check(toolkit, cheat).tests == 0.0


@pytest.mark.parametrize("depth", [900, 50_000])
def test_deeply_nested_code_is_a_failure_of_the_project_and_not_of_the_checker(toolkit: NatToolkit, depth: int) -> None:
    chain = "@a" + ".a" * depth + "(config_type=ToolConfig)"
    report = check(toolkit, replaced(REGISTER, "@register_function(config_type=ToolConfig)", chain))
    assert not report.complete
    assert report.static < 1.0
    assert report.workflow == 0.0


@pytest.mark.parametrize("depth", [500, 900, 970])
def test_a_deeply_nested_answer_is_a_wrong_answer(toolkit: NatToolkit, depth: int) -> None:
    nested = f"answer = 'x'\n        for _ in range({depth}):\n            answer = [answer]\n        return answer"
    report = check(
        toolkit, replaced(REGISTER, f"return {SPEC.function}(value, from_unit, to_unit, config.precision)", nested)
    )
    assert report.behaviour == 0.0
    assert report.problems


def test_honest_projects_raise_no_flag_and_attempts_are_named(toolkit: NatToolkit) -> None:
    assert check(toolkit, {}).flags == ()
    tricks = "import os, gc\nos._exit(0)\nprint(gc.get_objects())\n"
    flagged = check(toolkit, {"conftest.py": "", "sitecustomize.py": "", "notes.txt": "x", TESTS: tricks})
    wanted = {Flag.DROPPED_TEST_CONFIG, Flag.DROPPED_STARTUP, Flag.DROPPED_UNDECLARED}
    assert set(flagged.flags) == wanted | {Flag.SOURCE_EXIT, Flag.SOURCE_FRAMES}


def test_tests_that_read_the_source_instead_of_calling_it_earn_nothing(toolkit: NatToolkit) -> None:
    body = FAMILIES[SPEC.family].mutants(SPEC)[0]
    missing = next(line for line in render_logic(SPEC).splitlines() if line not in render_logic(SPEC, body))
    suite = f"""import inspect
import {SPEC.package}.logic as logic
def test_source():
    assert {missing.strip()!r} in inspect.getsource(logic)
"""
    report = check(toolkit, {TESTS: suite})
    assert report.tests == 0.0 and not report.complete


@pytest.mark.parametrize("text", ["a: &x {b: 1}\nc: *x\n", "a: {<<: {b: 1}}\n", "a: [\n", "a: 1\na: 2\n"])
def test_a_configuration_with_more_than_plain_yaml_is_refused(toolkit: NatToolkit, text: str) -> None:
    report = check(toolkit, {CONFIG: render_project(SPEC)[CONFIG] + text})
    assert (report.config, report.workflow, report.behaviour) == (0.0, 0.0, 0.0)
    assert any(problem.startswith("config.yml is refused: ") for problem in report.problems)


def test_a_file_outside_the_spec_is_ignored(toolkit: NatToolkit) -> None:
    report = check(toolkit, {"nat/__init__.py": "raise SystemExit\n", "src/mcp/__init__.py": "raise SystemExit\n"})
    assert report.complete


def test_half_right_answers_earn_partial_credit_and_equivalent_code_earns_all(toolkit: NatToolkit) -> None:
    swapped = check(toolkit, replaced(LOGIC, 'return "error: unknown unit"', 'return "error: what"'))
    assert 0.3 < swapped.workflow < 1.0
    rewritten = replaced(
        LOGIC, "value * FACTORS[from_unit] / FACTORS[to_unit]", "FACTORS[from_unit] / FACTORS[to_unit] * value"
    )
    assert check(toolkit, rewritten).complete


def play(factory: NATEnvFactory, *calls: ToolCall, spec: NATSpec = SPEC) -> tuple[NATAgentEnv, list]:
    env = NATAgentEnv(factory)
    env.reset(spec.model_dump(mode="json"))
    return env, [env.step(Message.assistant("", (call,))) for call in calls]


def write(path: str, text: str) -> ToolCall:
    return ToolCall(name="file_write", arguments={"path": path, "content": text})


def call(name: str) -> ToolCall:
    return ToolCall(name=name, arguments={})


def test_an_episode_from_request_to_success(factory: NATEnvFactory) -> None:
    env = NATAgentEnv(factory)
    messages = env.reset(SPEC.model_dump(mode="json"))
    assert [message.role for message in messages] == ["system", "user"]
    assert env.tools == TOOL_SPECS
    writes = tuple(write(path, text) for path, text in render_project(SPEC).items())
    first = env.step(Message.assistant("", (*writes, call("pytest_run"), call("nat_check"))))
    texts = [message.content for message in first.messages]
    assert texts[0] == f"wrote {SPEC.files[0]}"
    assert texts[-2] == "2 passed"
    assert texts[-1] == f"built; the example gives {SPEC.example.output!r}"
    last = env.step(Message.assistant("", (call("submit"),)))
    assert last.terminated
    assert last.reward_parts["success"] == 1.0
    assert last.reward == pytest.approx(0.3 + 0.3 + 0.4 + 1.0 + 0.3 * (1 - 1 / 30))


def test_a_complete_project_that_is_not_submitted_is_no_success(factory: NATEnvFactory) -> None:
    writes = [write(path, text) for path, text in render_project(SPEC).items()]
    env, _ = play(factory, *writes)
    result = env.truncate(StopReason.MAX_TURNS)
    assert result.reward == pytest.approx(1.0)
    assert result.reward_parts["success"] == 0.0


def test_tools_answer_mistakes_with_words_the_model_can_act_on(factory: NATEnvFactory) -> None:
    _, results = play(
        factory,
        call("pytest_run"),
        call("nat_chek"),
        write("../outside.py", "x"),
        ToolCall(name="file_write", arguments={"path": "a.py"}),
        ToolCall(name="file_read", arguments={"path": "b.py"}),
        write(TESTS, "def test_a():\n    assert 1 == 2\n"),
        call("pytest_run"),
        call("nat_check"),
    )
    texts = [result.messages[0].content for result in results]
    assert "no tests yet" in texts[0]
    assert "did you mean 'nat_check'" in texts[1]
    assert texts[2].startswith("error:")
    assert "argument 'content' is missing" in texts[3]
    assert "no file 'b.py'" in texts[4]
    assert texts[6].startswith("1 failed, 0 passed")
    assert texts[7].startswith("error at import")
    assert [result.info["tool_errors"] for result in results] == [1, 1, 1, 1, 1, 0, 1, 1]


def test_without_the_toolkit_nothing_is_scored() -> None:
    factory = NATEnvFactory(NATEnvOptions(nat_python="/nowhere/python"), seed=0)
    with pytest.raises(NatUnavailableError, match="make setup"):
        factory.start()
