"""Environments of verifiers through our rollout: its data, tools, turns, rubric; with a fake and the package itself."""

import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from fakes import ScriptedPolicy
from foreign_fakes import load_fake, load_real

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.envs.base import EnvFactory
from agent_rl.envs.registry import make_env_factory
from agent_rl.records import StopReason, Trajectory
from agent_rl.rollout.episode import EpisodeLimits, run_episode

LIMITS = EpisodeLimits(max_new_tokens=200, max_turns=6)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.verifiers)])
def package(request: pytest.FixtureRequest) -> str:
    {"fake": load_fake, "real": load_real}[request.param]("verifiers", request)
    return request.param


@pytest.fixture
def factory(package: str, request: pytest.FixtureRequest) -> Iterator[EnvFactory]:
    name, arguments = request.param
    with make_env_factory("verifiers", {"id": name, "args": arguments}) as made:
        yield made


def environment(name: str, **arguments: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("factory", [(name, arguments)], indirect=True)


def play(factory: EnvFactory, *replies: str, limits: EpisodeLimits = LIMITS) -> tuple[Trajectory, ScriptedPolicy]:
    task = factory.task_files(0, None, 1)["train"][0]
    factory.check_task(task, "row")
    policy = ScriptedPolicy(replies)
    made = run_episode(policy, factory(), task, group_id="g", seed=0, limits=limits, temperature=1.0)
    return made, policy


@environment("vf-reverse", num_rows=20)
def test_rows_are_its_own_and_a_tenth_is_held_out(factory: EnvFactory) -> None:
    files = factory.task_files(0, None, None)
    assert {name: len(rows) for name, rows in files.items()} == {"train": 18, "eval": 2}
    numbers = [row["info"]["n"] for rows in files.values() for row in rows]
    assert sorted(numbers) == list(range(20))
    assert {name: len(rows) for name, rows in factory.task_files(0, 5, 4).items()} == {"train": 5, "eval": 4}
    assert files["train"][0]["prompt"][0] == {"role": "system", "content": "Reverse the word."}


@environment("vf-reverse")
def test_the_rubric_weighs_its_rewards_async_ones_and_those_of_the_state_too(factory: EnvFactory) -> None:
    handler = signal.getsignal(signal.SIGINT)
    task = factory.task_files(0, None, 1)["train"][0]
    right, _ = play(factory, task["answer"])
    assert (right.stop_reason, right.reward) == (StopReason.FINISHED, 1.0)
    assert right.reward_parts["exact"] == right.reward_parts["success"] == 1.0
    assert [message.role for message in right.initial_messages] == ["system", "user"]
    partly, _ = play(factory, "aaxx")
    assert partly.reward == 0.25 and partly.reward_parts["share"] == 0.5 and partly.reward_parts["success"] == 0.0
    assert signal.getsignal(signal.SIGINT) is handler


@environment("vf-tools")
def test_its_tools_are_offered_and_called_and_a_broken_call_is_told(factory: EnvFactory) -> None:
    made, _ = play(factory, "<tool_call>oops</tool_call>", CALL, "It is 3.")
    assert made.stop_reason is StopReason.FINISHED
    texts = [[(each.role, each.name, each.content[:6]) for each in turn.env_messages] for turn in made.turns]
    assert texts == [[("tool", None, "error:")], [("tool", "add", "3")], []]
    assert [turn.info["tool_calls"] for turn in made.turns] == [0, 1, 0]
    assert not any(turn.new_context for turn in made.turns)
    env = factory()
    env.reset(factory.task_files(0, None, 1)["train"][0])
    assert [(tool.name, tool.description) for tool in env.tools] == [("add", "Add two numbers.")]
    assert env.tools[0].parameters["required"] == ["a", "b"]
    unknown = env.step(Message.assistant("", (ToolCall(name="sub", arguments={}),)))
    assert "sub" in unknown.messages[0].content
    env.close()


@environment("vf-tools")
def test_a_tool_whose_result_is_the_answer_earns_its_reward(factory: EnvFactory) -> None:
    task = factory.task_files(0, None, 1)["train"][0]
    right = CALL.replace('"b": 2', f'"b": {int(task["answer"]) - 1}')
    assert play(factory, right, "Done.")[0].reward == 1.0
    assert play(factory, "Done.")[0].reward == 0.0


@environment("vf-turns")
def test_turns_go_on_until_the_environment_ends_them(factory: EnvFactory) -> None:
    made, _ = play(factory, "a", "b", "c", "d")
    assert [[each.content for each in turn.env_messages] for turn in made.turns] == [["2 left"], ["1 left"], []]
    assert (made.stop_reason, made.reward) == (StopReason.FINISHED, 3.0)
    assert play(factory, "a", "stop")[0].reward == 2.0


@environment("vf-turns", is_forgetful=True)
def test_a_prompt_that_is_no_continuation_starts_a_new_context(factory: EnvFactory) -> None:
    made, policy = play(factory, "a", "b", "c")
    assert [turn.new_context for turn in made.turns] == [False, True, True]
    assert len(policy.prompts[1]) == len(policy.prompts[2])
    assert made.reward == 3.0


@environment("vf-turns")
def test_an_episode_that_is_cut_off_is_scored_as_it_is(factory: EnvFactory) -> None:
    made, _ = play(factory, "a", "b", limits=EpisodeLimits(max_new_tokens=200, max_turns=2))
    assert (made.stop_reason, made.reward) == (StopReason.MAX_TURNS, 2.0)
    made, _ = play(factory, "a", "far too long", limits=EpisodeLimits(max_new_tokens=3, max_turns=5))
    assert (made.stop_reason, made.reward) == (StopReason.MAX_TOKENS, 1.0)


@environment("vf-turns")
@pytest.mark.parametrize(
    ("reply", "reason"),
    [("fail", "the other side is gone"), ("bug", "oops"), ("exit", "the simulator is gone")],
)
def test_an_error_of_the_environment_drops_the_episode(factory: EnvFactory, reply: str, reason: str) -> None:
    made, _ = play(factory, reply, "a")
    assert made.stop_reason is StopReason.ENV_ERROR and made.reward is None
    assert reason in (made.error or "")


@environment("vf-stubborn")
def test_an_environment_that_asks_on_after_the_end_is_left(factory: EnvFactory) -> None:
    made, policy = play(factory, "a", limits=EpisodeLimits(max_new_tokens=200, max_turns=1))
    assert (made.stop_reason, made.reward, len(policy.prompts)) == (StopReason.ENV_ERROR, None, 1)
    assert "asked for 100 more replies" in made.error


@environment("vf-stubborn")
def test_a_rubric_that_fails_is_cleaned_up(factory: EnvFactory) -> None:
    made, _ = play(factory, "score me")
    assert made.stop_reason is StopReason.ENV_ERROR and "no judge" in made.error
    assert sys.modules["vf_stubborn"].CLEANED == [{"trajectory": []}]


@environment("vf-reverse")
def test_an_episode_that_is_left_in_the_middle_leaves_nothing_behind(factory: EnvFactory) -> None:
    env = factory()
    env.reset(factory.task_files(0, None, 1)["train"][0])
    env.close()
    factory.close()
    factory.close()


@pytest.mark.verifiers
def test_a_group_of_environments_gives_each_row_to_its_own(request: pytest.FixtureRequest) -> None:
    load_real("verifiers", request)
    with make_env_factory("verifiers", {"id": "vf-group"}) as factory:
        rewards: dict[str, list[dict[str, float]]] = {"words": [], "sums": []}
        for row in factory.task_files(0, None, 1)["train"]:
            policy = ScriptedPolicy([CALL, "x"] if row["info"]["env_id"] == "sums" else [row["answer"]])
            made = run_episode(policy, factory(), row, group_id="g", seed=0, limits=LIMITS, temperature=1.0)
            assert made.stop_reason is StopReason.FINISHED
            rewards[row["info"]["env_id"]].append(made.reward_parts)
    assert {parts["exact"] for parts in rewards["words"]} == {1.0}
    assert {parts["total_tool_calls"] for parts in rewards["sums"]} == {1.0}
