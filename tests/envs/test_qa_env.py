"""The question environment: the final answer, tools, rewards, rows, and an episode through the rollout's own loop."""

import itertools
import json
from typing import Any

import pytest
from fakes import ScriptedPolicy, tiny_config

from agent_rl.agent.messages import Message, ToolCall, ToolCallError
from agent_rl.agent.react_format import read_step
from agent_rl.config import ToolsConfig
from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.envs.base import EnvFactory, StepResult
from agent_rl.envs.check_data import check_data
from agent_rl.envs.math.env import make_math_factory
from agent_rl.envs.opening import offer_tools
from agent_rl.envs.qa_env import QAEnvFactory, QAEnvOptions, final_answer
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import ConfigError, DataError, SandboxError
from agent_rl.records import StopReason, Trajectory
from agent_rl.rewards import reward
from agent_rl.rollout.episode import run_episode
from agent_rl.rollout.turns import EpisodeLimits
from agent_rl.tools.base import BaseTool, ToolResult
from agent_rl.tools.toolset import register_tool

_names = itertools.count()
TASK = {"task_id": "t0", "question": "What is 40 + 2?", "answer": "40 + 2 = 42\n#### 42"}
LIMITS = EpisodeLimits(max_new_tokens=1000, max_turns=3, max_tool_calls=10, max_invalid_turns=2, timeout_s=60.0)
PROMPT = "Solve the problem; use the tools to calculate. Then write Answer: and the answer alone."


class DoubleTool(BaseTool):
    name = "double"
    description = "Twice a whole number."
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    def __call__(self, **arguments: Any) -> ToolResult:
        return ToolResult(text=str(2 * arguments["n"]))


class HandInTool(DoubleTool):
    name = "hand_in"

    def __call__(self, **arguments: Any) -> ToolResult:
        return ToolResult(text=f" {arguments['n']} ", terminal=True)


register_tool("double", lambda config: lambda task: DoubleTool())
register_tool("hand_in", lambda config: lambda task: HandInTool())
TOOLS = ToolsConfig(use=("double", "hand_in"))


def started(tools: ToolsConfig | None = TOOLS, **options: Any) -> EnvFactory:
    factory = offer_tools(make_env_factory("math_qa", options), tools or ToolsConfig())
    factory.start()
    return factory


def last_step(*replies: str | Message, task: dict = TASK, **options: Any) -> StepResult:
    """The answer to the last of the replies."""
    env = started(**options)()
    env.reset(task)
    results = [env.step(Message.assistant(each) if isinstance(each, str) else each) for each in replies]
    assert not any(result.terminated for result in results[:-1])
    return results[-1]


def call(name: str, **arguments: Any) -> Message:
    return Message.assistant("", (ToolCall(name=name, arguments=arguments),))


def episode_of(script: list[str], **options: Any) -> Trajectory:
    env = started(**options)()
    return run_episode(ScriptedPolicy(script), env, TASK, group_id="1/0", seed=7, limits=LIMITS, temperature=1.0)


def written(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


# The final answer


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("42", "42"),
        ("  It is 42. \n", "It is 42."),
        ("So 40 + 2.\nAnswer: 42", "42"),
        ("Final Answer: 42", "42"),
        ("final answer : 42", "42"),
        ("Answer: 41. No.\nAnswer: 42", "42"),
        ("**Final Answer:** 42", "42"),
        ("**Answer**: x * y", "x * y"),
        ("It is \\boxed{42}.", "42"),
        ("Answer: \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("\\boxed{41}. Answer: 42", "42"),
        ("the answers: 42", "the answers: 42"),
        ("Answer:", ""),
        ("", ""),
    ],
)
def test_the_final_answer_of_a_reply(reply: str, answer: str) -> None:
    assert final_answer(reply) == answer


def test_a_reply_with_a_hundred_thousand_markers_is_read_in_time() -> None:
    assert final_answer("answer:" * 100_000 + " 42") == "42"


# An episode


def test_the_conversation_begins_with_the_system_prompt_and_the_question() -> None:
    env = started()()
    assert env.reset(TASK) == [Message.system(PROMPT), Message.user("What is 40 + 2?")]
    assert [tool.name for tool in env.tools] == ["double", "hand_in"]
    env = started(system_prompt=None)()
    assert env.reset(TASK) == [Message.user("What is 40 + 2?")]
    env = started(system_prompt="Think.", answer_tool=True)()
    assert env.reset(TASK)[0] == Message.system("Think.")
    assert [tool.name for tool in env.tools] == ["answer", "double", "hand_in"]
    env = started(answer_tool=True)()
    assert env.reset(TASK)[0].content.endswith(" Then call answer with the answer alone.")


