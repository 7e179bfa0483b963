"""The coding environment: an episode from request to success, its ends and rewards, and rows that are refused."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sandboxes import code_factory_or_skip

from agent_rl.agent.code_format import read_blocks
from agent_rl.agent.messages import Message, ToolCall
from agent_rl.envs.base import StepResult
from agent_rl.envs.check_data import check_data
from agent_rl.envs.code.env import (
    SYSTEM_PROMPT,
    TOOL_SPECS,
    CodeExecEnv,
    CodeExecEnvFactory,
    CodeExecEnvOptions,
    submission,
)
from agent_rl.envs.code.task import REFERENCE
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import ConfigError, DataError, SandboxError
from agent_rl.records import StopReason
from agent_rl.rewards import reward
from agent_rl.tools.file_tools import SubmitTool

RIGHT = "def add(a, b):\n    return a + b\n"
HALF_RIGHT = "def add(a, b):\n    return 3 if a == 1 else 4\n"
SPIN = "while True:\n    pass\n"
ROW: dict[str, Any] = {
    "task_id": "add-1",
    "prompt": "Write a function add(a, b) that adds two numbers.\n",
    "starter_code": "def add(a, b):\n    pass\n",
    "tests": [
        {"function": "add", "args": [1, 2], "expected": 3},
        {"function": "add", "args": [2, 2], "expected": 4},
        {"function": "add", "args": [5, 6], "kwargs": {}, "expected": 11},
        {"function": "add", "args": [None, 6], "raises": "TypeError"},
    ],
    "reference_solution": RIGHT,
    "level": 1,
    "metadata": {"family": "sums", "num_examples": 2},
}


class SharedFactory(CodeExecEnvFactory):
    """A factory on the processes of another one."""

    def __init__(self, owner: CodeExecEnvFactory, **options: Any) -> None:
        super().__init__(CodeExecEnvOptions(**options))
        self._sandbox = owner.get_sandbox()

    def close(self) -> None:
        """The processes outlive it."""


@pytest.fixture(scope="module")
def factory() -> Iterator[CodeExecEnvFactory]:
    with code_factory_or_skip(workers=1, time_limit_s=1.0, memory_mb=128) as opened:
        yield opened


def begun(factory: CodeExecEnvFactory, row: dict[str, Any] = ROW) -> CodeExecEnv:
    env = CodeExecEnv(factory)
    env.reset(row)
    return env


def run(env: CodeExecEnv, code: str) -> StepResult:
    return env.step(submission(code))


def answers(env: CodeExecEnv, text: str) -> StepResult:
    return env.step(Message.assistant(text))


def replies(result: StepResult) -> list[str]:
    return [message.content for message in result.messages]


# ---------------------------------------------------------------- an episode


def test_the_request_holds_the_starter_code_and_the_examples_and_no_hidden_test(factory: CodeExecEnvFactory) -> None:
    env = CodeExecEnv(factory)
    system, user = env.reset(ROW)
    assert system == Message.system(SYSTEM_PROMPT)
    assert user == Message.user(
        "Write a function add(a, b) that adds two numbers.\n\ndef add(a, b):\n    pass\n\n"
        "Examples:\nadd(1, 2) -> 3\nadd(2, 2) -> 4"
    )
    assert env.tools == TOOL_SPECS


def test_an_episode_from_a_failure_to_success(factory: CodeExecEnvFactory) -> None:
    env = begun(factory)
    first = run(env, "def add(a, b):\n    return a - b\n")
    assert replies(first) == ["add(1, 2) gave -1, expected 3"]
    assert (first.terminated, first.info) == (False, {"tool_calls": 1, "tool_errors": 0})
    assert replies(run(env, HALF_RIGHT)) == ["examples: 2 of 2 passed\nnot all hidden tests pass"]
    assert replies(run(env, "add(")) == ["error in line 1: SyntaxError: '(' was never closed"]
    last = run(env, RIGHT)
    assert last.terminated and last.reward == 1.0 and last.flags == ()
    assert last.reward_parts == {
        "solved": 1.0, "partial": 0.0, "turns": 0.0, "failure": 0.0, "timeout": 0.0,
        "share/tests": 1.0, "tests_passed": 4.0, "success": 1.0,
    }  # fmt: skip
    assert last.info == {"problems": [], "programs": 4, "tool_calls": 1, "tool_errors": 0}


def test_a_block_in_a_reply_without_a_call_is_handed_in_and_ends_the_episode(factory: CodeExecEnvFactory) -> None:
    right = answers(
        begun(factory), f"First I thought of\n```python\n{HALF_RIGHT}```\nbut this is it:\n```python\n{RIGHT}```"
    )
    assert right.terminated and right.reward_parts["success"] == 1.0
    wrong = answers(begun(factory), f"```python\n{RIGHT}```\nno, rather\n```python\n{HALF_RIGHT}```")
    assert wrong.terminated and wrong.reward_parts["success"] == 0.0
    assert wrong.reward_parts["tests_passed"] == 2.0


def test_a_reply_without_any_code_is_a_failure_whatever_was_run_before(factory: CodeExecEnvFactory) -> None:
    env = begun(SharedFactory(factory, partial_reward=1.0))
    run(env, HALF_RIGHT)
    result = answers(env, "I give up; ```is no block```.")
    assert result.terminated and result.reward_parts["success"] == 0.0
    assert result.reward == 0.5
    assert answers(begun(factory), "").reward == 0.0


@pytest.mark.parametrize("agent_type", ["hf", "code"])
def test_a_block_that_holds_a_fenced_example_is_handed_in_whole(factory: CodeExecEnvFactory, agent_type: str) -> None:
    code = RIGHT.replace("\n", '\n    """Add.\n\n    ```python\n    add(1, 2)\n    ```\n    """\n', 1)
    text = f"Here it is: ```python\n{code}```"
    message = read_blocks(text) if agent_type == "code" else Message.assistant(text)
    assert begun(factory).step(message).reward == 1.0


def test_a_block_that_stays_open_is_not_handed_in(factory: CodeExecEnvFactory) -> None:
    assert answers(begun(factory), f"```python\n{RIGHT}").info["programs"] == 0


def test_other_tools_are_offered_and_one_that_ends_the_episode_hands_in_the_last_program(
    factory: CodeExecEnvFactory,
) -> None:
    class OneTool:
        def make(self, task: dict[str, Any], **beside: Any) -> list[SubmitTool]:
            return [SubmitTool()]

    env = CodeExecEnv(factory)
    env.toolset = OneTool()  # type: ignore[assignment]
    env.reset(ROW)
    assert [tool.name for tool in env.tools] == ["code_exec", "submit"]
    run(env, HALF_RIGHT)
    result = env.step(Message.assistant("", (ToolCall(name="submit", arguments={}),)))
    assert result.terminated and result.reward_parts["tests_passed"] == 2.0 and result.reward == 0.0


# ---------------------------------------------------------------- rewards


def test_a_success_earns_its_reward_and_a_bonus_that_falls_with_the_turns(factory: CodeExecEnvFactory) -> None:
    shaped = SharedFactory(factory, success_reward=2.0, partial_reward=0.5, turn_bonus=0.4, bonus_turns=2)
    rewards = []
    for num_failures in (0, 1, 2, 3):
        env = begun(shaped)
        for _ in range(num_failures):
            assert run(env, HALF_RIGHT).reward == 0.0
        rewards.append(run(env, RIGHT).reward)
    assert rewards == pytest.approx([2.9, 2.7, 2.5, 2.5])


def test_failures_and_lost_time_cost_the_configured_penalties(factory: CodeExecEnvFactory) -> None:
    shaped = SharedFactory(factory, partial_reward=1.0, failure_penalty=0.1, timeout_penalty=0.25, turn_bonus=1.0)
    gave_up, spun, hung, cut_off = (begun(shaped) for _ in range(4))
    run(gave_up, HALF_RIGHT)
    assert answers(gave_up, "no").reward == pytest.approx(0.5 - 0.1)
    run(spun, SPIN)
    assert answers(spun, "no").reward == pytest.approx(-0.1 - 0.25)
    run(hung, "def add(a, b):\n    while a == 5: pass\n    return a + b\n")
    assert answers(hung, "no").reward == pytest.approx(0.5 - 0.1 - 0.25)
    run(cut_off, HALF_RIGHT)
    result = cut_off.truncate(StopReason.MAX_TURNS)
    assert result.terminated and result.reward == pytest.approx(0.5 - 0.1 - 0.25)
    assert (result.reward_parts["failure"], result.reward_parts["timeout"]) == (-0.1, -0.25)


def test_an_episode_that_waited_until_its_deadline_pays_for_no_lost_time(factory: CodeExecEnvFactory) -> None:
    shaped = SharedFactory(factory, failure_penalty=0.1, timeout_penalty=0.25)
    queued, spun = begun(shaped), begun(shaped)
    assert queued.truncate(StopReason.TIMEOUT).reward == -0.1
    run(spun, SPIN)  # its own doing
    assert spun.truncate(StopReason.TIMEOUT).reward == pytest.approx(-0.1 - 0.25)


def test_many_programs_in_one_turn_earn_no_more_of_the_bonus_than_in_many(factory: CodeExecEnvFactory) -> None:
    shaped = SharedFactory(factory, turn_bonus=0.4, bonus_turns=4)
    calls = [submission(code).tool_calls[0] for code in (HALF_RIGHT, HALF_RIGHT, RIGHT)]
    assert begun(shaped).step(Message.assistant("", tuple(calls))).reward == pytest.approx(1.0 + 0.4 * 0.5)


def test_a_program_that_was_late_before_the_last_one_costs_nothing(factory: CodeExecEnvFactory) -> None:
    env = begun(SharedFactory(factory, failure_penalty=0.1, timeout_penalty=0.25))
    run(env, SPIN)
    assert run(env, RIGHT).reward == 1.0


@reward("test_rewards_short_conversations")
def _rewards_short_conversations(prediction: str, trajectory: tuple[Message, ...], level: int) -> dict[str, float]:
    return {"reward": len(trajectory) * level, "chars": len(prediction), "success": 0}


@reward("test_rewards_by_running_again", needs=("grade",))
def _rewards_by_running_again(prediction: str, grade: Any) -> float:
    return grade(prediction + "\n").score - grade("1 / 0").score


@reward("test_cannot_score")
def _cannot_score(prediction: str) -> None:
    return None


def test_named_rewards_are_added_and_see_the_conversation_the_row_and_the_tests(factory: CodeExecEnvFactory) -> None:
    specs = [
        {"name": "code_reward", "weight": 0.5},
        "test_rewards_short_conversations",
        "test_rewards_by_running_again",
    ]
    env = begun(SharedFactory(factory, reward=specs))
    run(env, HALF_RIGHT)
    result = run(env, RIGHT)
    named = {name: part for name, part in result.reward_parts.items() if "reward" in name}
    assert named == {
        "code_reward": 0.5,
        "code_reward/share": 1.0,
        "test_rewards_short_conversations": 6.0,  # system, user, then call and answer twice
        "test_rewards_short_conversations/chars": len(RIGHT),
        "test_rewards_by_running_again": 1.0,
    }
    assert result.reward == 1.0 + 0.5 + 6.0 + 1.0
    assert result.reward_parts["success"] == 1.0  # whatever a named reward calls a success


def test_code_that_was_handed_in_is_graded_as_it_is_by_named_rewards(factory: CodeExecEnvFactory) -> None:
    """Column 0 of a docstring may hold a fence, which ends a block in a text but is nothing in a program."""
    code = RIGHT.replace("\n", '\n    """Add.\n```python\nadd(1, 2)\n```\n    """\n', 1)
    result = run(begun(SharedFactory(factory, reward="code_reward")), code)
    assert (result.reward, result.reward_parts["code_reward"]) == (2.0, 1.0)


def test_named_rewards_of_an_episode_without_a_program(factory: CodeExecEnvFactory) -> None:
    result = answers(begun(SharedFactory(factory, reward="code_reward")), "no")
    assert (result.reward, result.reward_parts["code_reward"], result.info["programs"]) == (0.0, 0.0, 0)


def test_a_named_reward_that_cannot_score_leaves_the_episode_without_a_reward(factory: CodeExecEnvFactory) -> None:
    result = run(begun(SharedFactory(factory, reward="test_cannot_score")), RIGHT)
    assert result.reward is None and "'test_cannot_score' gave None" in result.info["error"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward": "code_rewrad"}, "did you mean 'code_reward'"),
        ({"workers": 0}, "env.options.workers"),
        ({"format": "mbpp"}, "env.options.format"),
        ({"time_limit": 3}, "time_limit_s"),
        ({"bonus_turns": 5}, "bonus_turns is 5 and turn_bonus is 0, .*; set turn_bonus too, or leave bonus_turns out"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_env_factory("code_exec", options, seed=0)


# ---------------------------------------------------------------- rows


def changed(**fields: Any) -> dict[str, Any]:
    return {**ROW, **fields}


def with_test(**fields: Any) -> dict[str, Any]:
    return changed(tests=[*ROW["tests"][:3], {"function": "add", "args": [1, 1], **fields}])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"task_id": "x"}, "tasks.jsonl:3: the row has no tests; expected 'tests' .*; correct the row"),
        ({"tests": ROW["tests"]}, "tasks.jsonl:3: the row has no column 'prompt'; its columns are tests;"),
        (changed(prompt=""), "field 'prompt': string should have at least 1 character"),
        (changed(starter_code="def add(:"), "field 'starter_code': it is not Python, invalid syntax in line 1"),
        (changed(reference_solution="\n\nreturn 1 +"), "field 'reference_solution': it is not Python, .* in line 3"),
        (changed(reference_solution=""), "field 'reference_solution'"),
        (changed(tests=[]), "the row has no tests"),
        (changed(tests=ROW["tests"][:2]), "metadata.num_examples is 2 of 2 tests; leave at least one test hidden"),
        (changed(metadata={"num_examples": "2"}), "field 'metadata.num_examples'"),
        (changed(metadata={"num_examples": -1}), "field 'metadata.num_examples'"),
        (with_test(), "field 'tests.3': a test needs 'expected', or 'raises'"),
        (with_test(expected=2, raises="ValueError"), "field 'tests.3': a test has 'expected' or 'raises', not both"),
        (with_test(raises="NoSuchError"), "field 'tests.3.raises': 'NoSuchError' is none of Python's own exceptions"),
        (with_test(raises="print"), "'print' is none of Python's own exceptions"),
        (with_test(expected=2, function="a b"), "field 'tests.3.function': 'a b' is not a name in Python"),
        (with_test(expected=2, function="class"), "'class' is not a name in Python"),
        (with_test(expected=2, args=3), "field 'tests.3.args'"),
        (with_test(expected=2, kwargs={"a b": 1}), "'a b' is not a name in Python"),
        (with_test(expected=2, answer=2), "field 'tests.3.answer'"),
        (with_test(expected=2, args=["x" * 2_000_000]), "field 'tests': the arguments of a case must be plain data"),
    ],
)
def test_a_row_that_is_no_task_is_refused_with_its_place(row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        make_env_factory("code_exec", {}, seed=0).check_task(row, "tasks.jsonl:3")
    assert str(caught.value).startswith("tasks.jsonl:3:")


def test_rows_may_hold_more_and_lack_what_has_a_default(factory: CodeExecEnvFactory) -> None:
    lean = {key: value for key, value in ROW.items() if key not in ("starter_code", "metadata", "level")}
    for row in (ROW, changed(source="somewhere"), lean, with_test(expected=None, raises=None)):
        factory.check_task(row, "tasks.jsonl:3")
    assert begun(factory, lean)._task.request.endswith("numbers.\n\nExamples:\nadd(1, 2) -> 3")


def test_a_row_without_the_key_that_a_reward_needs_is_refused(factory: CodeExecEnvFactory) -> None:
    shaped = SharedFactory(factory, reward="test_rewards_short_conversations")
    shaped.check_task(ROW, "tasks.jsonl:3")
    with pytest.raises(DataError, match=r"tasks.jsonl:3: .* needs the key 'level'"):
        shaped.check_task({key: value for key, value in ROW.items() if key != "level"}, "tasks.jsonl:3")


def test_the_reference_succeeds_and_every_wrong_program_fails(factory: CodeExecEnvFactory) -> None:
    two = changed(
        tests=[
            {"function": "add", "args": [1, 2], "expected": 3},
            {"function": "half", "args": [3], "raises": "ValueError"},
            {"function": "add", "args": [5], "kwargs": {"b": 6}, "expected": 11},
            {"function": "half", "args": [4], "expected": 2},
        ],
        reference_solution=RIGHT + "def half(n):\n    if n % 2:\n        raise ValueError\n    return n // 2\n",
    )
    outcomes = list(check_data(factory, [ROW, two], workers=1, group_by=lambda task: "sums"))
    assert [(each.solution, each.succeeded) for each in outcomes[5:]] == [
        (REFERENCE, True),
        ("returns nothing", False),
        ("raises", False),
        ("always the first answer", False),
        ("knows the examples", False),
    ]
    assert all(each.is_as_expected for each in outcomes)
    assert [each.reward_parts["tests_passed"] for each in outcomes[5:]] == [4.0, 0.0, 0.0, 2.0, 2.0]


def test_tests_that_a_constant_passes_show_in_the_check_of_the_data(factory: CodeExecEnvFactory) -> None:
    weak = changed(tests=[{"function": "add", "args": [n, 3 - n], "expected": 3} for n in range(3)])
    outcomes = check_data(factory, [weak], workers=1, group_by=lambda task: "sums")
    assert [each.solution for each in outcomes if not each.is_as_expected] == ["always the first answer"]


# ---------------------------------------------------------------- what a run shares


def test_attempts_on_the_verdict_of_the_whole_episode_are_flagged_at_its_end(factory: CodeExecEnvFactory) -> None:
    env = begun(factory)
    assert run(env, "import os\ndef add(a, b):\n    os._exit(0)\n").flags == ()
    assert run(env, RIGHT).flags == ("candidate_lost", "source_exit")


def test_an_episode_without_a_sandbox_is_not_scored() -> None:
    factory = make_env_factory("code_exec", {"workers": 1}, seed=0)
    for act in (lambda env: run(env, RIGHT), lambda env: answers(env, f"```python\n{RIGHT}```")):
        env = factory()
        env.reset(ROW)
        with pytest.raises(SandboxError, match=r"the sandbox is not running; call CodeExecEnvFactory.start\(\)"):
            act(env)


def test_a_factory_opens_its_processes_once_and_names_their_isolation(tmp_path: Path) -> None:
    factory = make_env_factory("code_exec", {"workers": 1}, seed=0)
    assert factory.own_tools == ("code_exec",)
    factory.start()
    factory.start()
    about = factory.describe()
    assert "sandbox tier" in about["summary"] and about["sandbox"]["servers"] == 1
    assert str(about["sandbox"]["python"]).startswith(f"{sys.version_info.major}.{sys.version_info.minor}")
    factory.close()
    factory.close()
