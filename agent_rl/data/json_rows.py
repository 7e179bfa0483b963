"""Rows in JSON text: one object a line, or one array of objects; every mistake named by file and line, or row.

Not here: task ids, and what a row may hold (`tasks.py`).
"""

import codecs
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from agent_rl.data.bounds import count_outside_texts
from agent_rl.errors import DataError

Row = dict[str, Any]

MAX_CONTAINERS = 200_000
"""Lists and objects in one row."""
MAX_DEPTH = 100
"""Lists and objects within each other."""


def decode_lines(lines: Iterable[bytes], source: str) -> list[tuple[int, Row]]:
    """The rows of JSONL, each with the number of its line; DataError as `decode_values`, and for what is no object."""
    values = decode_values(lines, source, advice="write one JSON object per line")
    return [(number, _as_row(value, f"{source}:{number}")) for number, value in values]


def decode_values(lines: Iterable[bytes], source: str, *, advice: str) -> Iterator[tuple[int, Any]]:
    """The JSON value of each line with the line's number; blank lines and a byte order mark are left out.

    DataError, with `source:line`, for a line that is not UTF-8 or not JSON, which `advice` then follows, and for JSON
    that would not come back as it was written, as in `parse_json`.
    """
    for number, line in enumerate(lines, start=1):
        text = line.removeprefix(codecs.BOM_UTF8 if number == 1 else b"").rstrip()
        if text:
            yield number, _parse_line(text, f"{source}:{number}", advice)


def decode_array(content: bytes, source: str) -> list[tuple[int, Row]]:
    """The objects of one JSON array, each with its number.

    DataError for text that is not UTF-8, not JSON, no array or refused by `parse_json`, and, with `source:row N`, for
    what is no object in it.
    """
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8")
        rows = parse_json(text, source, max_containers=MAX_CONTAINERS + len(text) // 16)
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


def parse_json(text: str, where: str, *, max_containers: int = MAX_CONTAINERS) -> Any:
    """One JSON value, the same for every reader: no key twice, all numbers finite, no half of a surrogate pair.

    An empty object of two bytes takes a hundred of memory, and what is nested as deep as can be read cannot be written:
    both have bounds.

    DataError, opened by `where`, for anything else that a file may hold; `json.JSONDecodeError` for what is not JSON.
    """
    too_deep = DataError(f"{where}: nested too deeply to be read; write it with fewer brackets")
    num_containers = text.count("[") + text.count("{")
    if num_containers > max_containers < count_outside_texts(text, "[{", limit=max_containers):
        raise DataError(f"{where}: holds more than {max_containers} lists and objects; make rows of it")
    try:
        value = _DECODER.decode(text)
        if _SURROGATE.search(text):  # half of a pair can only come from an escape
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError:
        raise
    except _RefusedError as error:
        raise DataError(f"{where}: {error}") from None
    except RecursionError:
        raise too_deep from None
    except UnicodeEncodeError:
        raise DataError(f"{where}: a text holds half of a surrogate pair (\\ud800 to \\udfff); remove it") from None
    except ValueError:  # Python's own limit
        raise DataError(f"{where}: an integer has too many digits to be read; write it as text") from None
    if num_containers > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        raise too_deep
    return value


def _is_deeper(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth + 1):
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class _RefusedError(Exception):
    """JSON that readers understand differently; the text names it and the remedy."""


def _as_object(pairs: list[tuple[str, Any]]) -> Row:
    row = dict(pairs)
    if len(row) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise _RefusedError(f"the key {twice!r:.60} stands twice in one object; remove one")
    return row


def _finite(literal: str) -> float:
    number = float(literal)
    if not math.isfinite(number):
        raise _RefusedError(f"{literal:.20} is no finite number; write one, or null")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_as_object, parse_constant=_finite, parse_float=_finite)
"""One for all rows: to make a decoder takes longer than to read a short row."""


def _parse_line(line: bytes, where: str, advice: str) -> Any:
    try:
        return parse_json(line.decode("utf-8"), where)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: byte {error.start + 1} of the line is not UTF-8; save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not valid JSON ({error.msg}, column {error.colno}); {advice}") from None


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
