"""Rows of a CSV file with one line of column names; every value is a text.

Not here: what a text means, task ids (`tasks.py`).
"""

import csv
import io
from pathlib import Path

from agent_rl.data.bounds import MAX_ROW_BYTES, MAX_ROWS, read_whole
from agent_rl.data.rows import Row
from agent_rl.errors import DataError


def decode_csv(path: Path) -> list[tuple[int, Row]]:
    """The rows, each with the number of the line that it ends on; empty lines are left out.

    DataError, with `path:line`, for a file that is not UTF-8, a name that is missing or there twice, a row with more or
    fewer values than there are names, and quotes that do not close.
    """
    try:
        text = read_whole(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start + 1} is not UTF-8; save the file as UTF-8") from None
    if "\0" in text:
        raise DataError(f"{path}: holds a zero byte; save the file as text")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    limit = csv.field_size_limit(MAX_ROW_BYTES)
    try:
        names = next(reader, [])
        _check_names(names, path)
        rows = []
        for values in reader:
            if not values:
                continue
            if len(values) != len(names):
                raise DataError(
                    f"{path}:{reader.line_num}: {len(values)} values, expected {len(names)}; quote a value with commas"
                )
            rows.append((reader.line_num, dict(zip(names, values, strict=True))))
            if len(rows) > MAX_ROWS:
                raise DataError(f"{path}: holds more than {MAX_ROWS} rows; divide the file")
        return rows
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not valid CSV ({error}); check the quotes") from None
    finally:
        csv.field_size_limit(limit)


def _check_names(names: list[str], path: Path) -> None:
    before = set()
    for name in names:
        if not name.strip():
            raise DataError(f"{path}:1: a column has no name; the first line names the columns")
        if name in before:
            raise DataError(f"{path}:1: two columns are called {name!r:.80}; rename or drop one")
        before.add(name)
