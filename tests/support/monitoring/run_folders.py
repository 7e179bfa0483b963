"""Folders of runs written line by line, for tests of what reads them."""

import json
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from agent_rl.monitoring.names import documented_metrics


class WrittenRun:
    """`run.row(1, **{"reward/mean": 0.5})`, `run.event("end", 1, reason="finished")`; times are seconds."""

    def __init__(self, folder: Path, settings: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "config.yaml").exists():
            (folder / "config.yaml").write_text(yaml.safe_dump(settings or {"train": {"steps": 10}}))

    def row(self, step: int, *, time: float, **metrics: float | None) -> None:
        self.append("metrics.jsonl", json.dumps({"step": step, "time": time, **metrics}) + "\n")

    def event(self, kind: str, step: int, *, time: float, **facts: Any) -> None:
        moment = datetime.fromtimestamp(time, UTC).isoformat()
        self.append("events.jsonl", json.dumps({"time": moment, "step": step, "kind": kind, "facts": facts}) + "\n")

    def append(self, name: str, text: str) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(text)


def write_full_run(folder: Path) -> WrittenRun:
    """A run under way that has written every metric of docs/metrics.md, one of its own, and a checkpoint."""
    run = WrittenRun(folder, {"train": {"steps": 10}, "checkpoint": {"every": 2}, "model": {"path": "model/mine"}})
    names = [row.name for row in documented_metrics() if row.name != "time"]
    every = {re.sub(r"<\w+>", "0.7" if name.startswith("eval/") else "some", name): 0.5 for name in names}
    now = time.time()
    run.event("start", 0, time=now, planned_steps=10, num_processes=1)
    evaluation = {name: value for name, value in every.items() if name.startswith(("eval/", "time/eval"))}
    step = {name: value for name, value in every.items() if name not in evaluation}
    run.row(0, time=now, **evaluation)
    run.row(1, time=now, **step, mine=1.0)
    checkpoint = folder / "checkpoints/step_00001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer.pt").write_bytes(b"weights")
    return run
