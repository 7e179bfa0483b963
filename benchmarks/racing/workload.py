"""What both trainers of a race are given, and the clock that they run against.

Standard library only, because TRL's interpreter imports it too. Not here: any trainer, evaluation, tables.
"""

import importlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CLOCK_FILE = "clock.jsonl"
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One run of one trainer."""

    model: str
    """Folder of the model that both begin with."""
    policy: str
    """Our `policy.type`."""
    reward: str
    """Import path of the reward function, `racing.rewards:NAME`."""
    rows: str
    """File of the training rows, one JSON object a line."""
    folder: str
    """What the run writes: checkpoints and the clock's file."""
    seed: int
    num_prompts: int
    """Of one step."""
    group_size: int
    max_new_tokens: int
    max_context: int
    learning_rate: float
    trl_rows: int
    """Episodes that TRL trains on at once; gradients of the parts of a step are accumulated."""
    seconds: float
    """Wall time of the training, without loading and without saving checkpoints."""
    points: int
    """Checkpoints, evenly over that time."""
    device: str

    @property
    def num_episodes(self) -> int:
        """Of one step."""
        return self.num_prompts * self.group_size

    @classmethod
    def read(cls, path: str | Path) -> "Workload":
        return cls(**json.loads(Path(path).read_text(encoding="utf-8")))

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    def read_rows(self) -> list[dict[str, Any]]:
        with Path(self.rows).open(encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def reward_function(self) -> Callable[..., list[float]]:
        module, _, name = self.reward.partition(":")
        return getattr(importlib.import_module(module), name)


class Clock:
    """Wall time of a training by step; it stands still while a checkpoint is saved.

    `save(folder)` writes the model as it is now.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seconds: float,
        points: int,
        save: Callable[[Path], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._seconds = seconds
        self._apart = seconds / points
        self._save = save
        self._now = now
        self._started = 0.0
        self._num_saved = 0

    def start(self) -> None:
        """Call it where training begins; loading is over."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._started = self._now()

    def end_step(self, step: int) -> bool:
        """Note the time of a step that has ended, and save where a checkpoint is due; whether the time is up."""
        ended = self._now()
        elapsed = ended - self._started
        is_over = elapsed >= self._seconds
        due = int(elapsed / self._apart)
        name = None
        if is_over or due > self._num_saved:
            self._num_saved = due
            name = f"step_{step:05d}"
            self._save(self._folder / CHECKPOINTS / name)
        with (self._folder / CLOCK_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "seconds": round(elapsed, 3), "checkpoint": name}) + "\n")
        self._started += self._now() - ended
        return is_over
