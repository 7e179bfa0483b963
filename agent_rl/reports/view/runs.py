"""Several folders behind one page of `agent-rl view`, by number, each with a name of its own.

Not here: what one folder holds (`data.py`).
"""

from collections.abc import Sequence
from typing import Any

from agent_rl.errors import DataError
from agent_rl.reports.view.data import RunSamples


class ViewedRuns:
    """`ViewedRuns([RunSamples(path), ...])`; folders of one name are told apart by those that they are in."""

    def __init__(self, runs: Sequence[RunSamples]) -> None:
        self.runs = tuple(runs)
        names = [run.name for run in runs]
        self.names = [
            name if names.count(name) == 1 else f"{run.path.resolve().parent.name}/{name}"
            for run, name in zip(runs, names, strict=True)
        ]
        if len(set(self.names)) < len(self.names):
            raise DataError(f"two of the folders are called {max(self.names, key=self.names.count)}; give one of them")

    def overview(self) -> list[dict[str, Any]]:
        """What each folder holds, in order."""
        return [run.overview() | {"run": name} for run, name in zip(self.runs, self.names, strict=True)]

    def run(self, number: int) -> RunSamples:
        """DataError where there is none."""
        if number >= len(self.runs):
            raise DataError(f"there is no run {number}: there are {len(self.runs)}, counted from 0")
        return self.runs[number]

    def of_task(self, task_id: str) -> list[dict[str, Any]]:
        """The episodes of a task in every set of every run: `[{"run": 0, "id": ..., "episodes": [...]}, ...]`."""
        return [{"run": number, **found} for number, run in enumerate(self.runs) for found in run.of_task(task_id)]
