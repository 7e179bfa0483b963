"""Reads the lines of a file that another program appends to, each once.

A last line that is not whole yet is left for the next time. A file that was replaced, or whose lines were removed, is
read again from its start. Not here: what the lines mean.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

_BLOCK_BYTES = 2**20
_TAIL_BYTES = 64
"""As much of what was read is compared: rows that a resumed run writes again differ in their time."""


class GrowingFile:
    """`for lines in file.new_lines(): ...` whenever there may be more."""

    def __init__(self, path: Path, *, on_restart: Callable[[], None]) -> None:
        """`on_restart` is called where what was read before is no longer there, before any line is given again."""
        self._path = path
        self._on_restart = on_restart
        self._offset = 0
        self._tail = b""

    def new_lines(self) -> Iterator[list[bytes]]:
        """Whole lines behind those of earlier calls, without their ends, in lists of about a mebibyte.

        None of a file that is not there. OSError of a file that cannot be read.
        """
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            self._restart()
            return
        with file:
            file.seek(max(0, self._offset - len(self._tail)))
            if file.read(len(self._tail)) != self._tail:
                self._restart()
                file.seek(0)
            rest = b""
            while block := file.read(_BLOCK_BYTES):
                *lines, rest = (rest + block).split(b"\n")
                if lines:
                    whole = b"\n".join(lines) + b"\n"
                    self._offset += len(whole)
                    self._tail = (self._tail + whole)[-_TAIL_BYTES:]
                    yield lines

    def _restart(self) -> None:
        if self._offset:
            self._on_restart()
        self._offset, self._tail = 0, b""
