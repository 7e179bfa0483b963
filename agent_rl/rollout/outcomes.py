"""What the groups of a step are worth: whether one is trained on, and how often its task was solved.

Not here: rolling them out (`rollout.py`), which tasks come next because of it (`data/curriculum.py`).
"""

import math
from collections.abc import Sequence
from statistics import fmean

from agent_rl.algorithms.advantages import has_variance
from agent_rl.config import Config
from agent_rl.records import StopReason, Trajectory, TrajectoryGroup
from agent_rl.telemetry.statistics import is_success


def is_trainable(group: TrajectoryGroup, config: Config) -> bool:
    """Whether a group is trained on: with `max_attempts` 1 always, else unless it is a zero-variance group.

    With estimators that compare parts of the reward, one of these parts must differ.
    """
    if config.rollout.max_attempts == 1:
        return True
    scored = [episode for episode in group.trajectories if episode.reward is not None]
    parts = config.algorithm.part_weights
    if parts:
        return any(has_variance([episode.reward_parts.get(name, 0.0) for episode in scored]) for name in parts)
    return has_variance([episode.reward for episode in scored])


def success_rates(groups: Sequence[TrajectoryGroup]) -> list[float | None]:
    """Share of scored episodes that succeeded, by group; None for a group without any.

    NaN where episodes of the environment ended by themselves and none of the step reports `success`. Where some
    report it, an episode that does not, as a rule one that was cut off, is a failure.
    """
    scored = [[episode for episode in group.trajectories if episode.reward is not None] for group in groups]
    by_env: dict[str, list[Trajectory]] = {}
    for episode in (episode for group in scored for episode in group):
        by_env.setdefault(episode.env, []).append(episode)
    silent = {
        name
        for name, episodes in by_env.items()
        if not any("success" in episode.reward_parts for episode in episodes)
        and any(episode.stop_reason is StopReason.FINISHED for episode in episodes)
    }
    return [_rate(group, is_reported=group[0].env not in silent) if group else None for group in scored]


def _rate(scored: Sequence[Trajectory], *, is_reported: bool) -> float:
    return fmean(is_success(episode.reward_parts) for episode in scored) if is_reported else math.nan
