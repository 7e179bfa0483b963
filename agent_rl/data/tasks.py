"""Task files: JSONL, JSON or Parquet in, a list of plain dictionaries out, every mistake named by file and line or row.

A row is a JSON object with a `task_id`, or one gets made where no row of the file has any; the other keys belong to the
environment and are not looked at here.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from agent_rl.data.bounds import read_lines, read_whole
from agent_rl.data.json_rows import decode_array, decode_lines
from agent_rl.data.parquet import decode_rows, encode_rows
from agent_rl.errors import DataError

Task = dict[str, Any]
"""One row of a dataset; `task_id` is the only key every task has."""

_READ = (".jsonl", ".jsonl.gz", ".json", ".parquet")
_WRITTEN = (".jsonl", ".parquet")
_SPLITS = {"train": ("train",), "eval": ("val", "eval")}
"""File names of a split, without suffix; the first that is there counts."""


def read_tasks(path: str | Path, check: Callable[[Task, str], None] | None = None) -> list[Task]:
    """All tasks of a `.jsonl`, `.jsonl.gz`, `.json` (one array) or `.parquet` file, in file order.

    Where no row has a `task_id`, it is made of the file's name and a hash of the row, as in `gsm8k_train/3f9c01ab`, so
    that it stays with the row when others come or go; of rows with one hash, such as equal ones, the later ones get
    `-2`, `-3` behind it. Raises DataError, one sentence with `file:line` or `file:row N` (from 1), for a missing or
    empty file, what is not UTF-8 or not JSON objects, JSON that readers understand differently (a key twice, NaN, half
    of a surrogate pair), a damaged Parquet or gzip file, one beyond the caps of `bounds.py`, and a `task_id` that is
    missing while others are there, not a non-empty string, or already taken. `check` may refuse a row for reasons of
    its own; it gets the row and its place.
    """
    path = Path(path)
    suffix = _suffix(path, _READ, "ends in")
    if not path.is_file():
        raise DataError(f"{path}: no such task file; check the path or prepare the dataset first")
    rows = _decode(path, suffix)
    if not any("task_id" in row for _, row in rows):
        rows = _with_ids(rows, path.name.removesuffix(suffix))
    return _checked(path, rows, check, unit="line" if suffix.startswith(".jsonl") else "row")


def write_tasks(path: str | Path, rows: Sequence[Task]) -> None:
    """Write rows that `read_tasks` gives back equal, as `.jsonl` or `.parquet`; the file is there whole or not.

    The same rows give the same bytes (Parquet: with one version of pyarrow). Raises DataError, one sentence with
    `file:row N`, for rows that `read_tasks` would refuse, for one without a `task_id` and for a value that JSON cannot
    represent.
    """
    path = Path(path)
    suffix = _suffix(path, _WRITTEN, "is written as")
    _checked(path, enumerate(rows, start=1), _check_values, unit="row")
    content = encode_rows(rows) if suffix == ".parquet" else b"".join(_to_json(row) + b"\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a write that fails does not name its file
        raise
    finally:
        partial.unlink(missing_ok=True)


def find_task_file(folder: str | Path, split: Literal["train", "eval"]) -> Path:
    """The file of a split in `folder`, in any format: `train`, or `val` and else `eval`; else where it is expected."""
    candidates = [Path(folder) / f"{name}{suffix}" for name in _SPLITS[split] for suffix in _READ]
    return next((path for path in candidates if path.is_file()), candidates[0])


def _suffix(path: Path, suffixes: Sequence[str], verb: str) -> str:
    for suffix in suffixes:
        if path.name.endswith(suffix):
            return suffix
    *first, last = suffixes
    raise DataError(f"{path}: a task file {verb} {', '.join(first)} or {last}, got {path.suffix!r}; use one of them")


def _decode(path: Path, suffix: str) -> list[tuple[int, Task]]:
    """The rows, each with the number of its line or row."""
    match suffix:
        case ".parquet":
            return list(enumerate(decode_rows(read_whole(path), str(path)), start=1))
        case ".json":
            return decode_array(read_whole(path), str(path))
        case _:
            return decode_lines(read_lines(path, is_packed=suffix == ".jsonl.gz"), str(path))


def _with_ids(rows: Iterable[tuple[int, Task]], stem: str) -> list[tuple[int, Task]]:
    """The rows with ids of eight hexadecimal digits of the SHA-256 of each, its keys sorted."""
    seen: Counter[str] = Counter()
    made = []
    for number, row in rows:
        text = json.dumps(row, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        seen[digest] += 1
        again = f"-{seen[digest]}" if seen[digest] > 1 else ""
        made.append((number, {"task_id": f"{stem}/{digest}{again}", **row}))
    return made


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
                f"{where}: task_id {task_id!r:.100} is already taken by {unit} {number_of_id[task_id]}; "
                "make every id unique"
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
            is_preserved = json.loads(_to_json({name: value})) == {name: value}
        except (TypeError, ValueError):
            is_preserved = False
        if not is_preserved:
            raise DataError(
                f"{where}: {name!r:.100} is {value!r:.100}, which JSON does not preserve; "
                "use text, finite numbers, booleans, null, lists and objects"
            )


def _task_id(task: Task, where: str) -> str:
    if "task_id" not in task:
        raise DataError(f"{where}: the row has no 'task_id'; add one, a non-empty string unique in the file")
    task_id = task["task_id"]
    if not isinstance(task_id, str) or not task_id.strip():
        raise DataError(f"{where}: task_id is {task_id!r:.100}; make it a non-empty string")
    return task_id
