"""Whether held-out tasks were trained on. Not here: tasks that are alike without being equal."""

import json
from collections.abc import Iterable

from agent_rl.data.tasks import Task


def overlap_of(train: Iterable[Task], held_out: Iterable[Task]) -> str:
    """A sentence on how many held-out rows are equal to training rows, ids apart; empty for none."""
    rows = [_content(task) for task in held_out]
    wanted = set(rows)
    trained = {content for task in train if (content := _content(task)) in wanted}
    count = sum(row in trained for row in rows)
    if not count:
        return ""
    return (
        f"{count:,} of {len(rows):,} held-out tasks are training tasks too, so success on them says nothing about "
        "new ones; hold others out"
    )


def _content(task: Task) -> str:
    return json.dumps({key: value for key, value in task.items() if key != "task_id"}, sort_keys=True, default=str)
