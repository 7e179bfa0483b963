"""The NAT environment on the real toolkit: an episode from request to score, its tools, and rows that are refused."""

from typing import Any

import pytest
from builders import call
from nat_projects import SharedFactory, check, needs_react, replaced, row, spec_of

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.envs.base import StepResult
from agent_rl.envs.nat.env import (
    MAX_PROBLEMS,
    TOOL_SPECS,
    NATAgentEnv,
    NATEnvFactory,
    NATEnvOptions,
    make_nat_factory,
    submission,
)
from agent_rl.envs.nat.errors import NatUnavailableError
from agent_rl.envs.nat.factory.questions import served_schemas
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.envs.nat.tools import COMPLETION_MARKER
from agent_rl.errors import ConfigError, DataError
from agent_rl.records import StopReason

SPEC = spec_of("unit_converter", 2)
TOOL = SPEC.tools[0]
CLIENT = spec_of("calculator", 4)
GROUP = spec_of("function_group", 5)
FULL = 0.3 + 0.3 + 0.4


@pytest.fixture
def factory(nat_toolkit: NatToolkit) -> NATEnvFactory:
    return SharedFactory(nat_toolkit)


def begun(factory: NATEnvFactory, spec: NATSpec = SPEC) -> NATAgentEnv:
    env = NATAgentEnv(factory)
    env.reset(row(spec))
    return env


def write(path: str, text: str) -> ToolCall:
    return ToolCall(name="file_write", arguments={"path": path, "content": text})


def step_with(env: NATAgentEnv, *calls: ToolCall) -> StepResult:
    return env.step(Message.assistant("", calls))


def write_all(env: NATAgentEnv, spec: NATSpec = SPEC) -> StepResult:
    return step_with(env, *(write(path, text) for path, text in render_project(spec).items()))


def test_an_episode_from_request_to_success(factory: NATEnvFactory) -> None:
    env = NATAgentEnv(factory)
    messages = env.reset(row(SPEC))
    assert [message.role for message in messages] == ["system", "user"]
    assert messages[1].content == SPEC.request
    assert env.tools == TOOL_SPECS
    first = write_all(env)
    assert [message.content for message in first.messages] == [f"wrote {path}" for path in SPEC.files]
    tried = step_with(env, call("pytest_run"), call("nat_check"))
    tests, checked = (message.content for message in tried.messages)
    arguments = ", ".join(f"{name}: {kind}" for name, kind in sorted(served_schemas(SPEC)[TOOL.instance].items()))
    assert (tests, checked.splitlines()) == (
        "2 passed",
        [
            f"built; the example gives {TOOL.example.output!r}",
            f"mcp: answers as {SPEC.server.name!r}; {TOOL.instance}({arguments}); the example of {TOOL.instance} gives "
            f"{TOOL.example.output!r}",
        ],
    )
    assert not tried.terminated and tried.info == {"tool_calls": 2, "tool_errors": 0}
    last = step_with(env, call("submit"))
    assert last.terminated and last.flags == ()
    assert last.reward == pytest.approx(FULL + 1.0 + 0.3 * (1 - 2 / 30))
    assert last.info == {"problems": [], "num_files": len(SPEC.files), "tool_calls": 1, "tool_errors": 0}


def test_the_shares_of_all_components_are_logged_beside_the_reward(factory: NATEnvFactory) -> None:
    env = begun(factory)
    write_all(env)
    step_with(env, write("mcp_server.py", "x = 1\n"))
    result = step_with(env, call("submit"))
    shares = {name: share for name, share in result.reward_parts.items() if name.startswith("share/")}
    assert shares == {
        "share/static": 1.0, "share/config": 1.0, "share/behaviour": 1.0, "share/workflow": 1.0,
        "share/mcp": 0.0, "share/tests": 1.0,
    }  # fmt: skip
    parts = {name: value for name, value in result.reward_parts.items() if name not in shares}
    assert parts == pytest.approx(
        {"tools": 0.3, "integration": 0.15, "workflow": 0.4, "complete": 0.0, "efficiency": 0.0, "success": 0.0}
    )
    assert result.reward == pytest.approx(0.3 + 0.15 + 0.4)
    assert any("mcp, handshake" in problem for problem in result.info["problems"])


def test_the_completion_marker_ends_an_episode_like_submit(factory: NATEnvFactory) -> None:
    results = []
    for ending in (
        Message.assistant("", (call("submit"),)),
        Message.assistant(f"All files are written. {COMPLETION_MARKER}"),
    ):
        env = begun(factory)
        write_all(env)
        results.append(env.step(ending))
    submitted, marked = results
    assert COMPLETION_MARKER == "AGENT_CREATION_COMPLETE"
    assert submitted.terminated and marked.terminated
    assert submitted.reward_parts == marked.reward_parts and marked.reward_parts["success"] == 1.0


def test_words_without_a_call_are_answered_and_end_nothing(factory: NATEnvFactory) -> None:
    env = begun(factory)
    result = env.step(Message.assistant("I will write the files. Agent creation complete?"))
    assert not result.terminated and result.reward == 0.0
    assert "file_write" in result.messages[0].content and "submit" in result.messages[0].content


