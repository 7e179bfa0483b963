"""The data of `agent-rl view` about a run: its steps, the episodes of one, an episode with its tokens.

Reads `samples/step_*.jsonl.gz` (format: `telemetry/trajectory_json.py`), `metrics.jsonl` and `config.yaml`
as they are at the time of the request, so the run may still go on. Every answer holds plain JSON values. Not here: a
file in memory (`steps.py`), HTTP (`server.py`), the page (`static/`).
"""

import json
import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_rl.config.yaml_text import read_settings
from agent_rl.errors import ConfigError, DataError
from agent_rl.reports.view.steps import ViewedStep, read_step
from agent_rl.telemetry.files import finite, whole_lines

_SAMPLES_FILE = re.compile(r"step_(\d+)\.jsonl\.gz")
_MAX_KEPT_BYTES = 200_000_000
"""Of the steps held in memory, beyond the latest one."""


class RunSamples:
    """`RunSamples(Path("runs/nat_grpo"))`; nothing is written. Thread-safe. DataError for a folder that is no run."""

    def __init__(self, path: Path) -> None:
        if not (path / "config.yaml").is_file():
            raise DataError(f"{path} holds no config.yaml; give the folder of a run, such as runs/nat_grpo")
        self._path = path
        self._lock = threading.Lock()
        self._read: dict[Path, tuple[tuple[int, int], ViewedStep]] = {}
        """By file, with its time and size; the latest request comes last."""

    def overview(self) -> dict[str, Any]:
        """The run's name, how often it saves samples (None if unknown), and the steps that it saved."""
        metrics = _step_metrics(self._path / "metrics.jsonl")
        steps = [{"step": step, "reward": None, "success": None} | metrics.get(step, {}) for step in self._files()]
        return {"run": self._path.resolve().name, "samples_every": self._samples_every(), "steps": steps}

    def episodes(self, step: int) -> dict[str, Any]:
        """One summary per episode, in rollout order, and where the scales of colours end."""
        samples = self._load(step)
        return {"step": step, "episodes": samples.summaries, "scales": samples.scales}

    def episode(self, step: int, index: int) -> dict[str, Any]:
        """The whole record of an episode. DataError where there is none."""
        samples = self._load(step)
        if not 0 <= index < len(samples.summaries):
            raise DataError(f"step {step} has no episode {index}: it has {len(samples.summaries)}, counted from 0")
        return samples.record(index) | {"index": index}

    def search(self, step: int, text: str) -> list[int]:
        """Episodes whose conversation or labels hold `text`, upper and lower case alike."""
        return self._load(step).search(text)

    def _files(self) -> dict[int, Path]:
        """By step; a file outside the run's folder, as behind a link, is left out."""
        root = self._path.resolve()
        found = {}
        for path in (self._path / "samples").glob("step_*.jsonl.gz"):
            match = _SAMPLES_FILE.fullmatch(path.name)
            if match and path.is_file() and path.resolve().is_relative_to(root):
                found[int(match[1])] = path
        return dict(sorted(found.items()))

    def _load(self, step: int) -> ViewedStep:
        """Read a file once, until it changes. DataError when there is none or it is damaged."""
        with self._lock:
            try:
                path = self._files()[step]
                status = path.stat()
            except (KeyError, FileNotFoundError):
                raise DataError(
                    f"step {step} of {self._path.name} has no samples; log.samples_every says which steps have"
                ) from None
            version = (status.st_mtime_ns, status.st_size)
            known = self._read.pop(path, None)
            if known is None or known[0] != version:
                known = (version, read_step(path))
            self._read[path] = known
            while len(self._read) > 1 and sum(read.num_bytes for _, read in self._read.values()) > _MAX_KEPT_BYTES:
                del self._read[next(iter(self._read))]
            return known[1]

    def _samples_every(self) -> int | None:
        try:
            every = read_settings(self._path / "config.yaml")["log"]["samples_every"]
        except (ConfigError, KeyError, TypeError):
            return None
        return every if isinstance(every, int) else None


def _step_metrics(path: Path) -> dict[int, dict[str, Any]]:
    """Reward and success by step of training, numbers that are not finite as None.

    Lines that are no such row are left out; the last one may be being written.
    """
    rows = {}
    for line in whole_lines(path):
        with suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict) and isinstance(row.get("step"), int) and "reward/mean" in row:
                rows[row["step"]] = {key: finite(row.get(f"{key}/mean")) for key in ("reward", "success")}
    return rows
