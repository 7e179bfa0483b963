"""The same tasks played twice: by the library's own rollout, and by agents through the endpoint; and compared."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from agent_rl.config import Config
from agent_rl.data.tasks import Task, read_tasks
from agent_rl.endpoint.session import EpisodeSession
from agent_rl.envs.base import EnvFactory
from agent_rl.envs.opening import open_environment
from agent_rl.policies.minimind_policy import MiniMindPolicy
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import Trajectory, Turn
from agent_rl.rollout.episode import run_episode
from agent_rl.rollout.turns import EpisodeLimits
from agent_rl.seeds import derive_seed

ROOT = Path(__file__).resolve().parents[3]
NUM_WORKERS = 32


def open_all(config: Config, model: str, num_tasks: int) -> tuple[MiniMindPolicy, EnvFactory, list[Task]]:
    policy = MiniMindPolicy.from_pretrained(
        ROOT / "model" / model,
        dtype="float32",
        device=torch.device("cpu"),
        max_batch_size=NUM_WORKERS,
        max_context=config.policy.max_context,
    )
    factory = open_environment(config)
    factory.start()
    return policy, factory, list(read_tasks(ROOT / config.data.train_path, factory.check_task))[:num_tasks]


def own_episodes(
    policy: BasePolicy, factory: EnvFactory, tasks: Sequence[Task], limits: EpisodeLimits, temperature: float
) -> list[Trajectory]:
    def run(task: Task) -> Trajectory:
        seed = derive_seed(task["task_id"])
        return run_episode(policy, factory(), task, group_id="g", seed=seed, limits=limits, temperature=temperature)

    with ThreadPoolExecutor(NUM_WORKERS) as pool:
        return list(pool.map(run, tasks))


def assert_equal_turns(own: Turn, other: Turn) -> None:
    assert other.prompt_token_ids == own.prompt_token_ids
    assert other.completion.token_ids == own.completion.token_ids
    assert other.completion.logprobs == pytest.approx(own.completion.logprobs, abs=1e-4)
    assert (other.new_context, other.message) == (own.new_context, own.message)


def assert_equal(
    own: Sequence[Trajectory], others: Sequence[EpisodeSession], *, up_to_broken_calls: bool = False
) -> int:
    """The number of turns that were compared; with `up_to_broken_calls` none behind a turn with one."""
    num_turns = 0
    for episode, session in zip(own, others, strict=True):
        expected, turns = list(episode.turns), list(session.turns)
        if up_to_broken_calls:
            broken = [index for index, turn in enumerate(expected) if turn.message.tool_errors]
            expected, turns = expected[: broken[0] + 1 if broken else None], turns[: broken[0] + 1 if broken else None]
        assert len(turns) == len(expected)
        for mine, other in zip(expected, turns, strict=True):
            assert_equal_turns(mine, other)
            num_turns += 1
    return num_turns
