"""Folders of runs that ended before their first step was whole: their names are free.

Not here: runs that have done a step, which are continued or left alone (`run_folder.py`).
"""

import json
import os
import shutil
from pathlib import Path

from agent_rl.core.run.lock import LOCK_FILE
from agent_rl.distributed.checkpoint import latest_checkpoint
from agent_rl.telemetry.files import whole_lines

_OF_VALUE = ("eval", "transcripts", "samples", "checkpoints")
"""Folders: what is in one of them is kept aside."""
_WORTHLESS = (
    *("config.yaml", "environment.json", "metrics.jsonl", "events.jsonl", "errors.jsonl", "log.jsonl", "tensorboard"),
    *_OF_VALUE,
)


def holds_a_step(folder: Path) -> bool:
    """Whether a run in `folder` has done a step: a checkpoint of one, or its metrics; damaged ones count as one."""
    newest = latest_checkpoint(folder / "checkpoints")
    if newest is not None and int(newest.name.removeprefix("step_")) > 0:
        return True
    try:
        return any(int(json.loads(line)["step"]) > 0 for line in whole_lines(folder / "metrics.jsonl"))
    except (ValueError, KeyError, TypeError):
        return True


def clear_unfinished(folder: Path) -> Path | None:
    """Empty the folder of a run without a step: what is of value moves to a folder beside it, which is returned.

    Where there are no evaluations, episodes or checkpoints, its files are removed instead; files of others stay.
    """
    is_of_value = any(path.is_file() for name in _OF_VALUE for path in (folder / name).rglob("*"))
    entries = [path for path in folder.iterdir() if path.name != LOCK_FILE]
    if is_of_value:
        number = 1
        while (aside := folder.with_name(f"{folder.name}.unfinished-{number}")).exists():
            number += 1
        aside.mkdir()
        for path in entries:
            os.rename(path, aside / path.name)
        return aside
    for path in entries:
        if path.name in _WORTHLESS:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return None