def test_a_call_is_answered_and_a_reply_without_one_is_scored() -> None:
    result = last_step(call("double", n=21))
    assert result.messages == (Message.tool("42", name="double"),)
    assert (result.terminated, result.reward, result.info) == (False, 0.0, {"tool_calls": 1, "tool_errors": 0})
    result = last_step(call("double", n=21), "Answer: 42")
    assert (result.terminated, result.reward, result.info) == (True, 1.0, {"prediction": "42"})
    assert result.reward_parts == {"math_reward_string_equal": 1.0, "success": 1.0}
    result = last_step("Answer: 41")
    assert (result.terminated, result.reward) == (True, 0.0)
    assert result.reward_parts == {"math_reward_string_equal": 0.0, "success": 0.0}


def test_an_empty_reply_is_a_wrong_answer() -> None:
    result = last_step("")
    assert (result.terminated, result.reward, result.info) == (True, 0.0, {"prediction": ""})


def test_a_reply_with_only_broken_calls_is_answered_with_the_errors() -> None:
    broken = ToolCallError(kind="bad_json", message="the call is not JSON", span=(0, 3))
    result = last_step(Message(role="assistant", content="Answer: 42", tool_errors=(broken,)))
    assert result.messages == (Message.tool("error: the call is not JSON"),)
    assert not result.terminated and result.info == {"tool_calls": 0, "tool_errors": 1}


def test_the_answer_tool_ends_the_episode_where_it_is_offered() -> None:
    result = last_step(call("answer", answer=" 42 "), answer_tool=True)
    assert (result.terminated, result.reward) == (True, 1.0)
    assert result.info == {"prediction": "42", "tool_calls": 1, "tool_errors": 0}
    assert last_step("Answer: 42", answer_tool=True).reward == 1.0
    refused = last_step(call("answer", answer="42"))
    assert not refused.terminated and "there is no tool 'answer'" in refused.messages[0].content


def test_a_terminal_tool_of_the_users_hands_in_its_text() -> None:
    result = last_step(call("hand_in", n=42))
    assert (result.terminated, result.reward, result.info["prediction"]) == (True, 1.0, "42")


def test_the_answer_tool_cannot_be_offered_twice() -> None:
    with pytest.raises(ConfigError, match="the tool name 'answer' is offered twice"):
        started(ToolsConfig(use=("answer",)), answer_tool=True)


def test_without_tools_the_prompt_mentions_none() -> None:
    env = started(None)()
    assert env.reset(TASK)[0] == Message.system("Solve the problem. Then write Answer: and the answer alone.")
    assert env.tools == () and env.step(Message.assistant("42")).reward == 1.0


def test_a_prompt_mentions_tools_only_with_tools_and_a_custom_prompt_is_unchanged() -> None:
    alone = started(None, answer_tool=True)()
    assert alone.reset(TASK)[0].content == "Solve the problem. Then call answer with the answer alone."
    assert started(None, system_prompt=PROMPT)().reset(TASK)[0].content == PROMPT


# Rewards


def test_rewards_see_the_whole_conversation_the_row_and_nothing_after_the_end() -> None:
    seen = []

    @reward(f"qa-seen-{next(_names)}")
    def look(prediction: str, trajectory: tuple, task: dict, hint: str) -> float:
        seen.append((prediction, trajectory, task["task_id"], hint))
        return 0.0

    task = {**TASK, "hint": "easy"}
    broken = ToolCallError(kind="bad_json", message="not JSON", span=(0, 3))
    first = Message(role="assistant", content="", tool_calls=call("double", n=2).tool_calls, tool_errors=(broken,))
    two = (*call("double", n=21).tool_calls, *call("hand_in", n=42).tool_calls)
    last = Message.assistant("so", (*two, *call("double", n=5).tool_calls))
    last_step(first, last, task=task, reward=f"qa-seen-{next(_names) - 1}")
    start = (Message.system(PROMPT), Message.user(TASK["question"]))
    assert seen == [
        (
            "42",
            (*start, first, Message.tool("error: not JSON"), Message.tool("4", name="double"),
             last, Message.tool("42", name="double"), Message.tool(" 42 ", name="hand_in")),
            "t0",
            "easy",
        )
    ]  # fmt: skip


def test_several_rewards_are_added_up() -> None:
    used = f"qa-used-{next(_names)}"
    reward(used)(lambda trajectory: {"reward": float(any(m.role == "tool" for m in trajectory)), "turns": 2})
    specs = ["math_reward_string_equal", {"name": used, "weight": 0.25}]
    result = last_step(call("double", n=21), "41", reward=specs)
    assert result.reward == 0.25
    assert result.reward_parts == {"math_reward_string_equal": 0.0, used: 0.25, f"{used}/turns": 2.0, "success": 0.0}


