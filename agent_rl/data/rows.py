"""Rows given in Python: datasets, frames, tables and lists become plain dictionaries of JSON values.

What holds them is recognised by its methods, so that none of these packages is imported. Not here: task ids and checks
(`tasks.py`), files.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from agent_rl.errors import DataError, nearest_or_all

Row = dict[str, Any]

_MAX_DEPTH = 100
"""Lists and objects within each other, as in files."""
_ALLOWED = "use text, finite numbers, booleans, null, lists and objects, or drop the column"


def rows_of(given: Any, where: str) -> Iterator[tuple[int, Row]]:
    """The rows of a dataset (`datasets`, PyTorch), a frame (pandas, polars), a PyArrow table or any iterable of
    mappings, each with its number from 1.

    NumPy's and PyTorch's values become Python's, tuples lists. DataError, opened by `where` and the row, for anything
    that is no row, and for a value that JSON does not have.
    """
    for number, row in enumerate(_iterable(given, where), start=1):
        place = f"{where}:row {number}"
        if not isinstance(row, Mapping):
            raise DataError(
                f"{place}: got {row!r:.80}, a {type(row).__name__}, expected a row: a dictionary of columns"
            )
        yield number, plain_row(row, place)


def plain_row(row: Mapping[Any, Any], where: str) -> Row:
    """The row with plain values. DataError, opened by `where`, for a value that JSON does not have."""
    made = {}
    for name, value in row.items():
        if not isinstance(name, str):
            raise DataError(f"{where}: the column {name!r:.80} is a {type(name).__name__}; name columns by text")
        try:
            made[str(name)] = _plain(value, 0)
        except _NoJSONError as error:
            raise DataError(f"{where}: {name!r:.80} holds {error}, which no row can hold; {_ALLOWED}") from None
    return made


def renamed(row: Row, columns: Mapping[str, str], where: str) -> Row:
    """The row with its columns called as the keys of `columns` say, `{"prompt": "question"}`.

    DataError, opened by `where`, for a column that is not there and for a name that another column has.
    """
    for new, old in columns.items():
        if old not in row:
            raise DataError(f"{where}: data.columns.{new} names the column {old!r}{nearest_or_all(old, row)}")
        if new in row and new not in columns.values():
            raise DataError(
                f"{where}: data.columns calls {old!r} {new!r}, and there is an {new!r} already; rename or drop one"
            )
    kept = {name: value for name, value in row.items() if name not in columns.values()}
    return {**{new: row[old] for new, old in columns.items()}, **kept}


def no_column(row: Mapping[str, Any], name: str, where: str) -> DataError:
    """The error for a row without a column that its environment reads; `where` opens it."""
    columns = ", ".join(key for key in row if key != "task_id") or "none"
    return DataError(
        f"{where}: the row has no column {name!r}; its columns are {columns:.200}; name the one that holds it in "
        f"data.columns, {{{name}: NAME}}"
    )


def _iterable(given: Any, where: str) -> Iterable[Any]:
    if isinstance(given, Mapping):
        raise DataError(f"{where}: {_of_mapping(given, where)}")
    if hasattr(given, "iterrows") and hasattr(given, "to_dict"):  # pandas
        names = list(given.columns)
        if twice := [name for name in names if names.count(name) > 1]:
            raise DataError(f"{where}: two columns are called {twice[0]!r}; rename or drop one")
        return given.to_dict(orient="records")
    if hasattr(given, "iter_rows") and hasattr(given, "columns"):  # polars
        return given.iter_rows(named=True)
    if hasattr(given, "to_pylist") and hasattr(given, "column_names"):  # PyArrow
        return given.to_pylist()
    if hasattr(given, "collect") and hasattr(given, "collect_schema"):
        raise DataError(f"{where}: is a {type(given).__name__}, which holds no rows yet; give its .collect()")
    try:
        if isinstance(given, str | bytes):
            raise TypeError
        # PyTorch's datasets end by their length, where they have one.
        return iter(given) if hasattr(given, "__iter__") else islice(iter(given), _length_of(given))
    except TypeError:
        raise DataError(
            f"{where}: got {given!r:.80}, a {type(given).__name__}; expected rows: a list of dictionaries, a dataset "
            "or a frame"
        ) from None


def _length_of(given: Any) -> int | None:
    try:
        return len(given)
    except (TypeError, NotImplementedError):
        return None


def _of_mapping(given: Mapping[Any, Any], where: str) -> str:
    """What is wrong with a mapping: it is a set of splits, or columns."""
    if any(isinstance(part, Mapping) or hasattr(part, "column_names") for part in given.values()):
        splits = ", ".join(map(repr, given))
        return f"holds the splits {splits}; give one of them, such as {where}[{next(iter(given))!r}]"
    return "is a dictionary of columns or a single row; give a list of rows, or a dataset made of it"


class _NoJSONError(Exception):
    """A value that JSON does not have; the text names it."""


def _plain(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise _NoJSONError("lists and objects nested too deeply")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if hasattr(value, "tolist"):  # arrays, tensors and their scalars
        return _plain_array(value, depth)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _NoJSONError(f"{float(value)}")
        return float(value)
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise _NoJSONError(f"an object with the key {wrong[0]!r:.60}, which is no text")
        return {_text(key): _plain(part, depth + 1) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part, depth + 1) for part in value]
    raise _NoJSONError(f"{value!r:.60}, a {type(value).__name__}")


def _plain_array(value: Any, depth: int) -> Any:
    made = value.tolist()
    if hasattr(made, "tolist"):
        raise _NoJSONError(f"{value!r:.60}, a {type(value).__name__}")
    return _plain(made, depth)


def _text(value: str) -> str:
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _NoJSONError("a text with half of a surrogate pair") from None
    return text
