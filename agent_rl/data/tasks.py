"""Task files: JSONL or Parquet in, a list of plain dictionaries out, every mistake named by file and line (or row).

A row is a JSON object with a `task_id`; the other keys belong to the environment and are not looked at here.
"""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from agent_rl.data.parquet import decode_rows, encode_rows
from agent_rl.errors import DataError

Task = dict[str, Any]
"""One row of a dataset; `task_id` is the only key every task has."""

_SUFFIXES = (".jsonl", ".parquet")


def read_tasks(path: str | Path, check: Callable[[Task, str], None] | None = None) -> list[Task]:
    """All tasks of a `.jsonl` or `.parquet` file, in file order; blank lines are skipped.

    Raises DataError, one sentence with `file:line` or `file:row N` (from 1), for a missing or empty file, a line that
    is not UTF-8 or not a JSON object, a damaged Parquet file, and a `task_id` that is missing, not a non-empty string,
    or already taken. `check` may refuse a row for reasons of its own; it gets the row and where it is.
    """
    path = Path(path)
    suffix = _suffix(path)
    if not path.is_file():
        raise DataError(f"{path}: no such task file; check the path or prepare the dataset first")
    content = path.read_bytes()
    if suffix == ".parquet":
        return _checked(path, enumerate(decode_rows(content, str(path)), start=1), check, unit="row")
    lines = enumerate(content.split(b"\n"), start=1)
    return _checked(path, ((n, _parse(line, f"{path}:{n}")) for n, line in lines if line.strip()), check, unit="line")


def write_tasks(path: str | Path, rows: Sequence[Task]) -> None:
    """Write rows that `read_tasks` gives back equal, in the format of the suffix; the file is there whole or not.

    The same rows give the same bytes (Parquet: with one version of pyarrow). Raises DataError, one sentence with
    `file:row N`, for rows that `read_tasks` would refuse and for a value that JSON cannot keep.
    """
    path = Path(path)
    suffix = _suffix(path)
    _checked(path, enumerate(rows, start=1), _check_values, unit="row")
    content = encode_rows(rows) if suffix == ".parquet" else b"".join(_to_json(row) + b"\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, path)


def _suffix(path: Path) -> str:
    if path.suffix not in _SUFFIXES:
        expected = " or ".join(_SUFFIXES)
        raise DataError(f"{path}: a task file ends in {expected}, not in {path.suffix!r}; write it as one of the two")
    return path.suffix


def _checked(
    path: Path,
    rows: Iterable[tuple[int, Task]],
    check: Callable[[Task, str], None] | None,
    *,
    unit: Literal["line", "row"],
) -> list[Task]:
    """The rows as a list, once every one has an id of its own and passed `check`."""
    tasks: list[Task] = []
    number_of_id: dict[str, int] = {}
    for number, task in rows:
        where = f"{path}:{number}" if unit == "line" else f"{path}:row {number}"
        task_id = _task_id(task, where)
        if task_id in number_of_id:
            raise DataError(
                f"{where}: task_id {task_id!r} is already taken by {unit} {number_of_id[task_id]}; make every id unique"
            )
        if check is not None:
            check(task, where)
        number_of_id[task_id] = number
        tasks.append(task)
    if not tasks:
        raise DataError(f"{path}: the file holds no task; expected one task per {unit}")
    return tasks


def _to_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _check_values(task: Task, where: str) -> None:
    """Refuse what would not come back equal: a set, a NaN, a tuple, a key that is not text, a lone surrogate."""
    for name, value in task.items():
        try:
            is_kept = json.loads(_to_json({name: value})) == {name: value}
        except (TypeError, ValueError):
            is_kept = False
        if not is_kept:
            raise DataError(
                f"{where}: {name!r} is {value!r}, which JSON does not keep; "
                "use text, finite numbers, booleans, null, lists and objects"
            )


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
