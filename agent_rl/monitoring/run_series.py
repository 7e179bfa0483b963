"""The series of one run for Prometheus: `run_series(follower)` after `follower.look()`.

What is of a run's rows has its name from `names.py`; the table below has the others, and docs/MONITORING.md lists both.
Not here: reading (`run_follower.py`), the format of Prometheus (`exporter.py`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from agent_rl.monitoring.names import PREFIX, exported
from agent_rl.monitoring.run_follower import RunFollower
from agent_rl.monitoring.run_rows import COUNTERS
from agent_rl.monitoring.run_state import STATES

GAUGES = {
    "run_info": "1, with what the run trains and how",
    "run_state": "1 for the state that the run is in, 0 for the others",
    "run_sign_timestamp_seconds": "When the run last wrote a row or an event, or was started",
    "run_unreadable_files": "Files of the run that this program cannot read",
    "run_bad_lines": "Lines of metrics.jsonl and events.jsonl that are not what they should be",
    "last_step": "Number of the newest step",
    "target_steps": "Steps that the run is to train (`train.steps`)",
    "usual_step_seconds": "Median time of the newest 31 steps",
    "alarm_active": "1 while an alarm that fired has not been healthy again, else 0",
    "checkpoint_timestamp_seconds": "When the newest checkpoint was whole",
    "checkpoint_bytes": "Size of the newest checkpoint",
    "checkpoint_step": "Step of the newest checkpoint; 0 before the first",
    "checkpoint_period_steps": "Steps between checkpoints (`checkpoint.every`); absent where it is 0",
}
"""Families of one run beside those of the table and the counters."""
RUN_COUNTERS = {
    "rollbacks": "Returns to a checkpoint by an alarm",
    "alarms": "Alarms that fired, by metric and action",
    **COUNTERS,
}
_OF_CONFIG = {
    "model": "model.path",
    "advantage": "algorithm.advantage",
    "loss": "algorithm.loss",
    "environment": "env.name",
    "policy": "policy.type",
}
"""Labels of `run_info` that are keys of the configuration."""
_OF_ENVIRONMENT = {"version": "packages.agent_rl", "host": "host", "tier": "env.sandbox.tier"}
"""Those of environment.json; `tier` is how well the sandbox isolates, where the environment has one."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series: a family and labels; a counter's family is without `_total`."""

    family: str
    help: str
    labels: tuple[tuple[str, str], ...]
    value: float
    is_counter: bool = False


def run_series(run: RunFollower) -> Iterator[Series]:
    """Everything there is of a run, each family and label once."""
    name = (("run", run.name),)
    for key, value in _newest(run).items():
        if key != "step":
            found = exported(key)
            yield Series(found.family, found.help, name + found.labels, value * found.factor)
    for gauge, labels, value in _gauges(run):
        yield Series(PREFIX + gauge, GAUGES[gauge], name + labels, value)
    for counter, labels, value in _counters(run):
        yield Series(PREFIX + counter, RUN_COUNTERS[counter], name + labels, value, is_counter=True)


def _newest(run: RunFollower) -> dict[str, float]:
    """By name: evaluations keep theirs until the next one; the time of a row is that of the newest step."""
    evaluation = {name: value for name, value in run.rows.evaluation.items() if name != "time"}
    return {**evaluation, **run.rows.step}


_Values = Iterator[tuple[str, tuple[tuple[str, str], ...], float]]


def _gauges(run: RunFollower) -> _Values:
    yield "run_info", _info(run), 1.0
    if run.state is not None:
        for state in STATES:
            yield "run_state", (("state", state),), float(state == run.state)
    if run.last_sign_time:
        yield "run_sign_timestamp_seconds", (), run.last_sign_time
    yield "run_unreadable_files", (), len(run.unreadable)
    yield "run_bad_lines", (), run.num_bad_lines
    if run.rows.step:
        yield "last_step", (), run.rows.step["step"]
    if not math.isnan(run.rows.usual_step_s):
        yield "usual_step_seconds", (), run.rows.usual_step_s
    active = {(rule.metric, rule.action) for rule in run.rows.alarms.active()}
    for metric, action in run.rows.alarm_totals:
        yield "alarm_active", (("metric", metric), ("action", action)), float((metric, action) in active)
    yield from _settings(run)
    yield "checkpoint_step", (), run.checkpoint.step if run.checkpoint else 0
    if run.checkpoint:
        yield "checkpoint_timestamp_seconds", (), run.checkpoint.time
        yield "checkpoint_bytes", (), run.checkpoint.num_bytes


def _settings(run: RunFollower) -> _Values:
    for gauge, key in (("target_steps", "train.steps"), ("checkpoint_period_steps", "checkpoint.every")):
        value = run.settings.get(key)
        if isinstance(value, int) and value > 0:
            yield gauge, (), value


def _info(run: RunFollower) -> tuple[tuple[str, str], ...]:
    facts = {label: run.settings.get(key) for label, key in _OF_CONFIG.items()}
    facts |= {label: run.environment.get(key) for label, key in _OF_ENVIRONMENT.items()}
    return tuple((label, "" if value is None else str(value)) for label, value in facts.items())


def _counters(run: RunFollower) -> _Values:
    for name, value in run.rows.totals.items():
        yield name, (), value
    yield "rollbacks", (), run.num_rollbacks
    for (metric, action), number in run.rows.alarm_totals.items():
        yield "alarms", (("metric", metric), ("action", action)), number
