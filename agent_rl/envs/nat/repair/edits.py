"""Faults without a story: one small edit somewhere in a file, as a slip of the hand or of a tool makes them.

An edit is drawn by its kind and a seed, from code and not from texts that only people read. Not here: faults that a
person would name (`faults.py`), whether an edit matters and whether a tool shows it (`proof.py`).
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence

Edit = Callable[[Sequence[str], random.Random], list[str] | None]
"""Lines of a file to those with the edit; None where there is nothing of the kind to change."""

_WORD = re.compile(r"[A-Za-z_]\w*")
_SIGN = re.compile(r"[()\[\]{}:,.=@+*<>-]")
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_TEXT = re.compile(r'"[^"\n]*"')


def edited(edit: Edit, files: Mapping[str, str], rng: random.Random) -> tuple[str, str] | None:
    """The path of a file, drawn among those that hold something, and its text with the edit."""
    path = rng.choice(sorted(path for path, text in files.items() if text.strip() and path != "pyproject.toml"))
    changed = edit(files[path].split("\n"), rng)
    return None if changed is None else (path, "\n".join(changed))


def _code_lines(lines: Sequence[str]) -> list[int]:
    """Numbers of the lines that are no blank, comment or docstring."""
    return [number for number, line in enumerate(lines) if line.strip() and not line.strip().startswith(("#", '"""'))]


def _lost_line(lines: Sequence[str], rng: random.Random) -> list[str] | None:
    numbers = _code_lines(lines)
    if not numbers:
        return None
    lost = rng.choice(numbers)
    return [line for number, line in enumerate(lines) if number != lost]


def _swapped_lines(lines: Sequence[str], rng: random.Random) -> list[str] | None:
    numbers = [number for number in _code_lines(lines) if number + 1 in {*_code_lines(lines)}]
    if not numbers:
        return None
    first, changed = rng.choice(numbers), list(lines)
    changed[first : first + 2] = changed[first + 1], changed[first]
    return changed


def _within(pattern: re.Pattern[str], replace: Callable[[re.Match[str], Sequence[str], random.Random], str]) -> Edit:
    """The edit of one place of the code that fits a pattern."""

    def edit(lines: Sequence[str], rng: random.Random) -> list[str] | None:
        places = [(number, found) for number in _code_lines(lines) for found in pattern.finditer(lines[number])]
        if not places:
            return None
        number, found = rng.choice(places)
        line = lines[number][: found.start()] + replace(found, lines, rng) + lines[number][found.end() :]
        return [line if each == number else old for each, old in enumerate(lines)]

    return edit


def _nothing(_found: re.Match[str], _lines: Sequence[str], _rng: random.Random) -> str:
    return ""


def _other_word(found: re.Match[str], lines: Sequence[str], rng: random.Random) -> str:
    return rng.choice(sorted({*_WORD.findall("\n".join(lines))}))


def _slip(found: re.Match[str], _lines: Sequence[str], rng: random.Random) -> str:
    """A letter too few, too many, or in the place of its neighbour."""
    word, place = found[0], rng.randrange(len(found[0]))
    before, letter, next_one, after = word[:place], word[place], word[place + 1 : place + 2], word[place + 2 :]
    return before + rng.choice([next_one, 2 * letter + next_one, next_one + letter]) + after


def _other_number(found: re.Match[str], _lines: Sequence[str], rng: random.Random) -> str:
    return str(max(0, int(found[0]) + rng.choice([-2, -1, 1, 2, 10])))


def _other_text(found: re.Match[str], lines: Sequence[str], rng: random.Random) -> str:
    return rng.choice(sorted({*_TEXT.findall("\n".join(lines))}))


EDITS: dict[str, Edit] = {
    "lost line": _lost_line,
    "swapped lines": _swapped_lines,
    "lost word": _within(_WORD, _nothing),
    "other word": _within(_WORD, _other_word),
    "slip": _within(_WORD, _slip),
    "lost sign": _within(_SIGN, _nothing),
    "other number": _within(_NUMBER, _other_number),
    "other text": _within(_TEXT, _other_text),
}
"""By name."""
