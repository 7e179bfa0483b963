"""Classes as TRL's `environment_factory` takes them: columns, methods as tools, rewards, and what is refused."""

from contextlib import closing
from typing import Any

import pytest

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.config import ToolsConfig
from agent_rl.envs.opening import offer_tools
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import ConfigError, DataError, UserError
from agent_rl.records import StopReason

HERE = "test_trl"
ROW = {"task_id": "t", "prompt": "Reach the target.", "target": 3}


class Counter:
    def reset(self, target: int, **columns: Any) -> str | None:
        self.target, self.count, self.reward = target, 0, 0.0
        return None if columns.get("quiet") else f"The target is {target}."

    def add(self, amount: int) -> str:
        """Add to the count.

        Args:
            amount: How much.
        """
        if self.count >= self.target:
            raise ValueError("Game over.")
        self.count += amount
        self.reward = self.count / self.target
        return f"the count is {self.count}"

    def _hidden(self) -> None:
        """Not a tool."""


class Scored(Counter):
    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def get_reward(self) -> float:
        return self.factor * self.count


class Undescribed:
    def reset(self) -> None:
        return None

    def act(self, *amounts: int) -> str:
        """Act."""
        return ""


class Unscored:
    def reset(self) -> None:
        return None


class Talking(Counter):
    def reset(self, **columns: Any) -> Any:
        return 5


def length_reward(environments: list[Counter], completions: list[Any], target: list[int]) -> list[float | None]:
    if target[0] == 99:
        return [None]
    return [environments[0].count + 10.0 * len(completions[0])]


async def slow_reward(completions: list[Any]) -> list[float]:
    return [0.5 for _ in completions]


def two_rewards(environments: list[Counter]) -> list[float]:
    return [1.0, 0.0]


def bare_reward(environments: list[Counter]) -> float:
    return 1.0


class Tenths(Counter):
    def add(self, amount: int) -> str:
        """Add a tenth.

        Args:
            amount: Not used.
        """
        self.reward += 0.1
        return "more"


def factory(name: str = "Counter", **options: Any) -> Any:
    return make_env_factory("trl_environment", {"make": f"{HERE}:{name}", **options})


def add(amount: Any) -> Message:
    return Message.assistant("", (ToolCall(name="add", arguments={"amount": amount}),))


def test_an_episode_calls_methods_and_is_scored_by_the_attribute() -> None:
    made = factory()
    with closing(made()) as env, closing(made()) as other:
        assert env.reset(ROW) == [Message.user("Reach the target.\nThe target is 3.")]
        other.reset({**ROW, "target": 5})
        (tool,) = env.tools
        assert (tool.name, tool.description) == ("add", "Add to the count.")
        assert tool.parameters["properties"]["amount"] == {"type": "integer", "description": "How much."}
        assert env.step(add(2)).messages == (Message.tool("the count is 2", name="add"),)
        assert other.step(add(1)).messages == (Message.tool("the count is 1", name="add"),)
        assert env.step(add("two")).info["tool_errors"] == 1
        assert env.step(add(1)).messages[0].content == "the count is 3"
        assert env.step(add(1)).messages[0].content == "error: add: ValueError: Game over."
        ended = env.step(Message.assistant("done"))
        assert (ended.terminated, ended.reward, ended.reward_parts) == (True, 1.0, {"success": 1.0})
        cut = other.truncate(StopReason.MAX_TURNS)
        assert (cut.reward, cut.reward_parts) == (0.2, {"success": 0.0})


def test_prompts_of_messages_and_a_quiet_reset() -> None:
    made = factory(system_prompt="Count.")
    chat = [{"role": "user", "content": "Go."}]
    assert made().reset({**ROW, "prompt": chat, "quiet": True}) == [Message.system("Count."), Message.user("Go.")]


def test_a_method_or_a_function_may_give_the_reward() -> None:
    env = factory("Scored", kwargs={"factor": 0.5})()
    env.reset(ROW), env.step(add(2))
    assert [tool.name for tool in env.tools] == ["add"]
    assert env.step(Message.assistant("done")).reward == 1.0
    env = factory(reward=f"{HERE}:length_reward")()
    env.reset(ROW), env.step(add(2))
    assert env.step(Message.assistant("done")).reward == 2.0 + 10.0 * 3
    env = factory(reward=f"{HERE}:slow_reward")()
    env.reset(ROW)
    assert env.step(Message.assistant("done")).reward == 0.5
    env = factory(reward=f"{HERE}:length_reward")()
    env.reset({**ROW, "target": 99})
    assert env.step(Message.assistant("done")).reward is None


def test_ten_rewards_of_a_tenth_solve_what_needs_one() -> None:
    env = factory("Tenths")()
    env.reset(ROW)
    for _ in range(10):
        env.step(add(1))
    ended = env.step(Message.assistant("done"))
    assert ended.reward < 1.0 and ended.reward_parts == {"success": 1.0}


@pytest.mark.parametrize("name", ["two_rewards", "bare_reward"])
def test_a_function_that_gives_no_list_of_one_is_named_with_its_file(name: str) -> None:
    env = factory(reward=f"{HERE}:{name}")()
    env.reset(ROW)
    with pytest.raises(UserError, match=rf"'{HERE}:{name}' gave .*expected a list with one number.*{HERE}\.py:\d+"):
        env.step(Message.assistant("done"))


def test_tools_of_a_configuration_stand_beside_the_methods() -> None:
    with offer_tools(factory(), ToolsConfig(use=("calculator",))) as made:
        env = made()
        env.reset(ROW)
        assert [tool.name for tool in env.tools] == ["add", "calculator"]


@pytest.mark.parametrize(
    ("name", "options", "part"),
    [
        ("Counter", {"kwargs": {"factor": 1}}, "cannot be called"),
        ("length_reward", {}, "no method reset"),
        ("Nothing", {}, "no attribute"),
    ],
)
def test_a_class_that_is_none_is_refused_at_the_start(name: str, options: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        factory(name, **options)


@pytest.mark.parametrize(("name", "part"), [("Undescribed", "act"), ("Talking", "reset gave 5")])
def test_methods_that_cannot_be_used_are_refused_with_the_class(name: str, part: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*{part}"):
        factory(name)().reset(ROW)


def test_an_instance_without_a_reward_and_a_row_without_a_prompt_are_named() -> None:
    env = factory("Unscored")()
    env.reset(ROW)
    with pytest.raises(ConfigError, match="get_reward"):
        env.step(Message.assistant("done"))
    with pytest.raises(DataError, match="no column 'prompt'; its columns are question"):
        factory().check_task({"task_id": "t", "question": "?"}, "row 1")
