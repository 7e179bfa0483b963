"""A program on a terminal: what its screen shows at any time, and what is left to scroll back to."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_PIECE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)|\x1b.?")


class Screen:
    """Lines as a terminal without bottom would show them; colours are ignored."""

    def __init__(self) -> None:
        self.lines = [""]
        self._row = self._column = 0
        self._rest = ""
        self.code: int | None = None
        """Exit code of the program, once it ended."""

    def feed(self, text: str) -> None:
        text = self._rest + text
        cut = text.rfind("\x1b")  # a sequence may be cut in two
        self._rest = text[cut:] if cut >= 0 and re.fullmatch(r"\x1b(\[[?\d;]*)?", text[cut:]) else ""
        for found in _PIECE.finditer(text[: len(text) - len(self._rest)]):
            arguments, command, control, written = found.groups()
            if command == "A":
                self._row = max(0, self._row - int(arguments or 1))
            elif command == "K":
                line = self.lines[self._row]
                self.lines[self._row] = "" if arguments == "2" else line[: self._column]
            elif control == "\r":
                self._column = 0
            elif control == "\n":
                self._row += 1
                if self._row == len(self.lines):
                    self.lines.append("")
            elif written:
                line = self.lines[self._row].ljust(self._column)
                self.lines[self._row] = line[: self._column] + written + line[self._column + len(written) :]
                self._column += len(written)


def on_a_terminal(*words: str | Path, folder: Path, look: Callable[[Screen], None], **environment: str) -> Screen:
    """Run `python WORDS` on a terminal of 120 columns until it ends; `look` sees the screen whenever it changes."""
    master, slave = pty.openpty()
    env = {**os.environ, "COLUMNS": "120", "LINES": "40", "TERM": "xterm", **environment}
    process = subprocess.Popen(
        [sys.executable, *map(str, words)], cwd=folder, stdin=slave, stdout=slave, stderr=slave, env=env
    )
    os.close(slave)
    screen = Screen()
    try:
        while True:
            try:
                read = os.read(master, 65536)
            except OSError:  # the program has closed its end
                break
            if not read:
                break
            screen.feed(read.decode(errors="replace"))
            look(screen)
    finally:
        os.close(master)
        process.wait(60)
    screen.code = process.returncode
    return screen
