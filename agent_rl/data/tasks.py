"""Reading task files: JSONL in, a list of plain dictionaries out, every mistake named by file and line.

A row is a JSON object with a `task_id`; the other keys belong to the environment and are not looked at here.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_rl.errors import DataError

Task = dict[str, Any]
"""One row of a dataset; `task_id` is the only key every task has."""


def read_tasks(path: str | Path, check: Callable[[Task, str], None] | None = None) -> list[Task]:
    """All tasks of a JSONL file, in file order; blank lines are skipped.

    Raises DataError, one sentence with `file:line`, for a missing or empty file, a line that is not UTF-8 or not a
    JSON object, and a `task_id` that is missing, not a non-empty string, or already taken. `check` may refuse a row
    for reasons of its own; it gets the row and `file:line`.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such task file; check the path or prepare the dataset first")
    tasks: list[Task] = []
    line_of_id: dict[str, int] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        task = _parse(line, where)
        task_id = _task_id(task, where)
        if task_id in line_of_id:
            raise DataError(
                f"{where}: task_id {task_id!r} is already taken by line {line_of_id[task_id]}; make every id unique"
            )
        if check is not None:
            check(task, where)
        line_of_id[task_id] = number
        tasks.append(task)
    if not tasks:
        raise DataError(f"{path}: the file holds no task; expected one JSON object per line")
    return tasks


def _parse(line: bytes, where: str) -> Task:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: byte {error.start + 1} of the line is not UTF-8; save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not valid JSON ({error.msg}, column {error.colno}); write one JSON object per line"
        ) from None
    if not isinstance(row, dict):
        raise DataError(
            f"{where}: expected a JSON object with a task_id, got {_JSON_NAMES[type(row)]}; correct the row"
        )
    return row


def _task_id(task: Task, where: str) -> str:
    if "task_id" not in task:
        raise DataError(f"{where}: the row has no 'task_id'; add one, a non-empty string unique in the file")
    task_id = task["task_id"]
    if not isinstance(task_id, str) or not task_id.strip():
        raise DataError(f"{where}: task_id is {task_id!r}; make it a non-empty string")
    return task_id


_JSON_NAMES = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}
