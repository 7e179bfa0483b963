"""Rows in JSON text: one object a line, or one array of objects; every mistake named by file and line, or row.

Not here: task ids, and what a row may hold (`tasks.py`).
"""

import gzip
import json
import zlib
from typing import Any

from agent_rl.errors import DataError

Row = dict[str, Any]


def unzip(content: bytes, source: str) -> bytes:
    """What a gzip file holds; DataError for one that is none, or not whole."""
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:  # OSError: gzip's own for bytes that are none; no file is open
        raise DataError(f"{source}: not a whole gzip file ({error}); fetch or write it again") from None


def decode_lines(content: bytes, source: str) -> list[tuple[int, Row]]:
    """The rows of JSONL, each with the number of its line; blank lines are left out.

    DataError, with `source:line`, for a line that is not UTF-8, not JSON or not an object.
    """
    lines = enumerate(content.split(b"\n"), start=1)
    return [(number, _parse_line(line, f"{source}:{number}")) for number, line in lines if line.strip()]


def decode_array(content: bytes, source: str) -> list[tuple[int, Row]]:
    """The objects of one JSON array, each with its number.

    DataError for text that is not UTF-8, not JSON or no array, and, with `source:row N`, for what is no object in it.
    """
    try:
        rows = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: byte {error.start + 1} is not UTF-8; save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise DataError(
            f"{source}:{error.lineno}: not valid JSON ({error.msg}, column {error.colno}); write one array of objects, "
            "or save objects that stand one a line as .jsonl"
        ) from None
    if not isinstance(rows, list):
        raise DataError(f"{source}: expected one JSON array of objects, got {_JSON_NAMES[type(rows)]}; wrap it in [ ]")
    return [(number, _as_row(row, f"{source}:row {number}")) for number, row in enumerate(rows, start=1)]


def _parse_line(line: bytes, where: str) -> Row:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: byte {error.start + 1} of the line is not UTF-8; save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not valid JSON ({error.msg}, column {error.colno}); write one JSON object per line"
        ) from None
    return _as_row(row, where)


def _as_row(row: object, where: str) -> Row:
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object, got {_JSON_NAMES[type(row)]}; correct the row")
    return row


_JSON_NAMES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}
