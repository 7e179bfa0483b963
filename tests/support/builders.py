"""What many tests build: tool calls, turns, episodes, trainers, programs started as a user does."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fakes import LETTER_TASKS, LetterEnv, tiny_config

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.config import Config
from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.data.tasks import Task
from agent_rl.envs.base import EnvFactory
from agent_rl.records import Completion, FinishReason, StopReason, Trajectory, Turn

ROOT = Path(__file__).resolve().parents[2]


def call(name: str = "add", **arguments: object) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


def turn(
    prompt: Sequence[int] = (1,),
    sampled: Sequence[int] = (5,),
    logprobs: Sequence[float] | None = None,
    *,
    token_versions: tuple[int, ...] = (),
    **changes: Any,
) -> Turn:
    """A turn whose log-probs are -0.5 unless given; `changes` are other fields of `Turn`."""
    completion = Completion(
        token_ids=tuple(sampled),
        logprobs=tuple(logprobs if logprobs is not None else [-0.5] * len(sampled)),
        finish_reason=FinishReason.STOP,
        weight_version=0,
        token_versions=token_versions,
    )
    fields = {"message": Message.assistant("reply"), "env_messages": ()} | changes
    return Turn(prompt_token_ids=tuple(prompt), completion=completion, **fields)


def episode(reward: float | None, *turns: Turn, **changes: Any) -> Trajectory:
    """A finished episode, or one whose environment failed where `reward` is None; `changes` are other fields."""
    stop_reason = StopReason.ENV_ERROR if reward is None else StopReason.FINISHED
    fields = {"task_id": "t", "group_id": "g", "stop_reason": stop_reason} | changes
    return Trajectory(turns=turns, reward=reward, **fields)


def make_trainer(
    where: Config | Path, *, env: Any = LetterEnv, tasks: Sequence[Task] = LETTER_TASKS, **sections: dict[str, Any]
) -> GRPOTrainer:
    """A trainer of the letter environment, of a configuration or the tiny one in a folder with `sections` changed."""
    config = tiny_config(where, **sections) if isinstance(where, Path) else where
    return GRPOTrainer.from_config(config, env_factory=EnvFactory(env), train_tasks=tasks, eval_tasks=LETTER_TASKS)


def run_program(*words: str | Path, timeout_s: float = 100.0, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python WORDS` at the top of the project, as a user starts it."""
    command = [sys.executable, *map(str, words)]
    env = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False, env=env)
