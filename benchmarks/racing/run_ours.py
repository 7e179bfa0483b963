"""agent_rl's GRPOTrainer in a race: `PYTHONPATH=benchmarks python benchmarks/racing/run_ours.py WORKLOAD.json`.

Started by `race.py`. Not here: other trainers, evaluation.
"""

import agent_rl  # noqa: F401, I001  first: says how long PyTorch's threads wait

import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from racing.rewards import check_packages
from racing.workload import Clock, Workload

from agent_rl import GRPOTrainer

NO_END = 1_000_000
"""Steps of a training that its time ends."""


class TimeIsUp(Exception):
    """Ends a training."""


def main() -> None:
    workload = Workload.read(sys.argv[1])
    check_packages(workload.reward)
    trainer = GRPOTrainer(
        model=workload.model,
        reward_funcs=workload.reward,
        train_dataset=workload.read_rows(),
        args=settings(workload),
    )
    clock = Clock(
        Path(workload.folder),
        seconds=workload.seconds,
        points=workload.points,
        save=trainer.model.save_pretrained,
    )

    def until_time_is_up(step: int, _: Mapping[str, float]) -> None:
        if clock.end_step(step):
            raise TimeIsUp

    with trainer, suppress(TimeIsUp):
        clock.start()
        trainer.train(on_step=until_time_is_up)


def settings(workload: Workload) -> dict[str, Any]:
    """Defaults but for what the workload says."""
    return {
        "run.name": "run",
        "run.output_dir": workload.folder,
        "run.device": workload.device,
        "run.seed": workload.seed,
        "policy.type": workload.policy,
        "policy.max_new_tokens": workload.max_new_tokens,
        "policy.max_context": workload.max_context,
        "policy.max_batch_size": workload.num_episodes,
        "policy.temperature": 1.0,
        "rollout.group_size": workload.group_size,
        "rollout.groups_per_step": workload.num_prompts,
        "rollout.async_workers": workload.num_episodes,
        "rollout.max_turns": 1,
        "train.steps": NO_END,
        "train.learning_rate": workload.learning_rate,
        "train.schedule": "constant",
        "train.betas": [0.9, 0.99],
        "algorithm.clip_low": 0.2,
        "algorithm.clip_high": 0.28,
        "algorithm.aggregation": "token_mean",
        "eval.temperatures": [],
        "log.trackers": [],
        "log.progress": False,
        "checkpoint.every": 0,
    }


if __name__ == "__main__":
    main()
