"""The data of `agent-rl view` about a folder: its sets of episodes, the episodes of one, an episode with its tokens.

A set is a step of training (`samples/step_*.jsonl.gz`, format: `telemetry/trajectory_json.py`), an evaluation within a
run (`eval/step_*_t*.json`), or what `agent-rl eval` wrote (`episodes.jsonl`). They are read with `metrics.jsonl` and
`config.yaml` as they are at the time of the request, so a run may still go on. Every answer holds plain JSON values.
Not here: a file in memory (`steps.py`), several folders (`runs.py`), HTTP (`server.py`), the page (`static/`).
"""

import json
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from agent_rl.config.yaml_text import read_settings
from agent_rl.errors import ConfigError, DataError
from agent_rl.reports.view.steps import ViewedStep, read_evaluation, read_held_out, read_samples
from agent_rl.telemetry.files import finite, whole_lines

_SAMPLES_FILE = re.compile(r"step_(\d+)\.jsonl\.gz")
_EVAL_FILE = re.compile(r"step_(\d+)_t([\d.e+-]+)\.json")
_MAX_KEPT_BYTES = 200_000_000
"""Of the sets held in memory, beyond the latest one."""
EVALUATION = "evaluation"
"""Id of the only set of a folder of `agent-rl eval`."""

_Version = tuple[int, int]
"""Time and size of a file."""


class EpisodeSet(NamedTuple):
    """Where the episodes of one set are."""

    path: Path
    read: Callable[[Path], ViewedStep]
    step: int | None
    """None for a folder of `agent-rl eval`."""
    temperature: str | None
    """Of a held-out evaluation within a run, as its file is named; None for a step of training."""