def test_the_marker_counts_after_the_calls_of_the_same_reply(factory: NATEnvFactory) -> None:
    writes = tuple(write(path, text) for path, text in render_project(SPEC).items())
    result = begun(factory).step(Message.assistant(f"Done: {COMPLETION_MARKER}", writes))
    assert result.terminated and result.reward_parts["success"] == 1.0
    assert (result.info["num_files"], result.info["tool_calls"], result.info["tool_errors"]) == (7, 7, 0)


def test_a_complete_project_that_is_not_submitted_is_no_success(factory: NATEnvFactory) -> None:
    env = begun(factory)
    write_all(env)
    result = env.truncate(StopReason.MAX_TURNS)
    assert result.reward == pytest.approx(FULL)
    assert result.reward_parts["success"] == result.reward_parts["complete"] == 0.0


def test_fewer_turns_earn_more_but_only_when_all_is_right(factory: NATEnvFactory) -> None:
    rewards = []
    for num_extra in (0, 10, 40):
        env = begun(factory)
        for _ in range(num_extra):
            step_with(env, ToolCall(name="file_read", arguments={"path": "x.py"}))
        rewards.append(env.step(submission(render_project(SPEC))).reward)
    assert rewards == [pytest.approx(FULL + 1.0 + bonus) for bonus in (0.3, 0.3 * (1 - 10 / 30), 0.0)]


def test_an_empty_project_is_scored_and_its_problems_are_few(factory: NATEnvFactory) -> None:
    result = step_with(begun(factory), call("submit"))
    assert result.terminated and result.reward == 0.0
    assert 0 < len(result.info["problems"]) <= MAX_PROBLEMS and result.info["num_files"] == 0


def test_tools_answer_mistakes_with_words_the_model_can_act_on(factory: NATEnvFactory) -> None:
    env = begun(factory)
    calls = [
        call("pytest_run"),
        call("nat_chek"),
        write("../outside.py", "x"),
        ToolCall(name="file_write", arguments={"path": "a.py"}),
        ToolCall(name="file_read", arguments={"path": "b.py"}),
        write(SPEC.tests_path, "def test_a():\n    assert 1 == 2\n"),
        call("pytest_run"),
        call("nat_check"),
    ]
    results = [step_with(env, each) for each in calls]
    texts = [result.messages[0].content for result in results]
    assert "no tests yet" in texts[0]
    assert "did you mean 'nat_check'" in texts[1]
    assert texts[2].startswith("error:")
    assert "argument 'content' is missing" in texts[3]
    assert "no file 'b.py'" in texts[4]
    assert texts[6].startswith("1 failed, 0 passed")
    assert texts[7].startswith("error at import")
    assert [result.info["tool_errors"] for result in results] == [1, 1, 1, 1, 1, 0, 1, 1]


def test_too_many_and_too_large_files_are_refused_when_they_are_written(factory: NATEnvFactory) -> None:
    env = begun(factory)
    large = step_with(env, write("a.py", "x" * 200_000)).messages[0].content
    assert large.startswith("error:") and "at most" in large
    texts = [each.content for each in step_with(env, *(write(f"{n}.py", "") for n in range(80))).messages]
    assert sum(text.startswith("wrote ") for text in texts) == 64
    assert "too many" in texts[-1]


def test_a_check_of_a_configuration_that_reaches_out_is_refused(factory: NATEnvFactory) -> None:
    env = begun(factory)
    write_all(env)
    step_with(env, write(SPEC.config_path, render_project(SPEC)[SPEC.config_path] + "base: /tmp/x.yml\n"))
    text = step_with(env, call("nat_check")).messages[0].content
    assert text.startswith(f"error: {SPEC.config_path} is refused: base")


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (None, "there is no mcp_server.py yet"),
        ("import sys\nsys.exit(3)\n", "error at initialize"),
        ("print('hello')\n", "error at initialize"),
        ("def broken(:\n", "error at initialize"),
    ],
)
def test_a_check_says_what_is_wrong_with_the_server_and_what_the_agent_gives(
    factory: NATEnvFactory, server: str | None, expected: str
) -> None:
    env = begun(factory)
    project = render_project(SPEC)
    step_with(env, *(write(path, text) for path, text in project.items() if path != "mcp_server.py"))
    if server is not None:
        step_with(env, write("mcp_server.py", server))
    text = step_with(env, call("nat_check")).messages[0].content
    assert text.startswith("built; the example gives ")
    assert f"\nmcp: {expected}" in text


def test_a_check_of_a_broken_configuration_still_looks_at_the_server(factory: NATEnvFactory) -> None:
    env = begun(factory)
    write_all(env)
    step_with(env, write(SPEC.config_path, "functions: ["))
    lines = step_with(env, call("nat_check")).messages[0].content.splitlines()
    assert lines[0].startswith("error")
    assert lines[-1].startswith(f"mcp: answers as {SPEC.server.name!r}")


