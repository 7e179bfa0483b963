"""Where a step's groups come from: tasks drawn, played, and drawn again while too few groups have a signal.

Not here: how episodes are played (`rollout.py`), what is learned from them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from agent_rl.algorithms.advantages import has_variance
from agent_rl.config import Config, CurriculumConfig
from agent_rl.data.curriculum import level_of, make_curriculum
from agent_rl.data.tasks import Task
from agent_rl.envs.base import EnvFactory
from agent_rl.records import StopReason, TrajectoryGroup
from agent_rl.rollout.workers import SpreadRollout
from agent_rl.telemetry.statistics import is_success


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """The groups of one step."""

    played: list[TrajectoryGroup]
    """All of them, in the order they were drawn."""
    kept: list[TrajectoryGroup]
    """Those to train on; with more than one attempt only groups with a signal."""
    metrics: dict[str, float]


class GroupSource:
    """Draws by the curriculum. Its state is that of the last step that was committed."""

    def __init__(self, config: Config, tasks: Sequence[Task], rollout: SpreadRollout) -> None:
        self._config = config
        self._tasks = tasks
        self._rollout = rollout
        self._curriculum = make_curriculum(tasks, config.data.curriculum, seed=config.run.seed)
        self._committed = self._curriculum.state_dict()

    def collect(self, *, step: int) -> RolloutBatch:
        """Play until `groups_per_step` groups are kept or `max_attempts` times; the first step of a run is 1."""
        rollout, num_attempts = self._config.rollout, 0
        drawn: list[int] = []
        played: list[TrajectoryGroup] = []
        kept: list[TrajectoryGroup] = []
        while len(kept) < rollout.groups_per_step and num_attempts < rollout.max_attempts:
            num_attempts += 1
            indices = self._curriculum.next(rollout.groups_per_step - len(kept), step=step)
            groups = self._rollout.collect(
                [self._tasks[index] for index in indices],
                group_size=rollout.group_size,
                step=step,
                temperature=self._config.policy.temperature,
                first_position=len(played),
                with_greedy=self._config.algorithm.advantage == "remax",
            )
            drawn += indices
            played += groups
            kept += [group for group in groups if is_wanted(group, self._config)]
        metrics = self._curriculum.observe(drawn, success_rates(played))
        if rollout.max_attempts > 1:
            metrics |= {"rollout/num_attempts": float(num_attempts), "rollout/num_groups_played": float(len(played))}
        return RolloutBatch(played=played, kept=kept, metrics=metrics)

    def commit(self) -> None:
        """The groups drawn last were learned from."""
        self._committed = self._curriculum.state_dict()

    def state_dict(self) -> dict[str, Any]:
        return self._committed

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """CheckpointError when it is of other tasks or another curriculum.

        Of an asynchronous run's state only the curriculum is taken: its groups were drawn by older weights.
        """
        self._curriculum.load_state_dict(state.get("curriculum", state))
        self._committed = self._curriculum.state_dict()

    def rewind(self, step: int) -> None:
        """The weights go back to those after `step` updates; the tasks that come next stay the next ones."""

    def close(self) -> None:
        """End what is under way; between calls of `collect` that is nothing."""


def is_wanted(group: TrajectoryGroup, config: Config) -> bool:
    """Whether a group is trained on: with `max_attempts` 1 always, else when it has a signal.

    That is when the rewards differ, or with estimators that compare parts of them, one of these parts.
    """
    if config.rollout.max_attempts == 1:
        return True
    scored = [episode for episode in group.trajectories if episode.reward is not None]
    parts = config.algorithm.part_weights
    if parts:
        return any(has_variance([episode.reward_parts.get(name, 0.0) for episode in scored]) for name in parts)
    return has_variance([episode.reward for episode in scored])


def train_check(factory: EnvFactory, curriculum: CurriculumConfig) -> Callable[[Task, str], None]:
    """What every row of the training file must pass: the environment's check, and a level where one is needed."""

    def check(task: Task, where: str) -> None:
        factory.check_task(task, where)
        if curriculum.mode != "off":
            level_of(task, where, curriculum)

    return check


def success_rates(groups: Sequence[TrajectoryGroup]) -> list[float | None] | None:
    """Share of scored episodes that succeeded, by group; None for a group without any.

    None instead of the list when episodes were played to their end and none of the step reports `success`. Where some
    report it, an episode that does not, as a rule one that was cut off, is a failure.
    """
    scored = [[episode for episode in group.trajectories if episode.reward is not None] for group in groups]
    episodes = [episode for group in scored for episode in group]
    is_reported = any("success" in episode.reward_parts for episode in episodes)
    if not is_reported and any(episode.stop_reason is StopReason.FINISHED for episode in episodes):
        return None
    return [fmean(is_success(e.reward_parts) for e in group) if group else None for group in scored]