class RunSamples:
    """`RunSamples(Path("runs/nat_grpo"))`; nothing is written. Thread-safe. DataError for a folder that is no run."""

    def __init__(self, path: Path) -> None:
        self._is_evaluation = not (path / "config.yaml").is_file() and (path / "episodes.jsonl").is_file()
        if not self._is_evaluation and not (path / "config.yaml").is_file():
            raise DataError(
                f"{path} holds no config.yaml; give the folder of a run, such as runs/nat_grpo, or one that "
                "agent-rl eval wrote"
            )
        self.path = path
        self.name = path.resolve().name
        self._lock = threading.Lock()
        self._read: dict[Path, tuple[_Version, ViewedStep]] = {}
        """By file; the latest request comes last."""
        self._summaries: dict[Path, tuple[_Version, list[dict[str, Any]]]] = {}
        """Of every set that was read, also when it is no longer held."""

    def overview(self) -> dict[str, Any]:
        """The run's name, how often it saves samples (None if unknown), and the sets that it saved."""
        metrics = _step_metrics(self.path / "metrics.jsonl")
        sets = []
        for name, found in self.sets().items():
            prefix = "" if found.temperature is None else f"eval/t{found.temperature}/"
            known = metrics.get(found.step, {}) if found.step is not None else {}
            figures = {key: known.get(f"{prefix}{key}") for key in ("reward", "success")}
            sets.append({"id": name, "step": found.step, "temperature": found.temperature, **figures})
        return {"run": self.name, "samples_every": self._samples_every(), "sets": sets}

    def episodes(self, name: str) -> dict[str, Any]:
        """One summary per episode of a set, in rollout order, and where the scales of colours end."""
        viewed = self.load(name)
        return {"id": name, "episodes": viewed.summaries, "scales": viewed.scales}

    def episode(self, name: str, index: int) -> dict[str, Any]:
        """The whole record of an episode. DataError where there is none."""
        viewed = self.load(name)
        if not 0 <= index < len(viewed.summaries):
            where = name.replace("-", " ", 1) if name.startswith("step-") else name
            raise DataError(f"{where} has no episode {index}: it has {len(viewed.summaries)}, counted from 0")
        return viewed.record(index) | {"index": index}

    def search(self, name: str, text: str) -> list[int]:
        """Episodes whose conversation or labels hold `text`, upper and lower case alike."""
        return self.load(name).search(text)

    def of_task(self, task_id: str) -> list[dict[str, Any]]:
        """The episodes of a task in every set that has some: `[{"id": ..., "episodes": [summary, ...]}, ...]`.

        A set that cannot be read is left out: it says so when it is opened.
        """
        found = []
        for name, where in self.sets().items():
            with suppress(DataError):
                episodes = [each for each in self._summaries_of(name, where) if each["task_id"] == task_id]
                found += [{"id": name, "episodes": episodes}] if episodes else []
        return found

    def sets(self) -> dict[str, EpisodeSet]:
        """By id, training first; a file outside the folder, as behind a link, is left out."""
        if self._is_evaluation:
            return {EVALUATION: EpisodeSet(self.path / "episodes.jsonl", read_evaluation, None, None)}
        training, held_out = {}, {}
        for path in self._inside("samples", "step_*.jsonl.gz"):
            if match := _SAMPLES_FILE.fullmatch(path.name):
                step = int(match[1])
                training[step] = EpisodeSet(path, read_samples, step, None)
        for path in self._inside("eval", "step_*_t*.json"):
            if match := _EVAL_FILE.fullmatch(path.name):
                held_out[match[2], int(match[1])] = EpisodeSet(path, read_held_out, int(match[1]), match[2])
        return {
            **{f"step-{step}": training[step] for step in sorted(training)},
            **{f"eval-{step}-t{temperature}": held_out[temperature, step] for temperature, step in sorted(held_out)},
        }

    def load(self, name: str) -> ViewedStep:
        """Read a set once, until its file changes. DataError when there is none or it is damaged."""
        found = self.sets().get(name)
        if found is None:
            raise DataError(_missing(name, self.name))
        return self.load_set(name, found)

    def load_set(self, name: str, found: EpisodeSet) -> ViewedStep:
        """`load` of one of `sets()`, without listing the folder again, which takes long with many files."""
        with self._lock:
            path, version = found.path, self._version(name, found)
            known = self._read.pop(path, None)
            if known is None or known[0] != version:
                known = (version, found.read(path))
            self._read[path] = known
            self._summaries[path] = (version, known[1].summaries)
            while len(self._read) > 1 and sum(read.num_bytes for _, read in self._read.values()) > _MAX_KEPT_BYTES:
                del self._read[next(iter(self._read))]
            return known[1]

    def _version(self, name: str, found: EpisodeSet) -> _Version:
        try:
            status = found.path.stat()
        except FileNotFoundError:
            raise DataError(_missing(name, self.name)) from None
        return status.st_mtime_ns, status.st_size

    def _summaries_of(self, name: str, found: EpisodeSet) -> list[dict[str, Any]]:
        version = self._version(name, found)
        known = self._summaries.get(found.path)
        return known[1] if known is not None and known[0] == version else self.load_set(name, found).summaries

    def _inside(self, folder: str, pattern: str) -> list[Path]:
        root = self.path.resolve()
        found = (self.path / folder).glob(pattern)
        return [path for path in found if path.is_file() and path.resolve().is_relative_to(root)]

    def _samples_every(self) -> int | None:
        try:
            every = read_settings(self.path / "config.yaml")["log"]["samples_every"]
        except (ConfigError, KeyError, TypeError):
            return None
        return every if isinstance(every, int) else None


def _missing(name: str, run: str) -> str:
    """The sentence about a set that is not there."""
    kind, _, rest = name.partition("-")
    if kind == "eval":
        step, _, temperature = rest.partition("-t")
        return f"step {step} of {run} has no evaluation at temperature {temperature}; eval.every says which steps have"
    if kind == "step":
        return f"step {rest} of {run} has no samples; log.samples_every says which steps have"
    return f"{run} has no episodes {name!r}; take a step from the list"


def _step_metrics(path: Path) -> dict[int, dict[str, Any]]:
    """Reward and success by step, of training and of each evaluation, numbers that are not finite as None.

    Lines that are no such row are left out; the last one may be being written.
    """
    rows: dict[int, dict[str, Any]] = {}
    for line in whole_lines(path):
        with suppress(ValueError, RecursionError):
            row = json.loads(line)
            if not isinstance(row, dict) or not isinstance(row.get("step"), int):
                continue
            kept = rows.setdefault(row["step"], {})
            if "reward/mean" in row:
                kept |= {key: finite(row.get(f"{key}/mean")) for key in ("reward", "success")}
            kept |= {key: finite(value) for key, value in row.items() if key.startswith("eval/t")}
    return rows
