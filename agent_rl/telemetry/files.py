"""Files that are complete or absent. Not here: checkpoints, which are also flushed to disk."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, SupportsFloat, TypeVar

from agent_rl.errors import ConfigError, DataError

T = TypeVar("T")


@contextmanager
def whole_file(path: Path, *, is_private: bool = False) -> Iterator[BinaryIO]:
    """`with whole_file(path) as file: file.write(b"...")`; replaces `path` and makes its folder where it is missing.

    Until the block ends the file has `.partial` behind its name; when the block fails it is removed. A private file
    can be read by its owner alone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        if is_private:
            partial.unlink(missing_ok=True)  # one left behind has another mode
        with open(partial, "wb", opener=_open_private if is_private else None) as file:
            yield file
        os.replace(partial, path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a write that fails does not name its file
        raise
    finally:
        with suppress(OSError):  # of a folder that is not there or read-only, as the error says
            partial.unlink(missing_ok=True)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def make_folder(path: Path, option: str) -> None:
    """Make the folder that `option` names, if it is not there. ConfigError where that cannot be, as for a file."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{option} is {path}, which cannot be a folder ({error.strerror}); name another") from None


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a file, none when it does not exist; a last line that was cut off is left out.

    Lines are bytes: one may have been cut off within a character. DataError for a file that cannot be read.
    """
    try:
        return path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); make it readable, or remove it") from None


def read_lines(path: Path, read: Callable[[Any], T], problem: str) -> list[T]:
    """What `read` makes of the JSON of each line of `whole_lines`.

    DataError with the place of the line and the `problem` when it is no JSON, or not what `read` takes.
    """
    found = []
    for number, line in enumerate(whole_lines(path), start=1):
        try:
            found.append(read(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise DataError(f"{path}:{number}: {problem}") from None
    return found


def write_text(path: Path, text: str, *, is_private: bool = False) -> None:
    """Write a file, its folder too; half surrogate pairs, which UTF-8 cannot hold, become their escapes."""
    with whole_file(path, is_private=is_private) as file:
        file.write(text.encode("utf-8", errors="backslashreplace"))


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a JSON file, with `plain` values for what JSON does not know."""
    write_text(path, json.dumps(record, indent=2, ensure_ascii=False, default=plain) + "\n")


def finite(value: Any) -> Any:
    """The value for JSON, which has no infinite numbers and no NaN: None instead of these."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plain(value: object) -> float | str:
    """For `json.dumps(..., default=plain)`: numbers of other libraries, as NumPy's, are numbers, all else its `str`."""
    return float(value) if isinstance(value, SupportsFloat) else str(value)
