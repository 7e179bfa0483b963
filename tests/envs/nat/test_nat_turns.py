"""Submissions that are answered by a report, and the reward of progress."""

from typing import Any

import pytest
from builders import call
from nat_projects import SharedFactory, replaced, row, spec_of

from agent_rl.agent.messages import Message
from agent_rl.envs.base import StepResult
from agent_rl.envs.nat.env import NATAgentEnv, submission
from agent_rl.envs.nat.factory.cases import hidden_cases
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.envs.nat.tools import COMPLETION_MARKER
from agent_rl.envs.nat.visible import failed_lines, visible_checks

SPEC = spec_of("unit_converter", 2)
FILES = render_project(SPEC)
UNBUILT = {**FILES, **replaced(SPEC, SPEC.register_path, "    yield FunctionInfo", "    return FunctionInfo")}


def begun(toolkit: NatToolkit, **options) -> NATAgentEnv:
    env = NATAgentEnv(SharedFactory(toolkit, **options))
    env.reset(row(SPEC))
    return env


def only(env: NATAgentEnv, path: str, text: str) -> StepResult:
    return env.step(Message.assistant("", (call("file_write", path=path, content=text),)))


def test_by_default_a_submission_ends_the_episode(nat_toolkit: NatToolkit) -> None:
    last = begun(nat_toolkit).step(submission(UNBUILT))
    assert last.terminated and last.reward_parts["success"] == 0.0
    assert not {"first_check", "mended", "progress"} & last.reward_parts.keys()


def test_a_submission_that_fails_is_answered_and_can_be_mended(nat_toolkit: NatToolkit) -> None:
    env = begun(nat_toolkit, repair_turns=2)
    told = env.step(submission(UNBUILT))
    assert not told.terminated and told.reward == 0.0
    assert [each.content for each in told.messages[:-1]] == [f"wrote {path}" for path in FILES]
    assert told.messages[-1].name == "submit" and "error at build" in told.messages[-1].content
    last = env.step(submission({SPEC.register_path: FILES[SPEC.register_path]}))
    assert last.terminated
    assert [last.reward_parts[name] for name in ("success", "first_check", "mended")] == [1.0, 0.0, 1.0]


def test_a_good_submission_ends_it_with_repair_turns_too(nat_toolkit: NatToolkit) -> None:
    last = begun(nat_toolkit, repair_turns=2).step(submission(FILES))
    assert last.terminated and last.reward_parts["success"] == last.reward_parts["first_check"] == 1.0
    assert "mended" not in last.reward_parts


def test_when_the_turns_are_used_up_the_project_counts_as_submitted(nat_toolkit: NatToolkit) -> None:
    env = begun(nat_toolkit, repair_turns=2)
    env.step(submission(UNBUILT))
    assert not env.step(submission({})).terminated
    last = only(env, SPEC.register_path, FILES[SPEC.register_path])
    assert last.terminated and last.reward_parts["success"] == last.reward_parts["mended"] == 1.0
    env = begun(nat_toolkit, repair_turns=1)
    env.step(submission(UNBUILT))
    assert env.step(submission({})).terminated  # fails again, and no turn is left


def test_the_words_of_completion_are_answered_alike(nat_toolkit: NatToolkit) -> None:
    env = begun(nat_toolkit, repair_turns=1)
    for path, text in UNBUILT.items():
        only(env, path, text)
    told = env.step(Message.assistant(COMPLETION_MARKER))
    assert not told.terminated
    assert [each.role for each in told.messages] == ["user"] and "error at build" in told.messages[0].content


def test_a_report_holds_no_hidden_case(nat_toolkit: NatToolkit) -> None:
    """Code that is wrong where neither the example nor a test looks is taken; what is told is of these alone."""
    wrong = "def convert(value, from_unit, to_unit, precision=1):\n    return 'error: no such thing'\n"
    env = begun(nat_toolkit, repair_turns=1)
    told = env.step(submission({**FILES, SPEC.logic_path: wrong})).messages[-1].content
    shown = {SPEC.tools[0].example.output, SPEC.tools[0].errors[0]}
    asked = [ask for run in hidden_cases(SPEC, 0) for ask in run.questions if ask.expected not in shown]
    assert len(asked) > 10
    assert not [ask for ask in asked if repr(ask.expected) in told or str(ask.inputs) in told]
    untested = {**FILES, SPEC.tests_path: FILES[SPEC.tests_path].split("\n\n\ndef test_error")[0] + "\n"}
    lost = FILES[SPEC.logic_path].replace('return "error', 'return "wrong')
    last = begun(nat_toolkit, repair_turns=1).step(submission({**untested, SPEC.logic_path: lost}))
    assert last.terminated and last.reward_parts["first_check"] == 1.0 and last.reward_parts["success"] == 0.0


def test_what_is_visible_of_projects(nat_toolkit: NatToolkit) -> None:
    found = visible_checks(nat_toolkit, SPEC, FILES)
    assert found.all_passed and found.share == 1.0
    few = visible_checks(nat_toolkit, SPEC, {SPEC.logic_path: FILES[SPEC.logic_path]})
    assert not any(few.passed.values()) and few.share == 0.0
    assert set(few.texts) == {"files", "nat_check", "pytest_run"}


