"""The evidence of a run for the rules, windows over it, and the form of a recommendation.

Not here: reading a run's folder (`data.py`), the rules (`learning_rules.py`, `rollout_rules.py`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, variance
from typing import Any, Literal

from agent_rl.telemetry.alarms import DEFAULT_ALARMS
from agent_rl.telemetry.statistics import PairedChange

WINDOW = 20
"""Steps of a window at most: over as many, a mean of 96 episodes a step is known to one or two per cent."""
MIN_STEPS = 5
"""Fewest measured steps that a mean is taken of: the longest patience of a default alarm."""
STANDARD_ERRORS = 2.0
"""A difference of two windows is clear beyond this many standard errors, which chance exceeds one time in twenty."""

ALARM_LIMITS = {rule.metric: rule.below if rule.above is None else rule.above for rule in DEFAULT_ALARMS}
"""Limits of the default alarms: beyond one is a problem, a rule may hint earlier."""
ALARM_ADVICE = {rule.metric: rule.advice for rule in DEFAULT_ALARMS}


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One evaluation, counted: 30 of 200 tasks solved after 80 steps is `HeldOut(80, 30, 200)`."""

    step: int
    num_successes: int
    num_scored: int

    @property
    def rate(self) -> float:
        return self.num_successes / self.num_scored


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """`Evidence(metrics={"reward/mean": [0.1, 0.3]})`: what rules look at."""

    metrics: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Each as long as the run has steps; NaN where a step does not have it."""
    steps: Sequence[int] = ()
    """Their numbers; empty: 1, 2, 3, ..."""
    held_out: Sequence[HeldOut] = ()
    """Evaluations at one temperature, in order of steps."""
    held_out_change: PairedChange | None = None
    """From the first of them to the last, on the tasks that both scored; None where there are no two."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The configuration, flat: `{"train.steps": 80}`."""

    @property
    def num_steps(self) -> int:
        return max((len(values) for values in self.metrics.values()), default=0)

    def step_at(self, index: int) -> int:
        """The number of a step; indices count from 0."""
        return self.steps[index] if self.steps else index + 1

    @property
    def updates_per_step(self) -> int:
        return self.settings.get("train.epochs", 1) * self.settings.get("train.minibatches", 1)

    @property
    def episodes_per_step(self) -> int:
        return self.settings.get("rollout.groups_per_step", 0) * self.settings.get("rollout.group_size", 0)

    @property
    def has_correction(self) -> bool:
        return self.settings.get("algorithm.correction.kind", "none") != "none"

    def has_opened_levels(self, start: int = 0) -> bool:
        """Whether the curriculum sampled other levels in the window from index `start` than in the last: then neither
        rewards nor lengths of the two can be compared."""
        levels = self.metrics.get("curriculum/max_level", ())
        size = min(WINDOW, len(levels) // 2)
        then, now = measured(levels[start : start + size]), measured(levels[len(levels) - size :])
        return bool(then and now) and fmean(then) != fmean(now)

    def last(self, name: str) -> list[float]:
        """What was measured in the last `WINDOW` steps."""
        return measured(self.metrics.get(name, ())[-WINDOW:])

    def recent(self, name: str) -> float | None:
        """The mean of `last`, or None with fewer than `MIN_STEPS` values."""
        values = self.last(name)
        return fmean(values) if len(values) >= MIN_STEPS else None

    def span(self, name: str) -> str:
        """`over the last 20 steps`: those of the window that have the metric."""
        number = len(self.last(name))
        return f"over the last {number} steps" if number != 1 else "in the last step"

    def ends(self, name: str) -> tuple[list[float], list[float]] | None:
        """The first and the last window of what was measured, not overlapping; None with too few values."""
        values = measured(self.metrics.get(name, ()))
        size = min(WINDOW, len(values) // 2)
        return (values[:size], values[-size:]) if size >= MIN_STEPS else None


def measured(values: Sequence[float]) -> list[float]:
    """`values` without those that are infinite or not a number."""
    return [value for value in values if math.isfinite(value)]


def rise(before: Sequence[float], after: Sequence[float]) -> float:
    """By how much the mean went up."""
    return fmean(after) - fmean(before)


def is_clear(before: Sequence[float], after: Sequence[float], standard_errors: float = STANDARD_ERRORS) -> bool:
    """Whether two windows of at least 2 values differ by more than chance, taking their steps as independent.

    `|mean a - mean b| > k sqrt(s_a² / n_a + s_b² / n_b)`: Welch 1947, Biometrika 34:28, with a fixed `k`.
    """
    error = math.sqrt(variance(before) / len(before) + variance(after) / len(after))
    return abs(rise(before, after)) > standard_errors * error


Severity = Literal["problem", "hint"]
Turn = Literal["raise", "lower", "set"]
Keys = Mapping[str, Turn]
"""Keys of the configuration, the likeliest first, and which way to turn each; `set` where there is no more or less."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """One thing to do: `figure` is what was seen, `advice` what to do about it, `keys` what to change."""

    rule: str
    severity: Severity
    """`problem`: the run is worth less until it is fixed. `hint`: it could be better."""
    figure: str
    advice: str
    keys: Keys = field(default_factory=dict)

    @property
    def changes(self) -> list[str]:
        """`lower train.learning_rate`; for `set` the key alone."""
        return [key if turn == "set" else f"{turn} {key}" for key, turn in self.keys.items()]


Rule = Callable[[Evidence], Recommendation | None]


def unless(is_done: bool, keys: Keys) -> Keys:
    """`keys`, or none when their effect is already there."""
    return {} if is_done else keys


def severity_above(name: str, value: float) -> Severity:
    return "problem" if value > ALARM_LIMITS[name] else "hint"


def percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
