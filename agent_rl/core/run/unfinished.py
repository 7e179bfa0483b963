"""Folders of runs that ended before their first step was whole: their names are free.

Not here: runs that have done a step, which are continued or left alone (`run_folder.py`).
"""

import json
import math
import os
import shutil
from pathlib import Path

from agent_rl.distributed.checkpoint import latest_checkpoint, step_of
from agent_rl.telemetry.files import whole_lines

_OF_VALUE = ("eval", "transcripts", "samples", "checkpoints")
"""Folders: what is in one of them is kept aside."""
_OF_A_RUN = (
    *("config.yaml", "environment.json", "metrics.jsonl", "events.jsonl", "errors.jsonl", "log.jsonl", "tensorboard"),
    *_OF_VALUE,
)


def holds_a_step(folder: Path) -> bool:
    """Whether a run in `folder` has done a step: a checkpoint of one, or its metrics; damaged ones count as one."""
    return last_step(folder) > 0


def last_step(folder: Path) -> float:
    """The last step of which there is a checkpoint or metrics, 0 where there is none; infinite for damaged metrics."""
    newest = latest_checkpoint(folder / "checkpoints")
    return max(last_row(folder), 0 if newest is None else step_of(newest))


def last_row(folder: Path) -> float:
    """The last step of which there are metrics, 0 where there is none; infinite for damaged metrics."""
    try:
        steps = [int(json.loads(line)["step"]) for line in whole_lines(folder / "metrics.jsonl")]
    except (ValueError, KeyError, TypeError):
        return math.inf
    return max([0, *steps])


def clear_unfinished(folder: Path) -> Path | None:
    """Remove what a run without a step left; what is of value moves to a folder beside it, which is returned.

    Where there are no evaluations, episodes or checkpoints, its files are removed instead; files of others stay. A
    folder without `config.yaml` and without checkpoints is of no run.
    """
    if not (folder / "config.yaml").exists() and latest_checkpoint(folder / "checkpoints") is None:
        return None
    is_of_value = any(path.is_file() for name in _OF_VALUE for path in (folder / name).rglob("*"))
    entries = [folder / name for name in _OF_A_RUN if os.path.lexists(folder / name)]
    if is_of_value:
        number = 1
        while (aside := folder.with_name(f"{folder.name}.unfinished-{number}")).exists():
            number += 1
        aside.mkdir()
        for path in entries:
            os.rename(path, aside / path.name)
        return aside
    for path in entries:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return None
