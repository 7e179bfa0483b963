"""Read JSON that an opponent wrote, in bounded time and memory whatever it holds.

The values of a text are counted before any is made: an empty list of two bytes takes 64 of memory, and a line that is
no JSON takes longer to refuse than to write. Every reader of what a run sent goes through here. Does not: look at what
the values are; who asked for them does.
"""

import json
from typing import Any

MAX_VALUES = 200_000
"""In one text, or in all lines together: at most 0.06 s and 40 MB."""
MAX_DIGITS = 1000
"""Of one integer; reading takes the square of it."""
_VALUES_PER_LINE = 16
_SMALL = 1 << 16
"""Bytes of a text in which the integers cannot be long enough to matter."""


class UnreadableJSON(ValueError):
    """Not JSON, or beyond the caps."""

    is_too_large = False


def read_json(data: bytes | str, *, max_values: int = MAX_VALUES) -> Any:
    """The value of a JSON text in UTF-8. Raises UnreadableJSON for anything else and for more than `max_values` values.

    Given bytes, `json.loads` would guess UTF-16 and UTF-32 too, whose marks are not those that were counted.
    """
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    check_size(raw, max_values=max_values)
    try:
        text = data if isinstance(data, str) else raw.decode("utf-8-sig", "surrogatepass")
        return json.loads(text) if len(raw) <= _SMALL else json.loads(text, parse_int=_integer)
    except UnreadableJSON:
        raise
    except (ValueError, RecursionError) as error:
        raise UnreadableJSON(f"the text is not JSON: {type(error).__name__}") from None


def check_size(data: bytes, *, max_values: int = MAX_VALUES) -> None:
    """UnreadableJSON for a text of more values, for a reader that makes them by other means."""
    if _num_values(data, max_values) > max_values:
        refusal = UnreadableJSON(f"the text holds more than {max_values} values")
        refusal.is_too_large = True
        raise refusal


def read_json_lines(data: bytes, *, max_values: int = MAX_VALUES) -> tuple[list[Any], bool]:
    """(the values of the lines that are JSON, whether all lines were read); what is beyond the cap is not read."""
    lines = data.split(b"\n", max_values // _VALUES_PER_LINE)
    values: list[Any] = []
    for line in lines:
        num_values = _VALUES_PER_LINE + _num_values(line, max_values)
        if num_values > max_values:
            return values, False
        max_values -= num_values
        try:
            values.append(read_json(line, max_values=num_values))
        except UnreadableJSON:
            continue
    return values, True


def _num_values(data: bytes, enough: int) -> int:
    """At least as many values as the text holds, exact where there are more than `enough`."""
    if (num_values := _num_marks(data)) <= enough:
        return num_values
    # Some of the marks may be inside of strings. Without escapes every second part between quotes is a string.
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 2 * enough:
        return num_values
    return _num_marks(b"".join(plain.split(b'"')[::2]))


def _num_marks(data: bytes) -> int:
    """Each value of a JSON text but the first follows one of these marks."""
    return 1 + sum(map(data.count, (b",", b":", b"[", b"{")))


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise UnreadableJSON(f"an integer has more than {MAX_DIGITS} digits")
    return int(digits)
