"""Which tasks a step trains on: all of them, or from easy to hard by the integer `level` of a row.

A curriculum samples positions in the list of tasks, observes how these tasks went, and can be saved and continued at
any step. In a mixture every environment has its own, and weights share out the tasks. It knows levels and success
rates, not what an episode or an environment is.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from statistics import fmean
from typing import Any

from agent_rl.config import CurriculumConfig
from agent_rl.data.sampler import TaskSampler
from agent_rl.data.tasks import ENV_COLUMN, Task
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

    def observe(self, tasks: Sequence[int], success_rates: Sequence[float | None]) -> dict[str, float]:
        """Observe how the tasks just sampled went; returns the `curriculum/*` metrics of that step.

        A rate is None where no episode could be scored, and NaN where the environment reports no success.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next samples, as plain values."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken. Raises CheckpointError when it is of other tasks or another mode."""
        _check_mode(state, "off")
        self._sampler.load_state_dict(state)


def make_curriculum(
    tasks: Sequence[Task], config: CurriculumConfig, *, seed: int, weights: Mapping[str, float] | None = None
) -> Curriculum:
    """The curriculum of `config.mode`; with the `weights` of environments, one for the tasks of each.

    Raises ConfigError when a row has no level it could go by, and for an environment without a task.
    """
    if weights:
        return MixedCurriculum(tasks, config, seed=seed, weights=weights)
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
        return [
            rate
            for task, rate in pairs
            if rate is not None and not math.isnan(rate) and self._levels[task] == self._max_level
        ]

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

    def observe(self, tasks: Sequence[int], success_rates: Sequence[float | None]) -> dict[str, float]:
        return self._metrics(self._rates_at_max_level(tasks, success_rates))

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

    def observe(self, tasks: Sequence[int], success_rates: Sequence[float | None]) -> dict[str, float]:
        if any(rate is not None and math.isnan(rate) for rate in success_rates):
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


class MixedCurriculum(Curriculum):
    """A curriculum for each environment of a mixture; weights say how many of the tasks are of which.

    The next task is of the environment that is furthest behind its share, so that nothing is left to chance.
    """

    def __init__(
        self, tasks: Sequence[Task], config: CurriculumConfig, *, seed: int, weights: Mapping[str, float]
    ) -> None:
        self._weights = dict(weights)
        self._places = {
            name: [place for place, task in enumerate(tasks) if task[ENV_COLUMN] == name] for name in weights
        }
        for name, places in self._places.items():
            if not places:
                raise ConfigError(
                    f"no training task is of the environment {name!r}; add rows whose {ENV_COLUMN!r} it is, or leave "
                    "the environment out"
                )
        self._own_place = {
            place: (name, index) for name, places in self._places.items() for index, place in enumerate(places)
        }
        self._inner = {
            name: make_curriculum([tasks[place] for place in places], config, seed=seed)
            for name, places in self._places.items()
        }
        self._counts = dict.fromkeys(weights, 0)

    def next(self, n: int, *, step: int) -> list[int]:
        order = [self._next_name() for _ in range(n)]
        chosen = {
            name: iter([self._places[name][index] for index in inner.next(order.count(name), step=step)])
            for name, inner in self._inner.items()
        }
        return [next(chosen[name]) for name in order]

    def _next_name(self) -> str:
        total, num_next = sum(map(Fraction, self._weights.values())), sum(self._counts.values()) + 1
        behind = {
            name: Fraction(weight) * num_next - self._counts[name] * total for name, weight in self._weights.items()
        }
        name = max(behind, key=lambda each: behind[each])
        self._counts[name] += 1
        return name

    def observe(self, tasks: Sequence[int], success_rates: Sequence[float | None]) -> dict[str, float]:
        metrics: dict[str, float] = {}
        own: dict[str, list[tuple[int, float | None]]] = {name: [] for name in self._inner}
        for task, rate in zip(tasks, success_rates, strict=True):
            name, index = self._own_place[task]
            own[name].append((index, rate))
        for name, inner in self._inner.items():
            try:
                found = inner.observe([index for index, _ in own[name]], [rate for _, rate in own[name]])
            except ConfigError as error:
                raise ConfigError(f"environment {name!r}: {error}") from None
            metrics |= {f"env/{name}/{key}": value for key, value in found.items()}
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return {
            "weights": dict(self._weights),
            "counts": dict(self._counts),
            "environments": {name: inner.state_dict() for name, inner in self._inner.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken; with other weights, by these from here on."""
        theirs = list(state.get("environments", ()))
        if set(theirs) != set(self._inner):
            raise CheckpointError(
                f"the checkpoint's environments are {', '.join(theirs) or 'none by name'}, this run's "
                f"{', '.join(self._inner)}; resume with the same ones, or start a new run"
            )
        for name, inner in self._inner.items():
            try:
                inner.load_state_dict(state["environments"][name])
            except CheckpointError as error:
                raise CheckpointError(f"environment {name!r}: {error}") from None
        is_same = state["weights"] == self._weights
        self._counts = dict(state["counts"]) if is_same else dict.fromkeys(self._weights, 0)


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
