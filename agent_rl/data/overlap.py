"""Whether held-out tasks were trained on. Not here: tasks that are alike without being equal."""

import json
from collections.abc import Iterable

from agent_rl.data.tasks import Task


def overlap_of(train: Iterable[Task], held_out: Iterable[Task]) -> str:
    """A sentence on how many held-out rows are equal to training rows, ids apart; empty for none."""
    known = {_content(task) for task in train}
    rows = [_content(task) in known for task in held_out]
    if not any(rows):
        return ""
    return (
        f"{sum(rows):,} of {len(rows):,} held-out tasks are training tasks too, so success on them says nothing about "
        "new ones; hold others out"
    )


def _content(task: Task) -> str:
    return json.dumps({key: value for key, value in task.items() if key != "task_id"}, sort_keys=True, default=str)
