"""Submissions that are answered by a report, and the reward of progress."""

import pytest
from builders import call
from nat_projects import SharedFactory, replaced, row, spec_of

from agent_rl.agent.messages import Message
from agent_rl.envs.base import StepResult
from agent_rl.envs.nat.env import NATAgentEnv, submission
from agent_rl.envs.nat.factory.cases import hidden_cases
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.tools import COMPLETION_MARKER
from agent_rl.envs.nat.visible import visible_checks

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
