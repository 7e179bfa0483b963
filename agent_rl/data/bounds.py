"""What one task file may hold: large files pass, and none becomes much more in memory than it is on disk.

Counted before anything is made of the bytes. Not here: formats.
"""

import io
import re
import zlib
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from agent_rl.errors import DataError

MAX_ROW_BYTES = 2**24
MAX_ROWS = 10_000_000
MAX_ARRAY_BYTES = 2**30
_FREE_BYTES, _BYTES_PER_PACKED_BYTE = 2**26, 50
"""Task files of text take a fifth to a tenth of their size when packed; archives made to fill memory a thousandth."""
_FREE_VALUES, _VALUES_PER_PACKED_BYTE = 1_000_000, 2
"""In task files there is one value to two packed bytes, or fewer."""
_VALUES_PER_ROW, _VALUES_PER_MEMBER = 8, 64
"""What a row, and a part of a gzip file, take besides their values."""
_GZIP = 31
"""zlib's number for streams with the header and the checksum of gzip."""
_PIECE_BYTES = 2**14
_MARKS = ",[{"
"""What stands in JSON before every value but the first of a list or an object."""


class Allowance:
    """What a packed file may still become; `take` refuses more with a DataError."""

    def __init__(self, source: str, num_packed_bytes: int) -> None:
        self._source = source
        self._num_bytes = _FREE_BYTES + _BYTES_PER_PACKED_BYTE * num_packed_bytes
        self._num_values = _FREE_VALUES + _VALUES_PER_PACKED_BYTE * num_packed_bytes
        self._num_marks = self._num_values // 2

    def take(self, num_bytes: int, num_values: int) -> None:
        self._num_bytes -= num_bytes
        self._num_values -= num_values
        if self._num_bytes < 0 or self._num_values < 0:
            raise DataError(
                f"{self._source}: unpacks to more than {_BYTES_PER_PACKED_BYTE} times its size, as files made to fill "
                "memory do; if it is meant so, unpack it and give a .jsonl file"
            )

    def take_json(self, json: str | bytes, num_bytes: int = 0, num_values: int = 0) -> None:
        """Take the values of a JSON text too, before it is parsed.

        Marks within its texts count as values as long as half of the allowance holds them, for speed.
        """
        num_marks = _count(json, _MARKS)
        if num_marks <= self._num_marks:
            self._num_marks -= num_marks
            self.take(num_bytes, num_values)
        else:
            self.take(num_bytes, num_values + count_outside_texts(json, _MARKS, limit=self._num_values))


def read_lines(path: Path, *, is_packed: bool = False) -> Iterator[bytes]:
    """The lines of a file, or of the gzip file that it is. DataError for one that is not whole, and beyond the caps."""
    allowance = Allowance(str(path), path.stat().st_size)
    with path.open("rb") as packed, io.BufferedReader(_Unpacked(packed, allowance)) if is_packed else packed as file:
        for number in range(1, MAX_ROWS + 2):
            try:
                line = file.readline(MAX_ROW_BYTES + 1)
            except (EOFError, zlib.error) as error:
                raise DataError(f"{path}: not a whole gzip file ({error}); fetch or write it again") from None
            if not line:
                return
            if len(line) > MAX_ROW_BYTES:
                raise DataError(f"{path}:{number}: the line is longer than {MAX_ROW_BYTES >> 20} MiB; make rows of it")
            if is_packed:
                allowance.take_json(line, len(line), _VALUES_PER_ROW)
            yield line
    raise DataError(f"{path}: holds more than {MAX_ROWS} lines; divide the file")


def count_outside_texts(json: str | bytes, marks: str, *, limit: int | None = None) -> int:
    """How often any of the marks stands in JSON outside of its texts, before it is parsed; beyond `limit`, one more.

    In linear time and constant memory.
    """
    pattern = _mark_pattern(marks, isinstance(json, bytes))
    found = islice(pattern.finditer(json), None if limit is None else limit + 1)
    return sum(match.lastindex or 0 for match in found)


@cache
def _mark_pattern(marks: str, is_bytes: bool) -> re.Pattern:
    """One mark, as group 1, with all that stands before it; or the rest.

    A text that does not end takes all that follows, else it would be looked for at every quote in it.
    """
    listed = re.escape(marks)
    pattern = rf'(?:[^"{listed}]++|"(?:[^"\\]++|\\.)*+"?)*+(?:[{listed}]()|\Z)'
    return re.compile(pattern.encode() if is_bytes else pattern, re.DOTALL)


def _count(json: str | bytes, marks: str) -> int:
    return sum(json.count(mark.encode() if isinstance(json, bytes) else mark) for mark in marks)


class _Unpacked(io.RawIOBase):
    """The bytes of a gzip file of any number of parts. Python's own reader takes names in headers byte by byte.

    EOFError where it ends too early, zlib.error where it is damaged.
    """

    def __init__(self, packed: BinaryIO, allowance: Allowance) -> None:
        self._packed, self._allowance = packed, allowance
        self._unpacker = zlib.decompressobj(_GZIP)
        self._rest = b""
        self._is_first_part, self._is_within_part = True, False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        while True:
            if self._is_within_part:
                data = self._unpacker.decompress(self._rest, len(buffer))
                self._rest = self._unpacker.unused_data or self._unpacker.unconsumed_tail
                self._is_within_part = not self._unpacker.eof
                if data:
                    buffer[: len(data)] = data
                    return len(data)
            if not self._rest:
                self._rest = self._packed.read(_PIECE_BYTES)
                if not self._rest and self._is_within_part:
                    raise EOFError("it ends too early")
                if not self._rest:
                    return 0
            if not self._is_within_part:
                self._begin_part()

    def _begin_part(self) -> None:
        if not self._is_first_part:
            self._rest = self._rest.lstrip(b"\0")  # zeros may fill a file up
        if self._rest:
            self._is_first_part = False
            self._allowance.take(0, _VALUES_PER_MEMBER)
            self._unpacker, self._is_within_part = zlib.decompressobj(_GZIP), True


def read_whole(path: Path) -> bytes:
    """The bytes of a file that is parsed as a whole. DataError for more than is reasonable."""
    if path.stat().st_size > MAX_ARRAY_BYTES:
        raise DataError(f"{path}: is larger than {MAX_ARRAY_BYTES >> 30} GiB; divide the file or save it as .jsonl")
    return path.read_bytes()
