"""Tasks: files, datasets of the Hub and rows given in Python in, a list of plain dictionaries out.

Every mistake is named by file and line, or row. A row is a JSON object with a `task_id`, or one gets made where no row
has any; the other keys belong to the environment and are not looked at here.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from agent_rl.config import DataConfig
from agent_rl.config.sections import GIVEN_IN_PYTHON
from agent_rl.data import hub
from agent_rl.data.bounds import read_lines, read_whole
from agent_rl.data.csv_rows import decode_csv
from agent_rl.data.file_kinds import check_kind
from agent_rl.data.json_rows import decode_array, decode_lines
from agent_rl.data.parquet import decode_rows, encode_rows
from agent_rl.data.rows import renamed, rows_of
from agent_rl.errors import ConfigError, DataError

Task = dict[str, Any]
"""One row of a dataset; `task_id` is the only key every task has."""

ENV_COLUMN = "env"
"""Column of a row that names its environment, in a mixture of several."""

Check = Callable[[Task, str], None]
"""May refuse a row for reasons of its own; gets the row and its place, which opens the error."""

_READ = (".jsonl", ".jsonl.gz", ".json", ".csv", ".parquet")
_WRITTEN = (".jsonl", ".parquet")
_SPLITS = {"train": ("train",), "eval": ("val", "eval")}
"""File names of a split, without suffix; the first that is there counts."""


def read_split(data: DataConfig, split: Literal["train", "eval"], check: Check | None = None) -> list[Task]:
    """The tasks of `data.train_path` or `data.eval_path`, as `read_tasks`; ConfigError where there is no such path."""
    path = data.train_path if split == "train" else data.eval_path
    what = "training tasks" if split == "train" else "held-out tasks"
    if path is None:
        raise ConfigError(f"data.{split}_path is missing, the file or dataset of {what}; add it")
    if str(path).startswith(GIVEN_IN_PYTHON):
        raise ConfigError(
            f"data.{split}_path = {str(path)!r}: these {what} were given in Python and are in no file; name one "
            f"(data.{split}_path=FILE)"
        )
    return read_tasks(path, check, columns=data.columns)


def read_tasks(path: str | Path, check: Check | None = None, *, columns: Mapping[str, str] | None = None) -> list[Task]:
    """All tasks of a `.jsonl`, `.jsonl.gz`, `.json` (one array), `.csv` or `.parquet` file, in file order; of a folder
    that `datasets` saved; or of a dataset of the Hub, `hf://owner/name[/config][:split]`.

    Columns are renamed as `columns` says, `{"prompt": "question"}`. Where no row has a `task_id`, it is made of the
    file's name and a hash of the row, as in `gsm8k_train/3f9c01ab`, so that it stays with the row when others come or
    go; of rows with one hash, such as equal ones, the later ones get `-2`, `-3` behind it. Raises DataError, one
    sentence with `file:line` or `file:row N` (from 1), for a missing or empty file, what is not UTF-8 or not JSON
    objects, JSON that readers understand differently (a key twice, NaN, half of a surrogate pair), a damaged Parquet or
    gzip file, one beyond the caps of `bounds.py`, what the package `datasets` cannot read, and a `task_id` that is
    missing while others are there, neither a non-empty string nor a whole number (which becomes its text), or already
    taken.
    """
    if str(path).startswith(hub.SCHEME):
        stem = str(path).removeprefix(hub.SCHEME).partition(":")[0]
        return _tasks(hub.hub_rows(str(path)), str(path), stem, check, columns)
    path = Path(path)
    if path.is_dir():
        if not hub.is_saved(path):
            raise DataError(f"{path}: no such task file; it is a folder, and none that save_to_disk of datasets wrote")
        return _tasks(hub.saved_rows(path), str(path), path.resolve().name, check, columns)
    suffix = _suffix(path, _READ, "ends in")
    if not path.is_file():
        raise DataError(f"{path}: no such task file; check the path or prepare the dataset first")
    check_kind(path, suffix)
    unit = "line" if suffix.startswith((".jsonl", ".csv")) else "row"
    return _tasks(_decode(path, suffix), str(path), path.name.removesuffix(suffix), check, columns, unit=unit)


def as_tasks(
    rows: Any, where: str, check: Check | None = None, *, columns: Mapping[str, str] | None = None
) -> list[Task]:
    """The tasks of rows given in Python: anything that `rows_of` takes; `where` names it in errors.

    Columns, ids and errors are as in `read_tasks`; a made id is `row/3f9c01ab`.
    """
    return _tasks(rows_of(rows, where), where, "row", check, columns, empty="holds no row; expected one task per row")


def _tasks(
    rows: Iterable[tuple[int, Task]],
    source: str,
    stem: str,
    check: Check | None,
    columns: Mapping[str, str] | None,
    *,
    unit: Literal["line", "row"] = "row",
    empty: str = "",
) -> list[Task]:
    """The rows as tasks: columns renamed, ids made, everything checked."""
    named = ((number, renamed(row, columns or {}, _place(source, number, unit))) for number, row in rows)
    listed = [(number, _with_text_id(row)) for number, row in named]
    if not any("task_id" in row for _, row in listed):
        listed = _with_ids(listed, stem)
    return _checked(source, listed, check, unit=unit, empty=empty or f"the file holds no task; expected one per {unit}")


def write_tasks(path: str | Path, rows: Sequence[Task]) -> None:
    """Write rows that `read_tasks` gives back equal, as `.jsonl` or `.parquet`; the file is there whole or not.

    The same rows give the same bytes (Parquet: with one version of pyarrow). Raises DataError, one sentence with
    `file:row N`, for rows that `read_tasks` would refuse, for one without a `task_id` and for a value that JSON cannot
    represent.
    """
    path = Path(path)
    suffix = _suffix(path, _WRITTEN, "is written as")
    empty = "the file holds no task; expected one per row"
    _checked(str(path), enumerate(rows, start=1), _check_values, unit="row", empty=empty)
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
            return list(rows_of(decode_rows(read_whole(path), str(path)), str(path)))
        case ".json":
            return decode_array(read_whole(path), str(path))
        case ".csv":
            return decode_csv(path)
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


def _with_text_id(row: Task) -> Task:
    """The row, its `task_id` as text where it is a whole number, as in MBPP."""
    task_id = row.get("task_id")
    return {**row, "task_id": str(task_id)} if type(task_id) is int else row


def _place(source: str, number: int, unit: Literal["line", "row"]) -> str:
    return f"{source}:{number}" if unit == "line" else f"{source}:row {number}"


def _checked(
    source: str, rows: Iterable[tuple[int, Task]], check: Check | None, *, unit: Literal["line", "row"], empty: str
) -> list[Task]:
    """The rows as a list, once every one has an id of its own and passed `check`; `empty` is the error without any."""
    tasks: list[Task] = []
    number_of_id: dict[str, int] = {}
    for number, task in rows:
        where = _place(source, number, unit)
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
        raise DataError(f"{source}: {empty}")
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
