"""The groups of each step, and the synchronous source, which rolls tasks out when the step needs them.

With `rollout.max_attempts` above 1, more tasks are rolled out while too few groups have rewards that differ (dynamic
sampling). Not here: how episodes run (`workers.py`), what is trained on them, the asynchronous source
(`async_source.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

from agent_rl.algorithms.advantages import has_variance
from agent_rl.config import Config, CurriculumConfig
from agent_rl.data.curriculum import level_of, make_curriculum
from agent_rl.data.tasks import Task
from agent_rl.envs.base import EnvFactory
from agent_rl.records import StopReason, TrajectoryGroup
from agent_rl.rollout.workers import DistributedRollout, RolloutRequest
from agent_rl.telemetry.statistics import is_success


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """The groups of one step."""

    groups: list[TrajectoryGroup]
    """All of them, in the order they were started."""
    train_groups: list[TrajectoryGroup]
    """Those to train on; with more than one attempt only groups whose rewards differ."""
    metrics: dict[str, float]


class RolloutSource(Protocol):
    """Where the trainer gets its groups. A checkpoint has the state of the last step that was committed."""

    def collect(self, *, step: int) -> RolloutBatch:
        """The groups of a step; the first step of a run is 1."""

    def commit(self) -> None:
        """The groups collected last were trained on."""

    def rewind(self, step: int) -> None:
        """The weights go back to those after `step` updates; the tasks that come next stay the next ones."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def close(self) -> None:
        """Cancel what is running."""


class SyncSource:
    """Rolls out the tasks of a step when the step needs them."""

    def __init__(self, config: Config, tasks: Sequence[Task], rollout: DistributedRollout) -> None:
        self._config = config
        self._tasks = tasks
        self._rollout = rollout
        self._curriculum = make_curriculum(tasks, config.data.curriculum, seed=config.run.seed)
        self._committed = self._curriculum.state_dict()

    def collect(self, *, step: int) -> RolloutBatch:
        """Roll out until there are `groups_per_step` groups to train on, or `max_attempts` times."""
        rollout, num_attempts = self._config.rollout, 0
        indices: list[int] = []
        groups: list[TrajectoryGroup] = []
        train_groups: list[TrajectoryGroup] = []
        while len(train_groups) < rollout.groups_per_step and num_attempts < rollout.max_attempts:
            num_attempts += 1
            selected = self._curriculum.next(rollout.groups_per_step - len(train_groups), step=step)
            request = RolloutRequest(
                tasks=[self._tasks[index] for index in selected],
                group_size=rollout.group_size,
                step=step,
                temperature=self._config.policy.temperature,
                positions=range(len(groups), len(groups) + len(selected)),
                with_greedy=self._config.algorithm.advantage == "remax",
            )
            new_groups = self._rollout.collect(request)
            indices += selected
            groups += new_groups
            train_groups += [group for group in new_groups if is_trainable(group, self._config)]
        metrics = self._curriculum.observe(indices, success_rates(groups))
        if rollout.max_attempts > 1:
            metrics |= {"rollout/num_attempts": float(num_attempts), "rollout/num_groups": float(len(groups))}
        return RolloutBatch(groups=groups, train_groups=train_groups, metrics=metrics)

    def commit(self) -> None:
        self._committed = self._curriculum.state_dict()

    def state_dict(self) -> dict[str, Any]:
        return self._committed

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """CheckpointError when it is of other tasks or another curriculum.

        An asynchronous run's state gives the curriculum alone: its groups are of older weights.
        """
        self._curriculum.load_state_dict(state.get("curriculum", state))
        self._committed = self._curriculum.state_dict()

    def rewind(self, step: int) -> None:
        """Nothing to do: no group outlives its step."""

    def close(self) -> None:
        """Nothing to do: between calls of `collect` nothing runs."""


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


def train_check(factory: EnvFactory, curriculum: CurriculumConfig) -> Callable[[Task, str], None]:
    """The check of a row of the training file: the environment's, and a level where the curriculum needs one."""

    def check(task: Task, where: str) -> None:
        factory.check_task(task, where)
        if curriculum.mode != "off":
            level_of(task, where, curriculum)

    return check


def success_rates(groups: Sequence[TrajectoryGroup]) -> list[float | None] | None:
    """Share of scored episodes that succeeded, by group; None for a group without any.

    None instead of the list when episodes ended by themselves and none of the step reports `success`. Where some
    report it, an episode that does not, as a rule one that was cut off, is a failure.
    """
    scored = [[episode for episode in group.trajectories if episode.reward is not None] for group in groups]
    episodes = [episode for group in scored for episode in group]
    is_reported = any("success" in episode.reward_parts for episode in episodes)
    if not is_reported and any(episode.stop_reason is StopReason.FINISHED for episode in episodes):
        return None
    return [fmean(is_success(e.reward_parts) for e in group) if group else None for group in scored]