@pytest.mark.parametrize(
    "spec",
    [CLIENT, GROUP, pytest.param(spec_of("react_agent", 5), marks=needs_react)],
    ids=lambda spec: spec.family,
)
def test_every_shape_is_checked_on_its_example_and_succeeds(factory: NATEnvFactory, spec: NATSpec) -> None:
    env = begun(factory, spec)
    write_all(env, spec)
    example = spec.tools[0].example if spec.workflow.kind == "react" else spec.workflow.example  # type: ignore[union-attr]
    agent, server = step_with(env, call("nat_check")).messages[0].content.splitlines()
    assert agent == f"built; the example gives {example.output!r}"
    assert server.startswith(f"mcp: answers as {spec.server.name!r}; ")
    examples = [] if spec.group else [tool.example.output for tool in spec.tools]
    assert [repr(output) in server for output in examples] == [True] * len(examples)
    assert step_with(env, call("submit")).reward_parts["success"] == 1.0


def test_the_verdict_of_an_episode_is_the_checkers(factory: NATEnvFactory, nat_toolkit: NatToolkit) -> None:
    changes = replaced(SPEC, SPEC.logic_path, f'"{TOOL.errors[0]}"', '"error: what"')
    env = begun(factory)
    result = env.step(submission({**render_project(SPEC), **changes}))
    report = check(nat_toolkit, SPEC, changes)
    assert {name: result.reward_parts[f"share/{name}"] for name in report.shares} == report.shares
    assert result.info["problems"] == list(report.problems[:MAX_PROBLEMS])


@pytest.mark.parametrize("spec", [SPEC, CLIENT, GROUP], ids=lambda spec: spec.family)
def test_both_prompt_styles_name_every_file_and_hold_the_request(nat_toolkit: NatToolkit, spec: NATSpec) -> None:
    texts = {}
    for style in ("compact", "guide"):
        system, user = NATAgentEnv(SharedFactory(nat_toolkit, prompt=style)).reset(row(spec))
        assert user.content == spec.request
        assert all(path.replace(spec.package, "PACKAGE") in system.content for path in spec.files)
        texts[style] = system.content
    assert len(texts["guide"]) > 3 * len(texts["compact"])
    assert texts["guide"].endswith(texts["compact"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"level": 9}, "field 'level'"),
        ({"family": "unit_convertor"}, "did you mean 'unit_converter'"),
        ({"package": "Bad Name"}, "field 'package'"),
        ({"extra": 1}, "field 'extra'"),
        ({"tools": []}, "neither a tool nor a group"),
        ({"tools": [{**row(SPEC)["tools"][0], "rules": {}}]}, "field 'tools.0.rules"),
        ({"tools": [{**row(SPEC)["tools"][0], "family": "unit"}]}, "field 'tools.0.family'"),
    ],
)
def test_a_row_that_is_no_task_is_refused_with_its_place_and_field(change: dict[str, Any], words: str) -> None:
    factory = NATEnvFactory(NATEnvOptions(), seed=0)
    with pytest.raises(DataError, match="row 7") as caught:
        factory.check_task({**row(SPEC), **change}, "tasks.jsonl, row 7")
    assert words in str(caught.value)


def test_a_row_of_another_kind_is_no_task_with_a_field_missing() -> None:
    with pytest.raises(DataError, match=r"^row 1: no NAT task.*question, answer") as caught:
        NATEnvFactory(NATEnvOptions(), seed=0).check_task({"question": "1 + 1?", "answer": "2"}, "row 1")
    assert "field" not in str(caught.value)


def test_a_row_whose_workflow_names_a_tool_that_is_not_there_is_refused() -> None:
    task = row(CLIENT)
    task["workflow"]["commands"] = {"go": "no_such_tool"}
    with pytest.raises(DataError, match="'no_such_tool' is none of the tools"):
        NATEnvFactory(NATEnvOptions(), seed=0).check_task(task, "row 1")


def test_the_scripted_solutions_are_the_reference_and_one_negative_solution_of_each_kind() -> None:
    reference, *wrong = NATEnvFactory(NATEnvOptions(), seed=0).solutions(row(SPEC))
    assert reference.name == "reference" and reference.succeeds
    assert [each.name.partition(":")[0] for each in wrong] == ["buggy", "wiring", "subtle"]
    assert not any(each.succeeds for each in wrong)


def test_unknown_options_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"env\.options"):
        make_nat_factory({"chekers": 2}, seed=0)
    assert make_nat_factory({"checkers": 3, "prompt": "guide"}, seed=5).options.checkers == 3


def test_without_the_toolkit_nothing_is_scored() -> None:
    factory = NATEnvFactory(NATEnvOptions(nat_python="/nowhere/python"), seed=0)
    with pytest.raises(NatUnavailableError, match="make setup"):
        factory.start()
    with pytest.raises(RuntimeError, match="start"):
        factory.get_toolkit()


def test_weights_of_the_reward_that_are_all_0_are_refused_and_one_is_enough() -> None:
    zero = dict.fromkeys(("tools", "integration", "workflow", "complete", "efficiency"), 0.0)
    with pytest.raises(ConfigError, match="all weights are 0"):
        make_nat_factory({"reward": zero}, seed=0)
    make_nat_factory({"reward": {**zero, "progress": 0.5}}, seed=0)