def test_a_reward_that_gives_none_leaves_the_episode_without_one() -> None:
    name = f"qa-none-{next(_names)}"
    reward(name)(lambda prediction: None)
    result = last_step("42", reward=["math_reward_string_equal", name])
    assert (result.terminated, result.reward) == (True, None)
    assert result.info["prediction"] == "42" and f"{name!r} gave None" in result.info["error"]
    episode = episode_of(["42"], reward=name)
    assert (episode.stop_reason, episode.reward) == (StopReason.ENV_ERROR, None)
    assert episode.error == result.info["error"]


def test_a_reward_that_fails_fails_its_episode_and_is_named() -> None:
    name = f"qa-fails-{next(_names)}"
    reward(name)(lambda prediction: float("nan"))
    episode = episode_of(["42"], reward=name)
    assert (episode.stop_reason, episode.reward) == (StopReason.ENV_ERROR, None)
    assert f"{name!r} gave nan for 'reward'" in str(episode.error) and f"({__file__}:" in str(episode.error)


def test_an_episode_without_an_answer_loses_the_penalty() -> None:
    env = started(truncation_penalty=0.5)()
    env.reset(TASK)
    result = env.truncate(StopReason.MAX_TURNS)
    assert (result.terminated, result.reward) == (True, -0.5)
    assert result.reward_parts == {"math_reward_string_equal": 0.0, "truncation_penalty": -0.5, "success": 0.0}
    env = started()()
    env.reset(TASK)
    assert str(env.truncate(StopReason.TIMEOUT).reward) == "0.0"


def test_an_episode_without_an_answer_earns_what_a_wrong_one_does_and_its_bonus() -> None:
    wrong, used = f"qa-wrong-{next(_names)}", f"qa-used-{next(_names)}"
    reward(wrong)(lambda prediction, answer: float(prediction != "42"))
    reward(used)(lambda trajectory: float(any(m.name == "double" for m in trajectory)))
    specs = [{"name": wrong, "weight": -1}, {"name": used, "weight": 0.25}]
    env = started(reward=specs, truncation_penalty=0.5)()
    env.reset(TASK)
    env.step(call("double", n=21))
    cut_off = env.truncate(StopReason.MAX_TURNS)
    assert cut_off.reward == last_step(call("double", n=21), "41", reward=specs).reward - 0.5 == -1.25
    assert cut_off.reward_parts == {wrong: -1.0, used: 0.25, "truncation_penalty": -0.5, "success": 0.0}


def test_a_reward_that_cannot_read_an_empty_answer_does_not_fail_an_episode_that_was_cut_off() -> None:
    name = f"qa-strict-{next(_names)}"
    reward(name)(lambda prediction: float(int(prediction) == 42))
    episode = episode_of([written("double", n=21)] * 3, reward=name)
    assert (episode.stop_reason, episode.reward, episode.error) == (StopReason.MAX_TURNS, 0.0, None)


def test_an_episode_that_was_cut_off_and_to_which_no_reward_applies_is_dropped() -> None:
    name = f"qa-none-{next(_names)}"
    reward(name)(lambda completions: [None])
    episode = episode_of([written("double", n=21)] * 3, reward=name)
    assert (episode.stop_reason, episode.reward) == (StopReason.ENV_ERROR, None)
    assert f"'{name}' gave None" in str(episode.error)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"reward": "math_reward_string"},
            "'math_reward_string'.*env.options.reward; did you mean 'math_reward_string_equal'",
        ),
        ({"reward": "code_reward"}, "'code_reward' needs 'grade', which this environment does not lend"),
        ({"truncation_penalty": -1}, "env.options.truncation_penalty = -1"),
        ({"answer_tol": True}, "unknown key 'env.options.answer_tol'; did you mean 'answer_tool'"),
        ({"answer_tool": "maybe"}, "env.options.answer_tool = 'maybe'"),
    ],
)
def test_bad_options_are_refused_with_a_sentence(options: dict, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make_math_factory(options, 0)


# Rows


def row(**changes: Any) -> dict:
    return {key: value for key, value in {**TASK, **changes}.items() if value is not None}


@pytest.mark.parametrize("answer", ["#### 42", 42, 0, 4.5, ["42", "forty-two", 42]])
def test_rows_with_a_question_and_an_answer_are_tasks(answer: Any) -> None:
    started().check_task(row(answer=answer), "tasks.jsonl:1")


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ({"problem": "1 + 1?", "answer": "2"}, "the row has no column 'question'; its columns are problem, answer;"),
        ({**row(), "question": None}, "question is None; make it a text that is not empty"),
        (row(question="  "), "question is '  '; make it a text"),
        (row(question=["?"]), r"question is \['\?'\]; make it a text"),
        (row(answer=None), "the reward 'math_reward_string_equal' needs the key 'answer'"),
        (row(answer=" "), "answer is ' '; make it a text, a number, or a list of accepted ones"),
        (row(answer=True), "answer is True; make it"),
        (row(answer=[]), r"answer is \[\]; make it"),
        (row(answer=["42", ""]), r"answer is \['42', ''\]; make it"),
        (row(answer={"text": "42"}), "answer is {'text': '42'}; make it"),
    ],
)
def test_other_rows_are_refused_with_a_sentence(bad: dict, complaint: str) -> None:
    with pytest.raises(DataError, match=f"^tasks.jsonl:3: {complaint}"):
        started().check_task(bad, "tasks.jsonl:3")


