"""The folder of a run, read for a report; a run that is not finished is read as far as it got.

`read_run(Path("runs/nat_grpo"))`. Nothing is written, and no tensor is loaded. Not here: what the numbers mean.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from agent_rl.config import flatten
from agent_rl.config.yaml_text import read_settings
from agent_rl.envs.failure_modes import FailureModes
from agent_rl.errors import ConfigError, DataError
from agent_rl.reports.episodes import Episode, failure_modes_of, in_common, read_eval_file
from agent_rl.reports.run.evidence import Evidence, HeldOut, measured
from agent_rl.telemetry.events import Event, EventKind, read_events
from agent_rl.telemetry.files import read_lines

_EVAL_FILE = re.compile(r"step_(\d+)_t([\d.e+-]+)\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutEvaluation:
    """The held-out episodes of one step and temperature."""

    step: int
    temperature: float
    episodes: tuple[Episode, ...]
    """In task order, one a task."""

    @property
    def counted(self) -> HeldOut:
        scored = [episode for episode in self.episodes if episode.is_scored]
        return HeldOut(self.step, sum(episode.is_success for episode in scored), len(scored))

    @property
    def by_env(self) -> dict[str, "HeldOutEvaluation"]:
        """The same of each environment of a mixture that scored anything; empty where all are of one."""
        names = dict.fromkeys(episode.env for episode in self.episodes if episode.env)
        if len(names) < 2:
            return {}
        each = {name: replace(self, episodes=tuple(e for e in self.episodes if e.env == name)) for name in names}
        return {name: part for name, part in each.items() if part.counted.num_scored}

    @property
    def mean_reward(self) -> float:
        """Over scored episodes; NaN without one."""
        rewards = [episode.reward for episode in self.episodes if episode.reward is not None]
        return fmean(rewards) if rewards else math.nan


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run's folder in memory."""

    path: Path
    config: Mapping[str, Any]
    """As in config.yaml; empty where there is none."""
    environment: Mapping[str, Any]
    """Machine and versions, as in environment.json; empty where there is none."""
    rows: Sequence[Mapping[str, Any]]
    """Training steps of metrics.jsonl, each once, in order."""
    evaluation_s: float
    """Time of all evaluations."""
    evaluations: Sequence[HeldOutEvaluation]
    """By temperature, then by step."""
    events: Sequence[Event]
    """As in events.jsonl; empty for a run of a version that wrote none."""
    failures: FailureModes
    """Names the failures of the run's environment."""
    notes: Sequence[str]
    """What of the folder could not be read."""

    @property
    def name(self) -> str:
        return str(self.settings.get("run.name", self.path.resolve().name))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration, flat: `{"train.steps": 80}`."""
        return flatten(self.config)

    @cached_property
    def steps(self) -> list[int]:
        return [row["step"] for row in self.rows]

    @cached_property
    def metrics(self) -> dict[str, list[float]]:
        """One value per training step of every metric; NaN where a step has none."""
        names = dict.fromkeys(name for row in self.rows for name in row if name not in ("step", "time"))
        return {name: [_number(row.get(name)) for row in self.rows] for name in names}

    @property
    def planned_steps(self) -> int | None:
        return self.settings.get("train.steps")

    @property
    def is_finished(self) -> bool:
        return bool(self.steps) and self.planned_steps is not None and self.steps[-1] >= self.planned_steps

    @property
    def wall_s(self) -> float:
        """Steps and evaluations together; loading, checkpoints and steps that were run twice are not in it."""
        return sum(measured(self.metrics.get("time/step_s", ()))) + self.evaluation_s

    def num_events(self, kind: EventKind) -> int | None:
        """How many events of a kind there are; None when the run has no events.jsonl."""
        return sum(event.kind == kind for event in self.events) if self.events else None

    @property
    def temperatures(self) -> list[float]:
        return sorted({each.temperature for each in self.evaluations})

    def at(self, temperature: float) -> list[HeldOutEvaluation]:
        """Evaluations at a temperature that scored anything, in order of steps."""
        return [each for each in self.evaluations if each.temperature == temperature and each.counted.num_scored]

    def evidence(self) -> Evidence:
        """For the rules; held-out tasks at the temperature that is trained at, or else the highest."""
        trained_at = self.settings.get("policy.temperature")
        chosen = trained_at if trained_at in self.temperatures else max(self.temperatures, default=0.0)
        evaluations = self.at(chosen)
        sides = [each.episodes for each in (evaluations[0], evaluations[-1])] if len(evaluations) > 1 else []
        return Evidence(
            metrics=self.metrics,
            steps=self.steps,
            held_out=[each.counted for each in evaluations],
            held_out_change=in_common(*sides).change if sides else None,
            settings=self.settings,
        )


def read_run(path: Path) -> Run:
    """Read a run's folder. DataError when it is none, or when a file in it is damaged other than by a cut."""
    if not (path / "config.yaml").is_file() and not (path / "metrics.jsonl").is_file():
        raise DataError(
            f"{path} holds neither config.yaml nor metrics.jsonl; give the folder of a run, such as runs/nat_grpo"
        )
    notes: list[str] = []
    config = _read_mapping(path / "config.yaml", notes)
    failures = failure_modes_of(config, notes)
    lines = _metrics_rows(path / "metrics.jsonl", notes)
    evaluations = _evaluations(path / "eval", failures)
    last = max((row["step"] for row in lines), default=None)
    if last is not None and (later := sorted({each.step for each in evaluations if each.step > last})):
        numbers = ", ".join(map(str, later))
        notes.append(
            f"evaluations of step {numbers} are left out: the metrics end at step {last}, as after going back to an "
            "earlier checkpoint"
        )
        evaluations = [each for each in evaluations if each.step <= last]
    rows = {row["step"]: row for row in lines if not _is_evaluation(row)}
    return Run(
        path=path,
        config=config,
        failures=failures,
        environment=_read_mapping(path / "environment.json", notes),
        rows=[rows[step] for step in sorted(rows)],
        evaluation_s=sum(measured([_number(row.get("time/eval_s")) for row in lines if _is_evaluation(row)])),
        evaluations=evaluations,
        events=read_events(path),
        notes=notes,
    )


