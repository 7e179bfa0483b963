"""Read phrase files and draw sentences from them.

A phrase file has sections: lines that begin with `= ` are what a section is for, lines that begin with `> ` are ways to
say it. In these, `[a|b]` is a choice, which may hold others, and `{name}` a part that is filled in. Not here: what is
filled in (`reword.py`).
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_SLOT = re.compile(r"\{(\w+)\}")
_CHOICE = re.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True, slots=True)
class Phrasing:
    sources: tuple[str, ...]
    ways: tuple[str, ...]


@cache
def read_sections(name: str) -> tuple[Phrasing, ...]:
    """The sections of a phrase file of this folder."""
    out: list[Phrasing] = []
    sources: list[str] = []
    ways: list[str] = []
    lines = files(__package__).joinpath(name).read_text(encoding="utf-8").splitlines()
    for line in [*lines, "= end"]:
        if line.startswith("= ") and ways:
            out.append(Phrasing(tuple(sources), tuple(ways)))
            sources, ways = [], []
        if line.startswith("= "):
            sources.append(line[2:])
        elif line.startswith("> "):
            ways.append(line[2:])
    return tuple(out)


@cache
def read_synonyms(name: str) -> Mapping[str, tuple[str, ...]]:
    """`word: others` by line."""
    lines = files(__package__).joinpath(name).read_text(encoding="utf-8").splitlines()
    pairs = (line.split(":") for line in lines if line and not line.startswith("#"))
    return {word: tuple(others.split()) for word, others in pairs}


@cache
def read_words(name: str) -> tuple[str, ...]:
    """All words of a file."""
    return tuple(files(__package__).joinpath(name).read_text(encoding="utf-8").split())


@cache
def pattern(source: str) -> re.Pattern[str]:
    """A pattern for sentences of this shape; a part never ends or begins with a blank."""
    parts = _SLOT.split(source)
    text = "".join(f"(?P<{part}>.*?)" if index % 2 else re.escape(part) for index, part in enumerate(parts))
    return re.compile(text, re.DOTALL)


def choose(way: str, rng: random.Random) -> str:
    """`way` with every choice made, innermost first."""
    while found := _CHOICE.search(way):
        way = way[: found.start()] + rng.choice(found[1].split("|")) + way[found.end() :]
    return way


def fill(way: str, parts: Mapping[str, str]) -> str:
    """`way` with its parts; what is filled in is left as it is."""
    return _SLOT.sub(lambda found: parts[found[1]], way)


def match(sections: tuple[Phrasing, ...], sentence: str) -> tuple[Phrasing, dict[str, str]] | None:
    """The first section that has a source of this shape, and the parts of the sentence."""
    for section in sections:
        for source in section.sources:
            if found := pattern(source).fullmatch(sentence):
                return section, found.groupdict()
    return None
