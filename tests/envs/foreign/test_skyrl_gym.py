"""Environments of SkyRL's gym: its own, and one with a tool group and a rewritten action."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from fakes import ScriptedPolicy

from agent_rl.agent.messages import Message
from agent_rl.envs.registry import make_env_factory
from agent_rl.records import StopReason
from agent_rl.rollout.episode import EpisodeLimits, run_episode

skyrl_gym = pytest.importorskip("skyrl_gym", reason="needs SkyRL's gym: pip install skyrl-gym")
base_text_env = importlib.import_module("skyrl_gym.envs.base_text_env")
core = importlib.import_module("skyrl_gym.tools.core")
LIMITS = EpisodeLimits(max_new_tokens=100)
GSM8K = {
    "task_id": "t",
    "prompt": [{"role": "user", "content": "40 + 2?"}],
    "env_class": "gsm8k",
    "reward_spec": {"method": "rule", "ground_truth": "42"},
}


class Lookup(base_text_env.BaseTextEnv):
    """Looks words up until an answer comes; what follows a call is cut off."""

    def __init__(self, env_config: Any = None, extras: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.wanted, self.max_turns = extras["reward_spec"]["ground_truth"], extras["max_turns"]
        self.words = env_config.words
        self.init_tool_groups([Words("Words")])

    def step(self, action: str) -> Any:
        self.turns += 1
        call, found, _ = action.partition("</look>")
        if not found or self.turns >= self.max_turns:
            reward = float(action == self.wanted)
            return {"observations": [], "reward": reward, "done": True, "metadata": {}, "postprocessed_action": action}
        text = self._execute_tool("Words", "look", (self.words, call.removeprefix("<look>")))
        told = [{"role": "user", "content": text}]
        return {
            "observations": told,
            "reward": 0.0,
            "done": False,
            "metadata": {},
            "postprocessed_action": call + found,
        }

    def get_metrics(self) -> dict[str, Any]:
        return {"turns": self.turns}


class Words(core.ToolGroup):
    @core.tool
    def look(self, words: Any, word: str) -> str:
        return words.get(word, "no such word")


@pytest.fixture
def lookup() -> Iterator[dict[str, Any]]:
    skyrl_gym.register(id="lookup", entry_point=Lookup)
    yield {"id": "lookup", "env_config": {"words": {"gato": "cat"}}, "extras": {"max_turns": 3}}
    skyrl_gym.envs.registration.deregister("lookup")


def play(options: dict[str, Any], task: dict[str, Any], *replies: str, limits: EpisodeLimits = LIMITS) -> Any:
    factory = make_env_factory("skyrl_gym", options)
    factory.check_task(task, "row")
    policy = ScriptedPolicy(replies)
    return run_episode(policy, factory(), task, group_id="g", seed=0, limits=limits, temperature=1.0)


@pytest.mark.parametrize("options", [{"id": "gsm8k"}, {}])
def test_an_environment_of_the_gym_scores_a_reply(options: dict[str, Any]) -> None:
    made = play(options, GSM8K, "#### 42")
    assert (made.reward, made.stop_reason, made.reward_parts) == (1.0, StopReason.FINISHED, {"success": 1.0})
    assert made.initial_messages == (Message.user("40 + 2?"),)
    assert play(options, GSM8K, "#### 43").reward == 0.0


TASK = {"task_id": "t", "prompt": [{"role": "user", "content": "gato?"}], "reward_spec": {"ground_truth": "cat"}}


def test_its_tool_groups_are_called_and_a_rewritten_reply_starts_a_new_context(lookup: dict[str, Any]) -> None:
    made = play(lookup, TASK, "<look>gato</look>", "<look>perro</look> and so on", "cat")
    assert [turn.new_context for turn in made.turns] == [False, False, True]
    first, second, _ = made.turns
    assert [each.content for each in first.env_messages] == ["cat"]
    assert [each.content for each in second.env_messages][-2:] == ["<look>perro</look>", "no such word"]
    assert made.reward_parts == {"success": 1.0, "turns": 3.0} and made.reward == 1.0


def test_an_episode_that_is_cut_off_keeps_its_metrics(lookup: dict[str, Any]) -> None:
    made = play(lookup, TASK, "<look>gato</look>", "x", limits=EpisodeLimits(max_new_tokens=100, max_turns=1))
    assert (made.reward, made.stop_reason) == (0.0, StopReason.MAX_TURNS)
    assert made.reward_parts == {"success": 0.0, "turns": 1.0}


def test_what_the_model_thought_is_part_of_the_text_as_in_skyrl(lookup: dict[str, Any]) -> None:
    env = make_env_factory("skyrl_gym", lookup)()
    env.reset({**TASK, "reward_spec": {"ground_truth": "<think>\nhm\n</think>\n\ncat"}})
    assert env.step(Message(role="assistant", content="cat", reasoning="hm")).reward == 1.0
    env.close()