@pytest.mark.parametrize(("family", "level"), [("unit_converter", 1), ("tool_workflow", 3), ("function_group", 4)])
def test_a_report_has_what_came_out_beside_what_the_request_says(
    family: str, level: int, nat_toolkit: NatToolkit
) -> None:
    spec = spec_of(family, level)
    example = (spec.tools[0] if spec.workflow.kind == "direct" else spec.workflow).example
    asked = ", ".join(f"{name} = {value!r}" for name, value in example.inputs.items())
    gives = f"the example, {asked}, gives {example.output!r}"
    files = render_project(spec)
    assert visible_checks(nat_toolkit, spec, files).compared == [f"{gives}, as the request says"]
    told = spec.model_copy(update=other_example(spec, f"x{example.output}"))
    found = visible_checks(nat_toolkit, told, files)
    assert not found.passed["example"]
    assert found.compared[0] == f"{gives}, the request says {'x' + example.output!r}"


def other_example(spec: NATSpec, output: str) -> dict[str, Any]:
    """The change after which a spec's example is to give something else."""
    if spec.workflow.kind != "direct":
        example = spec.workflow.example.model_copy(update={"output": output})
        return {"workflow": spec.workflow.model_copy(update={"example": example})}
    example = spec.tools[0].example.model_copy(update={"output": output})
    return {"tools": (spec.tools[0].model_copy(update={"example": example}), *spec.tools[1:])}


def test_a_report_has_the_server_beside_what_the_request_says(nat_toolkit: NatToolkit) -> None:
    server = FILES["mcp_server.py"].replace(repr(SPEC.server.name).replace("'", '"'), '"elsewhere"')
    server = server.replace("value: float", "amount: float").replace("(value,", "(amount,")
    found = visible_checks(nat_toolkit, SPEC, {**FILES, "mcp_server.py": server})
    assert found.passed["built"] and found.passed["example"] and not found.passed["served"]
    name, wanted = SPEC.tools[0].instance, "from_unit: string, to_unit: string, value: number"
    assert found.compared[1:] == [
        f"mcp: the server is 'elsewhere', the request says {SPEC.server.name!r}",
        f"mcp: the server offers {name}(amount: number, from_unit: string, to_unit: string), "
        f"the request says {name}({wanted})",
    ]


def test_a_report_has_the_lines_of_tests_that_failed(nat_toolkit: NatToolkit) -> None:
    line = next(line for line in FILES[SPEC.tests_path].split("\n") if line.startswith("    assert "))
    output = SPEC.tools[0].example.output
    tests = FILES[SPEC.tests_path].replace(line, line.replace(output, f"{output}7"))
    told = begun(nat_toolkit, repair_turns=1).step(submission({**FILES, SPEC.tests_path: tests})).messages[-1].content
    assert told.split("\n")[-2:] == [f'> {line.strip()[:-1]}7"', f"E assert {output!r} == '{output}7'"]
    assert told.split("\n")[-3].endswith(f"gives {output!r}, as the request says")
    unread = {**FILES, SPEC.logic_path: f"{FILES[SPEC.logic_path]}BROKEN = 'a\n"}
    told = begun(nat_toolkit, repair_turns=1).step(submission(unread)).messages[-1].content.split("\n")
    assert told[-2] == "> BROKEN = 'a" and told[-1].startswith("E SyntaxError: unterminated string")
    unmade = {**FILES, SPEC.logic_path: f"{FILES[SPEC.logic_path]}MADE = absent\n"}
    told = begun(nat_toolkit, repair_turns=1).step(submission(unmade)).messages[-1].content.split("\n")
    assert told[-2:] == ["> MADE = absent", "E NameError: name 'absent' is not defined"]
    none = {path: text for path, text in FILES.items() if path != SPEC.tests_path}
    told = begun(nat_toolkit, repair_turns=1).step(submission(none)).messages[-1].content
    assert "pytest_run: error" in told and "\n> " not in told


def test_of_what_pytest_prints_the_first_failures_are_told() -> None:
    failure = (
        "___ test_{0} ___\n\n    def test_{0}():\n>       assert f({0}) == 1\nE       {1}assert {0} == 1\nE    - 1\n"
    )
    printed = "FF\n=== FAILURES ===\n" + "".join(failure.format(n, "AssertionError: ") for n in range(2, 5))
    assert failed_lines(printed) == ["> assert f(2) == 1", "E assert 2 == 1", "> assert f(3) == 1", "E assert 3 == 1"]
    boom = "___ test_boom ___\n>       go()\n\na = 1\n\n>       return 1 / 0\nE       ZeroDivisionError: by zero\n"
    assert failed_lines(boom) == ["> go()", "E ZeroDivisionError: by zero"]
    assert failed_lines(failure.format("x" * 500, ""))[0] == f"> assert f({'x' * 191}"
    cut = "___ t ___\n>   assert f() == 'ab'\nE   AssertionError: assert 'x...' == 'a...'\nE   \nE   - ab\nE   + xb\n"
    assert failed_lines(cut) == ["> assert f() == 'ab'", "E assert 'x...' == 'a...'", "E - ab", "E + xb"]
    assert failed_lines("> a\nE b\n") == failed_lines("") == failed_lines("____ t ____\n> a\n") == []


def test_progress_is_paid_as_it_is_made_and_taken_back(nat_toolkit: NatToolkit) -> None:
    env = begun(nat_toolkit, reward={"progress": 1.0})
    for path, text in FILES.items():
        result = only(env, path, text)
    assert result.reward is not None
    earned = [only(env, SPEC.register_path, text).reward for text in (UNBUILT[SPEC.register_path], "", "x = 1\n")]
    assert earned == pytest.approx([-0.4, 0.0, 0.0])  # neither built nor the example right
    last = env.step(submission({SPEC.register_path: FILES[SPEC.register_path]}))
    assert last.reward_parts["progress"] == pytest.approx(1.0)
    assert last.reward == pytest.approx(
        0.4
        + sum(last.reward_parts[n] for n in ("tools", "integration", "workflow"))
        + last.reward_parts["complete"]
        + last.reward_parts["efficiency"]
    )
