"""Prompts scored by reward functions: what a row may hold, what the model reads, when an episode ends."""

from dataclasses import replace
from typing import Any

import pytest
from fakes import ScriptedPolicy

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.config import ToolsConfig
from agent_rl.envs.base import AgentEnv, as_text
from agent_rl.envs.opening import offer_tools
from agent_rl.envs.prompt_env import PromptEnvFactory, PromptEnvOptions
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import ConfigError, DataError
from agent_rl.records import StopReason
from agent_rl.rewards import reward_of
from agent_rl.rollout.episode import EpisodeLimits, run_episode
from agent_rl.tools.decorator import make_tool

ROW = {"task_id": "t0", "prompt": "2 + 2?", "answer": "4"}
USER = {"role": "user", "content": "2 + 2?"}


def length(completions, **columns):
    """Of the text, or of the last message."""
    (said,) = completions
    return [float(len(said if isinstance(said, str) else said[-1]["content"]))]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def factory(function: Any = length, **options: Any) -> PromptEnvFactory:
    return PromptEnvFactory(PromptEnvOptions(reward="unused", **options), reward_of(function))


def with_tools(made: PromptEnvFactory) -> Any:
    opened = offer_tools(made, ToolsConfig(use=("here:add",)), given={"here:add": make_tool(add)})
    opened.start()
    return opened


# Wrong input


@pytest.mark.parametrize(
    ("prompt", "complaint"),
    [
        (None, "prompt is None"),
        ("", "prompt is ''"),
        ("  ", "prompt is '  '"),
        (7, "prompt is 7"),
        ([], r"prompt is \[\]"),
        (USER, "prompt is {"),
        (["2 + 2?"], r"prompt\[0\] is '2 \+ 2\?'"),
        ([{"role": "human", "content": "x"}], r"prompt\[0\] has the role 'human'; use system, user"),
        ([{"from": "human", "value": "x"}], r"prompt\[0\] has the key 'from'"),
        ([{"role": "user", "contnet": "x"}], r"prompt\[0\] has the key 'contnet'; did you mean 'content'"),
        ([{"role": "user"}], r"prompt\[0\] has the content None"),
        ([{"role": "user", "content": [{"type": "image"}]}], r"prompt\[0\] has the content \[{"),
        ([USER, {"role": "assistant", "content": "4"}], "prompt ends with a message of the role 'assistant'"),
        ([USER, {"role": "system", "content": "x"}, USER], "prompt has a system message behind others"),
        ([{"role": "assistant", "tool_calls": [{"name": "add"}]}, USER], r"prompt\[0\] has the tool call"),
        ([{"role": "user", "content": "x", "tool_calls": []}, USER], r"prompt\[0\] has the role 'user', and only"),
    ],
)
def test_a_prompt_that_cannot_be_asked_is_refused(prompt: Any, complaint: str) -> None:
    with pytest.raises(DataError, match=f"^rows:row 1: {complaint}") as caught:
        factory().check_task({**ROW, "prompt": prompt}, "rows:row 1")
    assert "\n" not in str(caught.value)


def test_a_row_without_a_prompt_hears_of_columns() -> None:
    with pytest.raises(DataError, match=r"has no column 'prompt'; its columns are question, answer.*data\.columns"):
        factory().check_task({"task_id": "t", "question": "2 + 2?", "answer": "4"}, "rows:row 1")


def test_options_and_functions_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"'env\.options\.reward' is missing"):
        make_env_factory("prompts", {})
    with pytest.raises(ConfigError, match=r"unknown key 'env\.options\.sytem_prompt'; did you mean 'system_prompt'"):
        make_env_factory("prompts", {"reward": "exact_match_reward", "sytem_prompt": "x"})
    with pytest.raises(ConfigError, match="needs 'grade', which this environment does not lend"):
        make_env_factory("prompts", {"reward": "code_reward"})
    with pytest.raises(DataError, match="the reward 'exact_match_reward' needs the key 'answer'"):
        made = make_env_factory("prompts", {"reward": "exact_match_reward"})
        made.check_task({"task_id": "t", "prompt": "x"}, "rows:row 1")


# Right input


def messages_of(made: Any, row: dict[str, Any]) -> list[Message]:
    made.check_task(row, "here")
    return made().reset(row)


def test_the_model_reads_the_prompt_and_a_system_message_where_it_has_none() -> None:
    talk = [
        {"role": "system", "content": "Be brief.", "name": None},
        USER,
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 2}'}}]},
        {"role": "tool", "name": "add", "content": "4"},
    ]
    call = ToolCall(name="add", arguments={"a": 2})
    told = [
        Message.system("Be brief."),
        Message.user("2 + 2?"),
        Message.assistant("", (call,)),
        Message.tool("4", "add"),
    ]
    assert messages_of(factory(), ROW) == [Message.user("2 + 2?")]
    assert messages_of(factory(system_prompt="Add."), ROW) == [Message.system("Add."), Message.user("2 + 2?")]
    assert messages_of(factory(system_prompt="Add."), {**ROW, "prompt": talk}) == told


def run(made: Any, replies: list[str], row: dict[str, Any] = ROW, **limits: int) -> Any:
    env: AgentEnv = made()
    return run_episode(
        ScriptedPolicy(replies),
        env,
        row,
        group_id="g",
        seed=0,
        limits=EpisodeLimits(**{"max_new_tokens": 100, **limits}),
        temperature=1.0,
    )


CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool_call>'


def test_without_tools_the_first_reply_ends_the_episode_whatever_it_holds() -> None:
    for reply in ("It is 4", f"Hm.{CALL}", "<tool_call>{"):
        episode = run(factory(), [reply])
        assert (episode.stop_reason, len(episode.turns)) == (StopReason.FINISHED, 1)
    assert run(factory(), ["It is 4"]).reward == 7.0


JSON = '{"name": "get_weather", "arguments": {"city": "Rome"}}'


@pytest.mark.parametrize("reply", [JSON, f"```json\n{JSON}\n```", f"Hm.{CALL}", "<tool_call>{", "It is 4"])
def test_without_tools_the_whole_reply_is_scored_also_what_reads_as_a_call(reply: str) -> None:
    seen: list[Any] = []

    def keep(prediction, trajectory):
        seen.append((prediction, trajectory[-1]))
        return 1.0

    def keep_messages(completions):
        seen.append(completions[0])
        return [1.0]

    row = {**ROW, "prompt": [USER]}
    run(factory([keep, keep_messages]), [reply], row)
    assert seen == [(reply, Message.assistant(reply)), [{"role": "assistant", "content": reply}]]
    seen.clear()
    run(factory([keep, keep_messages]), [f"{reply} and more"], row, max_new_tokens=len(reply))
    assert seen == [("", Message.assistant(reply)), [{"role": "assistant", "content": reply}]]


def test_without_tools_many_calls_are_over_no_budget() -> None:
    predictions: list[str] = []

    def keep(prediction):
        predictions.append(prediction)
        return 1.0

    reply = "\n".join([CALL] * 3)
    episode = run(factory(keep), [reply], max_tool_calls=2, max_new_tokens=1000)
    assert (episode.stop_reason, predictions) == (StopReason.FINISHED, [reply])


def test_a_thought_that_the_reply_holds_is_told_once() -> None:
    written = 'Thought: because\nAction: f\nAction Input: {"a": 1}'
    call = ToolCall(name="f", arguments={"a": 1})
    thought = Message(role="assistant", content="", tool_calls=(call,), reasoning="because", written=written)
    assert as_text(thought) == Message.assistant(written)
    apart = replace(thought, reasoning="why", written=CALL)  # of marks that are no text
    assert as_text(apart) == replace(Message.assistant(CALL), reasoning="why")


def test_with_tools_calls_run_until_a_reply_without_one() -> None:
    seen: list[Any] = []

    def keep(prompts, completions, answer, task_id):
        seen.append((prompts, completions, answer, task_id))
        return [1.0]

    row = {**ROW, "prompt": [USER]}
    episode = run(with_tools(factory(keep)), [CALL, "It is 4"], row)
    assert (episode.reward, episode.reward_parts, len(episode.turns)) == (1.0, {"keep": 1.0, "success": 1.0}, 2)
    ((prompts, (completion,), answer, task_id),) = seen
    assert (prompts, answer, task_id) == ([[USER]], ["4"], ["t0"])
    assert [message["role"] for message in completion] == ["assistant", "tool", "assistant"]
    assert completion[1] == {"role": "tool", "name": "add", "content": "4"}


@pytest.mark.parametrize("prompt", ["2 + 2?", [USER]], ids=["text", "messages"])
def test_a_reply_that_ran_into_the_budget_is_scored_as_far_as_it_goes_and_is_no_success(prompt: Any) -> None:
    episode = run(factory(), ["It is 4, or so"], {**ROW, "prompt": prompt}, max_new_tokens=7)
    assert episode.stop_reason is StopReason.MAX_TOKENS
    assert (episode.reward, episode.reward_parts) == (7.0, {"length": 7.0, "success": 0.0})


def test_the_last_of_too_many_turns_is_scored_too() -> None:
    episode = run(with_tools(factory()), [CALL, CALL], {**ROW, "prompt": [USER]}, max_turns=2)
    assert episode.stop_reason is StopReason.MAX_TURNS
    assert episode.reward == 1.0  # the tool's "4" is the last message


def test_calls_over_the_budget_are_part_of_the_completion_and_are_not_run() -> None:
    def calls(completions):
        return [float(sum(len(message.get("tool_calls", ())) for message in completions[0]))]

    episode = run(with_tools(factory(calls)), [CALL, CALL], {**ROW, "prompt": [USER]}, max_tool_calls=1)
    assert (episode.stop_reason, episode.reward) == (StopReason.TOOL_BUDGET, 2.0)


def test_a_reward_by_name_reads_the_final_answer() -> None:
    made = make_env_factory("prompts", {"reward": ["exact_match_reward"]})
    assert run(made, ["2 and 2.\nAnswer: 4"]).reward_parts == {"exact_match_reward": 1.0, "success": 1.0}


def test_an_episode_to_which_no_function_applies_is_dropped_with_the_functions_name() -> None:
    def neither(completions):
        return [None]

    for limits in ({}, {"max_new_tokens": 1}):
        episode = run(factory(neither), ["4"], **limits)
        assert (episode.stop_reason, episode.reward) == (StopReason.ENV_ERROR, None)
        assert "'neither' gave None" in str(episode.error)
