"""What one task file may hold: large files pass, and none becomes much more in memory than it is on disk.

Counted before anything is made of the bytes. Not here: formats.
"""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from agent_rl.errors import DataError

MAX_ROW_BYTES = 2**24
MAX_ROWS = 10_000_000
MAX_ARRAY_BYTES = 2**30
_FREE_BYTES, _BYTES_PER_PACKED_BYTE = 2**26, 50
"""Task files of text take a fifth to a tenth of their size when packed; archives made to fill memory a thousandth."""
_FREE_VALUES, _VALUES_PER_PACKED_BYTE = 1_000_000, 2
"""In task files there is one value to two packed bytes, or fewer."""


class Allowance:
    """What a packed file may still become; `take` refuses more with a DataError."""

    def __init__(self, source: str, num_packed_bytes: int) -> None:
        self._source = source
        self._num_bytes = _FREE_BYTES + _BYTES_PER_PACKED_BYTE * num_packed_bytes
        self._num_values = _FREE_VALUES + _VALUES_PER_PACKED_BYTE * num_packed_bytes

    def take(self, num_bytes: int, num_values: int) -> None:
        self._num_bytes -= num_bytes
        self._num_values -= num_values
        if self._num_bytes < 0 or self._num_values < 0:
            raise DataError(
                f"{self._source}: unpacks to more than {_BYTES_PER_PACKED_BYTE} times its size, as files made to fill "
                "memory do; if it is meant so, unpack it and give a .jsonl file"
            )


def read_lines(path: Path, *, is_packed: bool = False) -> Iterator[bytes]:
    """The lines of a file, or of the gzip file that it is. DataError for one that is not whole, and beyond the caps."""
    allowance = Allowance(str(path), path.stat().st_size)
    with gzip.open(path, "rb") if is_packed else path.open("rb") as file:
        for number in range(1, MAX_ROWS + 2):
            try:
                line = file.readline(MAX_ROW_BYTES + 1)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise DataError(f"{path}: not a whole gzip file ({error}); fetch or write it again") from None
            if not line:
                return
            if len(line) > MAX_ROW_BYTES:
                raise DataError(f"{path}:{number}: the line is longer than {MAX_ROW_BYTES >> 20} MiB; make rows of it")
            if is_packed:
                allowance.take(len(line), 1 + line.count(b",") + line.count(b"[") + line.count(b"{"))
            yield line
    raise DataError(f"{path}: holds more than {MAX_ROWS} lines; divide the file")


def read_whole(path: Path) -> bytes:
    """The bytes of a file that is parsed as a whole. DataError for more than is reasonable."""
    if path.stat().st_size > MAX_ARRAY_BYTES:
        raise DataError(f"{path}: is larger than {MAX_ARRAY_BYTES >> 30} GiB; divide the file or save it as .jsonl")
    return path.read_bytes()