def _is_evaluation(row: Mapping[str, Any]) -> bool:
    return any(name.startswith("eval/") for name in row)


def _number(value: Any) -> float:
    """A metric's value; null, where it was not finite, as NaN."""
    return math.nan if value is None else float(value)


def _metrics_rows(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Whole lines of metrics.jsonl; of a last line that was cut off a note is made."""
    if not path.exists():
        notes.append("there is no metrics.jsonl yet: no step is done")
        return []
    problem = "not a line of metrics with a step and numbers; remove the line to report on the rest"
    rows = read_lines(path, _metrics_row, problem)
    if path.read_bytes().rpartition(b"\n")[2].strip():
        notes.append("the last line of metrics.jsonl was cut off and is left out")
    return rows


def _metrics_row(row: dict[str, Any]) -> dict[str, Any]:
    if isinstance(row["step"], int) and all(isinstance(value, int | float | None) for value in row.values()):
        return row
    raise ValueError


def _read_mapping(path: Path, notes: list[str]) -> dict[str, Any]:
    """A YAML or JSON file (every JSON file is YAML); a note where it is not there. DataError for anything else."""
    if not path.exists():
        notes.append(f"there is no {path.name}")
        return {}
    try:
        tree = read_settings(path)
    except ConfigError as error:
        raise DataError(f"{error}; restore the file or remove it to report without it") from None
    if not isinstance(tree, dict):
        raise DataError(f"{path}: not a mapping of keys to values; restore the file or remove it to report without it")
    return tree


def _evaluations(folder: Path, failures: FailureModes) -> list[HeldOutEvaluation]:
    found = []
    for path in sorted(folder.glob("step_*.json")):
        if match := _EVAL_FILE.fullmatch(path.name):
            episodes = tuple(read_eval_file(path, failures))
            found.append(HeldOutEvaluation(step=int(match[1]), temperature=float(match[2]), episodes=episodes))
    return sorted(found, key=lambda each: (each.temperature, each.step))
