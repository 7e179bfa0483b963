"""What environments of others return is taken where it has a clear meaning, and refused in one sentence elsewhere."""

import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from builders import make_trainer
from fakes import LetterEnv, ScriptedPolicy, save_tiny_model

from agent_rl.agent.messages import Message, ToolCall, ToolSpec
from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.envs.base import AgentEnv, EnvFactory, StepResult, Task, ToolEnv
from agent_rl.envs.step_result import EnvReturnError, read_step, read_tools
from agent_rl.errors import ConfigError, EpisodesFailedError
from agent_rl.records import StopReason, Trajectory, TrajectoryGroup
from agent_rl.rollout.episode import run_episode
from agent_rl.rollout.turns import EpisodeLimits
from agent_rl.telemetry.trajectory_json import decode_group, encode_group


class OwnEnv(AgentEnv):
    """Returns what it is told to."""

    opening: Any = "go"
    answers: tuple[Any, ...] = ()
    end: Any = StepResult(reward=0.0, terminated=True)

    def reset(self, task: Task) -> Any:
        self.num_steps = 0
        return self.opening

    def step(self, message: Message) -> Any:
        self.num_steps += 1
        return self.answers[self.num_steps - 1]

    def truncate(self, reason: StopReason) -> Any:
        return self.end


def play(opening: Any = "go", *answers: Any) -> Trajectory:
    env = OwnEnv()
    env.opening, env.answers = opening, answers or (StepResult(reward=1.0, terminated=True),)
    policy = ScriptedPolicy(["one", "two", "three"])
    limits = EpisodeLimits(max_new_tokens=50)
    return run_episode(policy, env, {"task_id": "t"}, group_id="g", seed=0, limits=limits, temperature=1.0)


@pytest.mark.parametrize(
    ("opening", "roles"),
    [
        ("hi", ["user"]),
        ({"role": "user", "content": "hi"}, ["user"]),
        ([{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}], ["system", "user"]),
        ((Message.system("s"), Message.user("hi")), ["system", "user"]),
        (("hi", {"seed": 1}), ["user"]),
        (([{"role": "user", "content": "hi"}], {}), ["user"]),
        (({"role": "system", "content": "s"}, {"role": "user", "content": "hi"}), ["system", "user"]),
    ],
)
def test_an_opening_of_any_clear_form_is_read(opening: Any, roles: list[str]) -> None:
    episode = play(opening)
    assert episode.error is None
    assert [message.role for message in episode.initial_messages] == roles
    assert episode.initial_messages[-1].content == "hi"


@pytest.mark.parametrize(
    ("answer", "reward", "parts"),
    [
        (("ignored", 0.5, True, {}), 0.5, {}),
        ((None, 1, False, True, None), 1.0, {}),
        ((np.zeros(3), np.float32(0.5), np.bool_(True), False, {"is_success": np.True_}), 0.5, {"success": 1.0}),
        ((None, torch.tensor(2.0), True, {"success": 0}), 2.0, {"success": 0.0}),
        (StepResult(reward=np.float32(1), terminated=np.bool_(True)), 1.0, {}),
        (StepResult(reward=torch.tensor([1.0]), reward_parts={"a": np.int64(3)}, terminated=1), 1.0, {"a": 3.0}),
        (StepResult(reward=True, terminated=True), 1.0, {}),
    ],
)
def test_an_end_of_any_clear_form_is_read(answer: Any, reward: float, parts: dict[str, float]) -> None:
    episode = play("go", answer)
    assert (episode.error, episode.stop_reason) == (None, StopReason.FINISHED)
    assert (episode.reward, episode.reward_parts) == (reward, parts)
    assert type(episode.reward) is float
    assert all(type(part) is float for part in episode.reward_parts.values())


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("again", 1.0),
        ({"role": "tool", "content": "again"}, 1.0),
        ([{"role": "user", "content": "again"}], 1.0),
        (("again", 0.25, False, {}), 1.25),
        (([{"role": "user", "content": "again"}], 0.25, False, False, {}), 1.25),
        (StepResult(messages=[{"role": "user", "content": "again"}]), 1.0),
    ],
)
def test_what_the_model_reads_next_is_read_in_any_clear_form(answer: Any, reward: float) -> None:
    episode = play("go", answer, StepResult(reward=1.0, terminated=True))
    assert (episode.error, episode.reward, len(episode.turns)) == (None, reward, 2)
    assert [message.content for message in episode.turns[0].env_messages] == ["again"]


