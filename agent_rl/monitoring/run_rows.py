"""What the rows of a run add up to: the newest values, counters over all rows, and its alarms, replayed.

The alarms are those of `telemetry/alarms.py` and see the rows as the trainer saw them, so what fires here fired there.
Not here: files (`run_follower.py`), names for Prometheus (`names.py`).
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite, nan
from statistics import median
from typing import Any

from agent_rl.config.sections import AlarmConfig
from agent_rl.telemetry.alarms import Alarms, make_alarms

_STEPS_REMEMBERED = 31
"""For a usual step's time."""
COUNTERS = {
    "train_steps": "Steps that were trained",
    "generated_tokens": "Tokens that the model wrote",
    "episodes": "Episodes of all steps",
    "env_errors": "Episodes dropped because their environment failed",
    "hack_episodes": "Episodes with noticed reward hacking",
    "nonfinite_updates": "Updates not made, because loss or gradient was not finite",
}
"""Sums over the rows of a run by name, with their meaning."""


@dataclass(slots=True)
class RunRows:
    """`rows.add(row)` for every row of metrics.jsonl in order, `rows.restart_alarms()` at a return to a checkpoint."""

    rules: list[AlarmConfig]
    """As in `log.alarms` of the run."""
    step: Mapping[str, float] = field(default_factory=dict)
    """The newest training step's row."""
    evaluation: dict[str, float] = field(default_factory=dict)
    """The newest value of every name that evaluations write."""
    totals: Counter[str] = field(default_factory=Counter)
    """By the names of `COUNTERS`; those that no row told of are absent."""
    alarm_totals: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Alarms by metric and action; 0 for those that never fired."""
    alarms: Alarms = field(init=False)
    step_times_s: deque[float] = field(default_factory=lambda: deque(maxlen=_STEPS_REMEMBERED))
    longest_evaluation_s: float = 0.0
    last_time: float = 0.0
    """When the newest row was written."""

    def __post_init__(self) -> None:
        self.restart_alarms()
        self.alarm_totals.update({(rule.metric, rule.action): 0 for rule in self.alarms.rules})

    @property
    def usual_step_s(self) -> float:
        """Median of the newest steps; NaN before the first."""
        return median(self.step_times_s) if self.step_times_s else nan

    def restart_alarms(self) -> None:
        self.alarms = make_alarms(self.rules)

    def add(self, row: Mapping[str, float]) -> None:
        """One row, as `read_row` gives it."""
        self.last_time = row["time"]
        if "time/eval_s" in row:
            self.evaluation |= row
            self.longest_evaluation_s = max(self.longest_evaluation_s, row["time/eval_s"])
            return
        for alarm in self.alarms.check(int(row["step"]), row):
            self.alarm_totals[alarm.metric, alarm.action] += 1
        self._count(row)
        if isfinite(seconds := row.get("time/step_s", nan)):
            self.step_times_s.append(seconds)
        self.step = row

    def _count(self, metrics: Mapping[str, float]) -> None:
        self.totals["train_steps"] += 1
        episodes = metrics.get("rollout/num_episodes", nan)
        found = {
            "episodes": episodes,
            "generated_tokens": _rounded(episodes * metrics.get("rollout/tokens_mean", nan)),
            "env_errors": metrics.get("rollout/env_errors", nan),
            "hack_episodes": metrics.get("hacks/episodes", nan),
            "nonfinite_updates": metrics.get("optim/nonfinite", 0.0),
        }
        for name, value in found.items():
            if isfinite(value):
                self.totals[name] += value


def read_row(record: Any) -> dict[str, float]:
    """A row from its JSON; a number that was not finite is NaN. ValueError and its like for what is no row."""
    row = {name: nan if value is None else float(value) for name, value in record.items()}
    if not isfinite(row["step"]) or not isfinite(row["time"]):
        raise ValueError("a row has a step and a time")
    return row


def _rounded(value: float) -> float:
    """A mean times a number is a whole number but for the last digits."""
    return round(value) if isfinite(value) else value
