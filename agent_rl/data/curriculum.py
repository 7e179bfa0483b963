"""Which tasks a step trains on: all of them, or from easy to hard by the integer `level` of a row.

A curriculum samples positions in the list of tasks, observes how these tasks went, and can be saved and continued at
any step. It knows levels and success rates, not what a task, an episode or an environment is.
"""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from agent_rl.config import CurriculumConfig
from agent_rl.data.sampler import TaskSampler
from agent_rl.data.tasks import Task
from agent_rl.errors import CheckpointError, ConfigError


class Curriculum:
    """Mode `off`: every task from the first step on, in the sampler's order. The other modes can do the same:
    `tasks = c.next(12, step=1)`, roll them out, `metrics = c.observe(tasks, rates)`.
    """

    def __init__(self, num_tasks: int, *, seed: int) -> None:
        self._sampler = TaskSampler(num_tasks, seed=seed)

    def next(self, n: int, *, step: int) -> list[int]:
        """Positions of the next `n` tasks; the first step of a run is 1."""
        return self._sampler.next(n)

    def observe(self, tasks: Sequence[int], success_rates: Sequence[float | None] | None) -> dict[str, float]:
        """Observe how the tasks just sampled went; returns the `curriculum/*` metrics of that step.

        A rate is None where no episode could be scored; the whole list is when the environment reports no success.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next samples, as plain values."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken. Raises CheckpointError when it is of other tasks or another mode."""
        _check_mode(state, "off")
        self._sampler.load_state_dict(state)


def make_curriculum(tasks: Sequence[Task], config: CurriculumConfig, *, seed: int) -> Curriculum:
    """The curriculum of `config.mode`. Raises ConfigError when a row has no level it could go by."""
    if config.mode == "off":
        return Curriculum(len(tasks), seed=seed)
    levels = [level_of(task, f"training task {task['task_id']!r}", config) for task in tasks]
    return (Stages if config.mode == "stages" else BySuccess)(levels, config, seed=seed)


def level_of(task: Task, where: str, config: CurriculumConfig) -> int:
    """The row's level; raises ConfigError, opened by `where`, when that is no integer."""
    level = task.get("level")
    if type(level) is not int:
        raise ConfigError(
            f"{where}: level is {level!r}, but data.curriculum.mode = {config.mode!r} needs an integer in every row; "
            "add it, or set the mode to off"
        )
    return level