@pytest.mark.parametrize(
    ("opening", "answer", "got"),
    [
        (None, "", "a NoneType"),
        ([], "", "no message"),
        ([Message.user("hi"), {"role": "assistant", "content": "x"}], "", "whose turn it is"),
        (3, "", "an int"),
        (["hi"], "", "['hi']"),
        ([{"role": "usr", "content": "hi"}], "", "the role 'usr'"),
        ("go", None, "a NoneType"),
        ("go", 1.0, "a float"),
        ("go", ("hi", 1.0), "a tuple"),
        ("go", ("hi", "1.0", True, {}), "tuple of 4"),
        ("go", (np.zeros(3), 0.0, False, {}), "a ndarray"),
        ("go", StepResult(reward="1", terminated=True), "the reward '1', a str"),
        ("go", StepResult(reward=np.zeros(2), terminated=True), "a ndarray"),
        ("go", StepResult(reward_parts={"a": "b"}, terminated=True), "reward_parts['a']"),
        ("go", StepResult(reward=0.0, terminated="yes"), "terminated"),
        ("go", StepResult(flags="cheat", terminated=True), "flags"),
        ("go", StepResult(messages=[3]), "the messages [3]"),
        ("go", StepResult(messages=(Message.user("hi"), Message.assistant("x"))), "whose turn it is"),
        ("go", [{"role": "assistant", "content": "x"}], "whose turn it is"),
        ("go", StepResult(conversation=(Message.user("hi"), Message.assistant("x"))), "whose turn it is"),
        ("go", StepResult(conversation=()), "no message"),
    ],
)
def test_anything_else_is_one_sentence_that_names_the_method(opening: Any, answer: Any, got: str) -> None:
    episode = play(opening, answer)
    method = "reset" if opening != "go" else "step"
    function: Callable[..., Any] = getattr(OwnEnv, method)
    assert episode.stop_reason is StopReason.ENV_ERROR
    assert episode.error is not None
    assert episode.error.startswith(f"EnvReturnError: OwnEnv.{method} ({__file__}:{function.__code__.co_firstlineno}) ")
    assert got in episode.error
    assert "expected" in episode.error or got == "the role 'usr'"
    assert "\n" not in episode.error


CALL = ToolCall(name="add", arguments={})


def calling(arguments: Any) -> Message:
    return Message.assistant("x", (ToolCall(name="add", arguments=arguments),))


@pytest.mark.parametrize(
    ("wrong", "got"),
    [
        (Message.user(42), "the content 42"),
        (Message.tool(None), "the content None"),
        (Message(role="usr", content="x"), "the role 'usr'"),
        (Message(role=["user"], content="x"), "the role ['user']"),
        (Message.tool("x", name=3), "the name 3"),
        (Message(role="assistant", content="x", reasoning=None), "the reasoning None"),
        (Message.assistant("x", tool_calls=CALL), "the tool_calls ToolCall"),
        (Message.assistant("x", tool_calls=({"name": "add", "arguments": {}},)), "the tool call {'name'"),
        (Message.assistant("x", tool_calls=(ToolCall(name="add", arguments="{}"),)), "the tool call ToolCall"),
        (calling(MappingProxyType({"a": 1})), "the arguments mappingproxy("),
        (calling({"a": {1}}), "the arguments {'a': {1}}"),
        (calling({"a": np.int64(3)}), "the arguments {'a': np.int64(3)}"),
        (calling({"a": float("nan")}), "the arguments {'a': nan}"),
        ({"role": "assistant", "tool_calls": [{"name": "add", "arguments": {"a": np.int64(3)}}]}, "the arguments {'a'"),
    ],
)
def test_a_message_that_no_template_renders_drops_its_episode_and_names_the_method(wrong: Any, got: str) -> None:
    asked = (wrong, Message.user("hi"))
    for method, episode in {
        "reset": play([*asked]),
        "step": play("go", StepResult(messages=asked)),
        "step ": play("go", StepResult(conversation=asked)),
        " step": play("go", (asked, 0.0, False, {})),
    }.items():
        assert episode.stop_reason is StopReason.ENV_ERROR
        assert f"OwnEnv.{method.strip()} (" in episode.error and got in episode.error and "\n" not in episode.error