def test_a_row_needs_no_answer_where_no_reward_uses_one() -> None:
    name = f"qa-judge-{next(_names)}"
    reward(name)(lambda prediction: 0.5)
    factory = started(reward=name)
    factory.check_task(row(answer=None), "tasks.jsonl:1")
    assert factory.solutions(row(answer=None)) == []
    with pytest.raises(DataError, match="answer is ''"):
        factory.check_task(row(answer=""), "tasks.jsonl:1")


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        ("40 + 2 = 42\n#### 42", "42", "43"),
        ("1,234", "1234", "1235"),
        (-1, "-1", "0"),
        (["42", 43], "42", "44"),
        ("x^2", "x^2", "no such answer"),
        ("1/2", "1/2", "no such answer"),
    ],
)
def test_the_reference_succeeds_and_a_wrong_answer_does_not(answer: Any, right: str, wrong: str) -> None:
    factory, task = started(), row(answer=answer)
    assert [solution.messages[-1].content for solution in factory.solutions(task)] == [
        f"Answer: {right}",
        f"Answer: {wrong}",
    ]
    checked = list(check_data(factory, [task], workers=1, group_by=lambda task: "all"))
    assert [(each.solution, each.succeeded) for each in checked] == [("reference", True), ("wrong answer", False)]


def test_a_custom_factory_lists_its_tools() -> None:
    assert QAEnvFactory(QAEnvOptions()).own_tools == ()
    assert QAEnvFactory(QAEnvOptions(answer_tool=True)).own_tools == ("answer",)


# Through the rollout's loop


def test_an_episode_through_the_rollout_carries_reward_parts_and_info() -> None:
    episode = episode_of([f"Let me see. {written('double', n=21)}", "It is 42.\nAnswer: 42"])
    assert (episode.stop_reason, episode.reward, episode.error) == (StopReason.FINISHED, 1.0, None)
    assert episode.reward_parts == {"math_reward_string_equal": 1.0, "success": 1.0}
    assert episode.turns[0].env_messages == (Message.tool("42", name="double"),)
    assert [turn.info for turn in episode.turns] == [{"tool_calls": 1, "tool_errors": 0}, {"prediction": "42"}]


def test_an_episode_that_runs_out_of_turns_is_truncated() -> None:
    episode = episode_of([written("double", n=21)] * 3, truncation_penalty=0.5)
    assert (episode.stop_reason, episode.reward) == (StopReason.MAX_TURNS, -0.5)
    assert episode.reward_parts["success"] == 0.0


def test_a_react_agent_may_write_either_of_the_two_markers() -> None:
    replies = ("Thought: 40 + 2.\nFinal Answer: 42", "Thought: 40 + 2.\nAnswer: 42", "Final Answer: Answer: 42")
    for reply in replies:
        assert last_step(read_step(reply)).info == {"prediction": "42"}


def test_a_code_agent_is_refused_before_anything_is_loaded(tmp_path: Any) -> None:
    for tools in ((), ("calculator",)):
        config = tiny_config(
            tmp_path, env={"name": "math_qa"}, agent={"type": "code"}, tools={"use": tools}, model={"path": "nowhere"}
        )
        with pytest.raises(ConfigError, match=r"^agent.type = 'code' takes an environment whose only"):
            GRPOTrainer.from_config(config)


def test_what_the_sandbox_raises_inside_a_reward_is_not_taken_for_the_rewards_fault() -> None:
    name = f"qa-sandbox-{next(_names)}"

    @reward(name)
    def broken(prediction: str) -> float:
        raise SandboxError("the fork server is gone")

    with pytest.raises(SandboxError, match="fork server"):
        last_step("42", reward=name)


def test_without_tools_what_reads_as_a_call_is_part_of_the_reply() -> None:
    env = started(ToolsConfig())()
    for reply in (written("double", n=1), "<tool_call>{bad</tool_call>", "[f(x=2)]"):
        episode = run_episode(
            ScriptedPolicy([f"{reply}\nAnswer: 42"]), env, TASK, group_id="g", seed=7, limits=LIMITS, temperature=1.0
        )
        assert (episode.stop_reason, episode.reward, len(episode.turns)) == (StopReason.FINISHED, 1.0, 1)