class _ByLevel(Curriculum, ABC):
    """Base of the other modes: samples from pools of tasks that depend on the highest open level."""

    def __init__(self, levels: Sequence[int], config: CurriculumConfig, *, seed: int) -> None:
        self._config = config
        self._levels = levels
        self._seed = seed
        self._present = sorted(set(levels))
        self._max_level = self._present[0]
        self._pools: list[_Pool] = []

    @abstractmethod
    def _open(self, max_level: int) -> None:
        """Make `max_level` the highest open level, with pools at their beginning."""

    def _pool(self, is_member: Callable[[int], bool]) -> "_Pool":
        return _Pool([i for i, level in enumerate(self._levels) if is_member(level)], seed=self._seed)

    def _num_tasks_by_level(self) -> dict[int, int]:
        counts = Counter(self._levels)
        return {level: counts[level] for level in self._present}

    def _rates_at_max_level(self, tasks: Sequence[int], success_rates: Sequence[float | None]) -> list[float]:
        pairs = zip(tasks, success_rates, strict=True)
        return [rate for task, rate in pairs if rate is not None and self._levels[task] == self._max_level]

    def _metrics(self, rates: Sequence[float]) -> dict[str, float]:
        success = {"curriculum/success_at_max_level": fmean(rates)} if rates else {}
        return {"curriculum/max_level": self._max_level} | success

    def state_dict(self) -> dict[str, Any]:
        return {
            "mode": self._config.mode,
            "num_tasks_by_level": self._num_tasks_by_level(),
            "max_level": self._max_level,
            "pools": [pool.sampler.state_dict() for pool in self._pools],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        _check_mode(state, self._config.mode)
        if state["num_tasks_by_level"] != self._num_tasks_by_level():
            raise CheckpointError(
                f"the checkpoint's tasks by level are {state['num_tasks_by_level']}, this run's are "
                f"{self._num_tasks_by_level()}; resume with the same data, or start a new run"
            )
        self._open(state["max_level"])
        for pool, pool_state in zip(self._pools, state["pools"], strict=True):
            pool.sampler.load_state_dict(pool_state)


class Stages(_ByLevel):
    """Mode `stages`: the highest open level is given by the step; all open tasks are one pool.

    `curriculum/success_at_max_level` is over the step's groups.
    """

    def __init__(self, levels: Sequence[int], config: CurriculumConfig, *, seed: int) -> None:
        super().__init__(levels, config, seed=seed)
        if config.stages[0].max_level < self._max_level:
            raise ConfigError(
                f"data.curriculum.stages: max_level {config.stages[0].max_level} opens no task, the lowest level "
                f"in the training tasks is {self._max_level}; raise it"
            )
        self._open(self._level_at(step=1))

    def next(self, n: int, *, step: int) -> list[int]:
        max_level = self._level_at(step)
        if max_level != self._max_level:
            self._open(max_level)
        return self._pools[0].next(n)

    def observe(self, tasks: Sequence[int], success_rates: Sequence[float | None] | None) -> dict[str, float]:
        return self._metrics([] if success_rates is None else self._rates_at_max_level(tasks, success_rates))

    def _level_at(self, step: int) -> int:
        """The highest level there is, up to that of the step's stage."""
        limits = (stage.max_level for stage in self._config.stages if step <= stage.until_step)
        limit = next(limits, self._present[-1])
        return max(level for level in self._present if level <= limit)

    def _open(self, max_level: int) -> None:
        self._max_level = max_level
        self._pools = [self._pool(lambda level: level <= max_level)]


class BySuccess(_ByLevel):
    """Mode `success`: the next level opens when the newest groups of the highest open one succeed often enough.

    Samples come from two pools, the highest open level and, for review, the levels below it. Its metric
    `curriculum/success_at_max_level` is over the window, so that it is what is compared with the threshold.
    """

    def __init__(self, levels: Sequence[int], config: CurriculumConfig, *, seed: int) -> None:
        super().__init__(levels, config, seed=seed)
        self._window: deque[float] = deque(maxlen=config.window)
        self._open(self._max_level)

    def next(self, n: int, *, step: int) -> list[int]:
        newest, *earlier = self._pools
        if not earlier:
            return newest.next(n)
        # Counted since the level was opened, so that shares of less than one task a step add up.
        due = round(self._config.review * (self._num_sampled + n))
        num_review = due - round(self._config.review * self._num_sampled)
        self._num_sampled += n
        return newest.next(n - num_review) + earlier[0].next(num_review)

    def observe(self, tasks: Sequence[int], success_rates: Sequence[float | None] | None) -> dict[str, float]:
        if success_rates is None:
            raise ConfigError(
                "data.curriculum.mode = 'success', but the environment reports no success; "
                "have it put 'success' (0 or 1) into reward_parts, or set another mode"
            )
        self._window.extend(self._rates_at_max_level(tasks, success_rates))
        metrics = self._metrics(self._window)
        higher = [level for level in self._present if level > self._max_level]
        if higher and len(self._window) == self._config.window and fmean(self._window) >= self._config.threshold:
            self._open(higher[0])
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"window": list(self._window), "num_sampled": self._num_sampled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._window.extend(state["window"])
        self._num_sampled = state["num_sampled"]

    def _open(self, max_level: int) -> None:
        self._max_level = max_level
        self._window.clear()
        self._num_sampled = 0
        self._pools = [self._pool(lambda level: level == max_level)]
        if max_level > self._present[0]:
            self._pools.append(self._pool(lambda level: level < max_level))


class _Pool:
    """Some of the tasks, sampled in epochs of their own."""

    def __init__(self, tasks: Sequence[int], *, seed: int) -> None:
        self._tasks = tasks
        self.sampler = TaskSampler(len(tasks), seed=seed)

    def next(self, n: int) -> list[int]:
        return [self._tasks[i] for i in self.sampler.next(n)]


def _check_mode(state: dict[str, Any], mode: str) -> None:
    saved = state.get("mode", "off")
    if saved != mode:
        raise CheckpointError(
            f"the checkpoint was made with data.curriculum.mode {saved!r}, this run has {mode!r}; "
            "resume with the same mode, or start a new run"
        )