def test_what_nobody_reads_may_be_anything() -> None:
    for told in ((Message.tool(None),), (Message.assistant("x"),), 3):
        assert play("go", StepResult(messages=told, reward=1.0, terminated=True)).reward == 1.0
    again = StepResult(messages=(Message.tool(None),), conversation=(Message.user("hi"),))
    assert play("go", again, StepResult(reward=1.0, terminated=True)).reward == 1.0


@pytest.mark.parametrize(
    "end",
    [
        StepResult(reward=0.5, messages=(Message.user("hi"), Message.assistant("x"))),
        StepResult(reward=0.5, messages=(Message.tool(None),)),
        StepResult(reward=0.5, messages=({"role": "critic"},)),
        StepResult(reward=0.5, messages=3),
        StepResult(reward=0.5, messages=3, terminated=True),
        StepResult(reward=0.5, conversation=(Message.user("hi"), Message.assistant("x"))),
        StepResult(reward=0.5, conversation=()),
        (None, 0.5, False, False, {}),
        ([Message.assistant("x")], 0.5, False, {}),
    ],
)
def test_of_a_truncated_episode_the_reward_alone_is_read(end: Any) -> None:
    env = OwnEnv()
    env.answers, env.end = ("again",), end
    limits = EpisodeLimits(max_new_tokens=50, max_turns=1)
    episode = run_episode(
        ScriptedPolicy(["one"]), env, {"task_id": "t"}, group_id="g", seed=0, limits=limits, temperature=1.0
    )
    assert (episode.error, episode.stop_reason, episode.reward) == (None, StopReason.MAX_TURNS, 0.5)


def test_messages_alone_are_an_end_without_a_reward() -> None:
    for end in ([Message.user("hi"), Message.assistant("x")], Message.tool(None), {"role": "critic"}, "over"):
        assert read_step(end, OwnEnv(), "truncate").reward == 0.0


@pytest.mark.parametrize("parameters", [{"default": np.int64(3)}, {"type": int}, MappingProxyType({}), {"enum": {1}}])
def test_tools_whose_parameters_json_cannot_hold_drop_the_episode_and_are_named(parameters: Any) -> None:
    env = OwnEnv()
    env.tools = (ToolSpec(name="seek", description="Find.", parameters=parameters),)
    with pytest.raises(EnvReturnError, match=r"OwnEnv\.step .* the tool 'seek'.* expected a JSON schema"):
        read_tools(env, "step")


class Wrong(ToolEnv):
    def reset(self, task: Task) -> list[Message]:
        self.registry = self.add_tools(task, [])
        return [Message.user("go")]

    def no_call(self, message: Message) -> Any:
        return 3.0


class Shown(str):
    """A text of a class of its own, which another process may not have."""


def odd_info() -> dict[Any, Any]:
    info: dict[Any, Any] = {
        "lock": threading.Lock(),
        "problems": ("late", Shown("wrong")),
        "tool_calls": np.int64(2),
        "score": torch.tensor(0.5),
        "exact": 2**70,
        "nested": {"made": [object, None, True]},
        "array": np.arange(100_000).astype(object),
        Shown("name"): 1,
        (1, 2): 3,
    }
    info["self"] = info
    return info


