"""`errors.jsonl`: the tracebacks of what code of the user raised, one row per distinct place, with a count.

    {"source": "environment", "error": "KeyError: 'oops'", "place": "my_env.py:6 in helper", "count": 128,
     "first_step": 0, "last_step": 3, "traceback": "Traceback (most recent call last): ..."}

`error` and `traceback` are of the first one. The file is bounded: a traceback of `failures.MAX_TRACEBACK_CHARS`
characters, `MAX_PLACES` rows, and one more that counts the rest. Not here: what is an error (`failures.py`), sentences
for the terminal.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_rl.errors import DataError
from agent_rl.failures import FailedCall
from agent_rl.telemetry.files import whole_lines, write_text

ERRORS_FILE = "errors.jsonl"
MAX_PLACES = 100
_REST = "others"


class ErrorFile:
    """`ErrorFile(folder).add(3, failed_calls)`; rows of an earlier start of the run are counted on."""

    def __init__(self, folder: Path) -> None:
        """Nothing is read or written yet."""
        self.path = folder / ERRORS_FILE
        self._rows: dict[tuple[str, ...], dict[str, Any]] | None = None

    def add(self, step: int, failed: Iterable[FailedCall]) -> list[FailedCall]:
        """Count failures of a step and write the file anew; those at places that were in no row. OSError of the disk.

        After an OSError the failures are counted all the same.
        """
        failed = list(failed)
        if not failed:
            return []
        if self._rows is None:
            self._rows = _read(self.path)
        new = [each for each in failed if self._count(step, each)]
        lines = [json.dumps(row, ensure_ascii=False) for row in self._rows.values()]
        write_text(self.path, "".join(f"{line}\n" for line in lines))
        return new

    def _count(self, step: int, failed: FailedCall) -> bool:
        assert self._rows is not None
        key = _key(failed.source, failed.error, failed.place)
        is_new = key not in self._rows
        if is_new and len(self._rows) >= MAX_PLACES:
            key, is_new = (_REST,), False
        start = {"source": failed.source, "error": failed.error, "place": failed.place}
        row = self._rows.setdefault(
            key,
            {**(start if key != (_REST,) else {"source": _REST, "error": "", "place": ""}), "count": 0}
            | {"first_step": step, "last_step": step, "traceback": failed.traceback if key != (_REST,) else ""},
        )
        row["count"] += 1
        row["last_step"] = max(row["last_step"], step)
        return is_new


def _key(source: str, error: str, place: str) -> tuple[str, ...]:
    """What makes two failures one: the place, or without one the text."""
    return (_REST,) if source == _REST else (source, error.partition(":")[0], place or error)


def _read(path: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    """The rows of an earlier start; those that cannot be read are left out, as they are for people alone."""
    found = {}
    try:
        lines = whole_lines(path)
    except DataError:
        return {}
    for line in lines:
        with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
            row = json.loads(line)
            if isinstance(row["last_step"], int):
                found[_key(row["source"], row["error"], row["place"])] = {**row, "count": int(row["count"])}
    return found
