"""Fenced code in a text, read by CommonMark's rules wherever a reply is searched for code.

A block ends at the first line with a fence of the same sign, at least as long, behind at most three spaces, so code may
hold indented and shorter fences of its own. Besides, as models write, a fence with a language may stand behind text
(`Here: ```python`). Not here: what is done with code, and what a block that stays open means.
"""

import re
from dataclasses import dataclass

PYTHON = frozenset({"py", "python", "python3"})
"""First words, in small letters, of a fence's language for Python."""
_MAX_INDENT = 3
_FENCE = re.compile("`{3,}|~{3,}")
_CLOSING = re.compile(r"( *)(`{3,}|~{3,})[ \t\r]*")
_ITEM = re.compile(r" *(?:[-*+]|\d{1,9}[.)])[ \t]+")
_WORD = re.compile(r"[\w.+#-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block."""

    language: str
    """First word behind the opening fence, in small letters; empty where there is none."""
    code: str
    """Its lines, each with its newline, without the indentation that the opening fence has."""
    span: tuple[int, int]
    """Characters of the text from the opening fence, or the spaces before it, to the end of the closing one."""
    is_closed: bool
    """False where the text ends before a closing fence."""


@dataclass(slots=True)
class _Opening:
    start: int
    indent: int
    fence: str
    language: str


def read_fences(text: str) -> list[Block]:
    """All fenced blocks of a text, in their order. Nothing raises. Linear in the text."""
    blocks: list[Block] = []
    lines: list[str] = []
    opening: _Opening | None = None
    position = 0
    for line in text.split("\n"):
        end = position + len(line)
        if opening is None:
            opening, lines = _opening(line, position), []
        elif _closes(line, opening):
            blocks.append(_block(opening, lines, end, is_closed=True))
            opening = None
        else:
            lines.append(line)
        position = end + 1
    if opening is not None:
        lines = lines[:-1] if lines[-1:] == [""] else lines  # the newline at the end of the text begins no line
        blocks.append(_block(opening, lines, len(text), is_closed=False))
    return blocks


def last_python(text: str, *, or_open: bool = False) -> str | None:
    """The code of the last block that is marked as Python or not marked at all; None without one.

    `or_open` takes a block that stays open too.
    """
    wanted = (block for block in reversed(read_fences(text)) if block.is_closed or or_open)
    return next((block.code for block in wanted if block.language in ("", *PYTHON)), None)


def _opening(line: str, position: int) -> _Opening | None:
    found = _FENCE.search(line)
    if found is None:
        return None
    before, fence, info = line[: found.start()], found[0], line[found.end() :].strip()
    if (fence[0] == "`" and "`" in info) or _indent(before.expandtabs(4)) > _MAX_INDENT:
        return None
    is_alone = not before.strip(" ") or _ITEM.fullmatch(before) is not None
    if not is_alone and (fence[0] == "~" or not _WORD.fullmatch(info)):
        return None
    return _Opening(
        start=position + (len(before) if before.strip(" ") else 0),
        indent=len(before) if is_alone else 0,
        fence=fence,
        language=info.split()[0].lower() if info else "",
    )


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _closes(line: str, opening: _Opening) -> bool:
    found = _CLOSING.fullmatch(line)
    if found is None or not found[2].startswith(opening.fence):
        return False
    return len(found[1]) <= max(_MAX_INDENT, opening.indent)


def _block(opening: _Opening, lines: list[str], end: int, *, is_closed: bool) -> Block:
    code = "".join(f"{line[min(opening.indent, _indent(line)) :]}\n" for line in lines)
    return Block(language=opening.language, code=code, span=(opening.start, end), is_closed=is_closed)