@pytest.mark.parametrize(
    "give",
    [
        lambda info: StepResult(reward=1.0, terminated=True, info=info),
        lambda info: ("", 1.0, True, False, info),
    ],
    ids=["ours", "gym"],
)
def test_info_is_kept_as_far_as_json_can_hold_it(give: Callable[[dict], Any]) -> None:
    episode = play("go", give(odd_info()))
    assert episode.error is None
    info = dict(episode.turns[0].info)
    assert "lock" in info.pop("lock")
    assert len(info.pop("array")) <= 1000
    assert info == {
        "problems": ("late", "wrong"),
        "tool_calls": 2,
        "score": 0.5,
        "exact": 2**70,
        "nested": {"made": ["<class 'object'>", None, True]},
        "name": 1,
        "(1, 2)": 3,
        "self": "...",
    }
    assert type(info["tool_calls"]) is int
    assert {type(text) for text in (*info, *info["problems"])} == {str}
    assert pickle.loads(pickle.dumps(episode)) == episode
    group = TrajectoryGroup(task_id="t", trajectories=(episode,))
    assert decode_group(encode_group(group)).trajectories[0].reward == 1.0


def test_info_whose_parts_know_one_another_stays_small() -> None:
    agents: list[dict[str, Any]] = [{"name": number} for number in range(12)]
    for agent in agents:
        agent["peers"] = [other for other in agents if other is not agent]
    info = read_step(StepResult(info={"agents": agents}), None).info
    assert info["agents"][0]["peers"][0]["name"] == 1
    assert len(json.dumps(info)) < 1_000_000


def test_the_methods_of_a_tool_environment_are_named_too() -> None:
    limits = EpisodeLimits(max_new_tokens=50)
    episode = run_episode(
        ScriptedPolicy(["hi"]), Wrong(), {"task_id": "t"}, group_id="g", seed=0, limits=limits, temperature=1.0
    )
    assert episode.error is not None
    assert "Wrong.no_call" in episode.error


class Offers(LetterEnv):
    def reset(self, task: Task) -> list[Message]:
        self.tools = [ToolCall(name="x", arguments={})]
        return super().reset(task)


class NoEnv:
    def reset(self, task: Task) -> str:
        return "hi"

    def step(self, message: Message) -> float:
        return 1.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny_model(tmp_path / "model")
    return tmp_path


def test_a_run_takes_gyms_tuples_and_writes_plain_numbers(folder: Path) -> None:
    class Gym(LetterEnv):
        def reset(self, task: Task) -> Any:
            return task["question"], {}

        def step(self, message: Message) -> Any:
            result = super().step(message)
            return None, np.float32(result.reward), True, False, {"success": np.bool_(result.reward == 1.0)}

    with make_trainer(folder, env=Gym, train={"steps": 1}) as trainer:
        trainer.train()
    text = (folder / "runs/tiny/metrics.jsonl").read_text()
    assert '"success/mean": ' in text


@pytest.mark.parametrize("given", [NoEnv, NoEnv(), LetterEnv(), 3])
def test_what_is_no_environment_is_refused_before_anything_runs(folder: Path, given: Any) -> None:
    from fakes import LETTER_TASKS, tiny_config

    with pytest.raises(ConfigError, match="env_factory: got"):
        GRPOTrainer.from_config(tiny_config(folder), env_factory=given, train_tasks=LETTER_TASKS)


def test_a_function_that_makes_no_environment_ends_the_run_in_one_sentence(folder: Path) -> None:
    with (
        make_trainer(folder, env=NoEnv) as trainer,
        pytest.raises(ConfigError, match=r"env_factory made .*NoEnv"),
    ):
        trainer.train()


def test_an_environment_whose_tools_are_none_ends_the_run_in_one_sentence(folder: Path) -> None:
    with (
        make_trainer(folder, env=Offers) as trainer,
        pytest.raises(EpisodesFailedError, match=r"in self\.tools; expected"),
    ):
        trainer.train()
    assert EnvFactory(Offers)().tools == ()
