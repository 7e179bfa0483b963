"""Change the words around the facts of a request: sentences in another order, small talk around it, synonyms.

Literals (in backticks or double quotes) stay as they are. Does not: look at the spec behind the request.
"""

import random
import re
from collections.abc import Callable, Sequence

from wordings.originals import Twin
from wordings.small_talk import AFTER, BEFORE
from wordings.synonyms import SYNONYMS

LITERAL = re.compile(r'("(?:\\.|[^"\\])*"|`[^`]*`)')
_END = re.compile(r"(?<=\.) (?=[A-Z\x00]|logic\.py|mcp_server\.py)")
_GLUED = "There, "
"""Begins a sentence that means the one before."""
_WORDS = re.compile("|".join(rf"\b{re.escape(words)}(?!\w)" for words in sorted(SYNONYMS, key=len, reverse=True)))


def sentences(text: str) -> list[str]:
    """The sentences of a request of one paragraph; one that means the sentence before is part of it."""
    masked = LITERAL.sub(lambda found: "\x00" * len(found[0]), text)
    starts = [0, *(found.end() for found in _END.finditer(masked))]
    cut = [text[start:end].strip() for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    out: list[str] = []
    for sentence in cut:
        if sentence.startswith(_GLUED):
            out[-1] += f" {sentence}"
        else:
            out.append(sentence)
    return out


def has_order(sentence: str) -> bool:
    """Whether the sentence's place among others of its kind has a meaning: errors are checked in the order told."""
    return "`error: " in sentence


def is_small_change(order: Sequence[int]) -> bool:
    """Whether an order is the original, a rotation of it, or the original with one sentence moved."""
    count = len(order)
    if any([*order[cut:], *order[:cut]] == list(range(count)) for cut in range(count)):
        return True
    for moved in order:
        rest = [number for number in order if number != moved]
        if rest == sorted(rest):
            return True
    return False


def reordered(text: str, twin: Twin, rng: random.Random) -> str:
    """The sentences in another order: shuffled for `test`, for `val` rotated or with one sentence moved."""
    said = sentences(text)
    fixed = [number for number, sentence in enumerate(said) if has_order(sentence)]
    order = _until(lambda: _shuffled(len(said), fixed, rng), lambda order: not is_small_change(order))
    if twin == "val":
        order = _until(lambda: _slightly_changed(len(said), rng), lambda order: _keeps(order, fixed))
    return " ".join(said[number] for number in order)


def _shuffled(count: int, fixed: Sequence[int], rng: random.Random) -> list[int]:
    order = rng.sample(range(count), count)
    in_order = iter(fixed)
    return [next(in_order) if number in fixed else number for number in order]


def _slightly_changed(count: int, rng: random.Random) -> list[int]:
    order = list(range(count))
    if rng.random() < 0.5:
        cut = rng.randrange(1, count)
        return [*order[cut:], *order[:cut]]
    order.insert(rng.randrange(count), order.pop(rng.randrange(count)))
    return order


def _keeps(order: Sequence[int], fixed: Sequence[int]) -> bool:
    return list(order) != sorted(order) and [number for number in order if number in fixed] == list(fixed)


def _until(sample: Callable[[], list[int]], is_wanted: Callable[[list[int]], bool]) -> list[int]:
    while True:
        if is_wanted(order := sample()):
            return order


def greeted(text: str, twin: Twin, rng: random.Random) -> str:
    """The request with small talk before it, after it, or both."""
    before, after = rng.choice(BEFORE[twin]), rng.choice(AFTER[twin])
    gap = rng.choice([" ", "\n", "\n\n"])
    return rng.choice([f"{before}{gap}{text}{gap}{after}"] * 3 + [f"{before}{gap}{text}", f"{text}{gap}{after}"])


def with_synonyms(text: str, twin: Twin, rng: random.Random) -> str:
    """The request with other words of the same meaning; one word is replaced alike throughout."""
    chosen = {words: rng.choice(others[twin]) for words, others in SYNONYMS.items()}
    parts = LITERAL.split(text)
    return "".join(
        part if number % 2 else _WORDS.sub(lambda found: chosen[found[0]], part) for number, part in enumerate(parts)
    )
