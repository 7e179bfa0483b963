"""benchmarks/controls.py: what rejection sampling keeps and learns, and how rewards are dealt out anew."""

import itertools
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import controls
import pytest
from builders import episode, turn
from controls import ShuffledRewards, passed, rejection, shuffled_for_ever
from fakes import LETTER_TASKS, LetterEnv, save_tiny_model, tiny_config

from agent_rl import GRPOTrainer, Message, StepResult, register_env
from agent_rl.config import Config
from agent_rl.envs.base import EnvFactory
from agent_rl.learning.sft import Conversation
from agent_rl.modeling.minimind import MiniMindForCausalLM
from agent_rl.records import TrajectoryGroup


class FixedEnv(LetterEnv):
    """Pays every reply the same."""

    def __init__(self, reward: float) -> None:
        self.reward = reward

    def step(self, message: Message) -> StepResult:
        return StepResult(reward=self.reward, reward_parts={"success": self.reward}, terminated=True)


@register_env("test_fixed")
def fixed(options: dict[str, Any], seed: int) -> EnvFactory:
    return EnvFactory(partial(FixedEnv, **options))


def test_every_distinct_episode_that_passed_is_selected_once() -> None:
    episodes = [
        episode(success, turn((1, 2), ids), reward_parts={"success": success})
        for ids, success in (((5, 6), 1.0), ((7,), 0.0), ((5, 6), 1.0), ((8, 9), 1.0))
    ]

    conversations = list(passed(TrajectoryGroup(task_id="t", trajectories=tuple(episodes))))

    assert [each.token_ids for each in conversations] == [[1, 2, 5, 6], [1, 2, 8, 9]]
    assert [each.loss_mask for each in conversations] == [[0, 0, 1, 1]] * 2


def test_selected_conversations_come_once_an_epoch_in_another_order() -> None:
    conversations = [Conversation(token_ids=[number], loss_mask=[1]) for number in range(20)]

    stream = [each.token_ids[0] for each in itertools.islice(shuffled_for_ever(conversations, 0), 40)]

    assert sorted(stream[:20]) == sorted(stream[20:]) == list(range(20))
    assert stream[:20] != stream[20:]


def test_rewards_of_a_step_are_dealt_out_among_its_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny_model(tmp_path / "model")
    seen: list[Sequence[TrajectoryGroup]] = []
    monkeypatch.setattr(GRPOTrainer, "update", lambda self, groups: seen.append(groups) or {})
    episodes = [
        TrajectoryGroup(
            task_id=str(group),
            trajectories=tuple(episode(4.0 * group + i, turn((1, 2), (5,))) for i in range(4)),
        )
        for group in range(4)
    ]

    with ShuffledRewards.from_config(tiny_config(tmp_path), env_factory=LetterEnv, train_tasks=LETTER_TASKS) as trainer:
        trainer.update(episodes)
        trainer.update(episodes)

    rewards = [[each.reward for group in groups for each in group.trajectories] for groups in seen]
    assert sorted(rewards[0]) == list(range(16))
    assert rewards[0] != list(range(16))
    assert rewards[1] == rewards[0]


@pytest.mark.parametrize("rounds", [1, 2])
def test_rejection_sampling_ends_with_a_model_that_learned(
    tmp_path: Path, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, config = rejection_run(tmp_path, reward=1.0)
    clock = itertools.count()
    monkeypatch.setattr(controls, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))

    rejection(config, tmp_path / "out", seconds=12.0 * rounds, rounds=rounds, rate=1e-3)

    after = MiniMindForCausalLM.from_pretrained(tmp_path / "out/model")
    assert any((after.state_dict()[name] != value).any() for name, value in before.state_dict().items())


def test_without_an_episode_that_passed_it_ends_in_a_sentence(tmp_path: Path) -> None:
    _, config = rejection_run(tmp_path, reward=0.0)

    with pytest.raises(SystemExit, match="no episode passed"):
        rejection(config, tmp_path / "out", seconds=1.0, rounds=1, rate=1e-3)


def rejection_run(folder: Path, *, reward: float) -> tuple[MiniMindForCausalLM, Config]:
    save_tiny_model(folder / "model")
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in LETTER_TASKS), encoding="utf-8")
    config = tiny_config(
        folder,
        env={"name": "test_fixed", "options": {"reward": reward}},
        data={"train_path": str(folder / "tasks.jsonl")},
    )
    return MiniMindForCausalLM.from_pretrained(folder / "model"), config
