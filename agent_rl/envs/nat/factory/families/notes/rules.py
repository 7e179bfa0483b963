"""Rules of note searches: the corpus and every choice that decides which notes are named, and how.

Does not: sample or word anything, or decide what is right (the oracle does).
"""

import re
from typing import Any, Literal

from pydantic import Field

from agent_rl.envs.nat.factory.families.base import Rules


class Note(Rules):
    id: str = Field(pattern=r"^n[1-9][0-9]$")
    tag: str | None = Field(pattern=r"^[a-z]+$")
    title: str | None
    text: str = Field(min_length=1)


class NoteRules(Rules):
    notes: list[Note] = Field(min_length=5, max_length=12)
    split: Literal["spaces", "letters"]
    stop_words: list[str]
    strip_plural: bool
    scoring: Literal["count", "distinct", "tf-idf", "bm25"]
    repeats: Literal["once", "each"]
    """Whether a term that the query repeats counts again."""
    k1: str | None = Field(pattern=r"^\d\.\d+$")
    b: str | None = Field(pattern=r"^[01]\.\d+$")
    title_weight: int | None = Field(ge=1, le=9)
    """How often the title stands before the text; None when notes have no titles."""
    filter: Literal["input", "inline"] | None
    """Where a tag is asked for: an input of its own, or words `tag:NAME` in the query."""
    tie: Literal["ascending", "descending", "corpus"]
    k: int = Field(ge=1)
    score_format: Literal["{}:{}", "{} ({})", "{}={}"] | None
    decimals: int | None = Field(ge=2, le=3)
    snippet: bool
    separator: str


def demand_sense(rules: dict[str, Any]) -> None:
    """Raises ValueError when some of the choices contradict each other, or hold for none of the notes."""
    notes, has_score = rules["notes"], rules["score_format"] is not None
    is_float, is_bm25 = rules["scoring"] in ("tf-idf", "bm25"), rules["scoring"] == "bm25"
    shapes = {(note["tag"] is None, note["title"] is None) for note in notes}
    if len(shapes) > 1 or len({note["id"] for note in notes}) < len(notes):
        raise ValueError("notes must differ in their ids; all or none of them have a tag, and so for titles")
    ((has_no_tag, has_no_title),) = shapes
    if has_no_title != (rules["title_weight"] is None):
        raise ValueError("title_weight is for notes with titles")
    if rules["filter"] and has_no_tag:
        raise ValueError("a filter needs notes with tags")
    if is_bm25 != (rules["k1"] is not None) or is_bm25 != (rules["b"] is not None):
        raise ValueError("k1 and b are for bm25")
    if is_bm25 and float(rules["b"]) > 1:
        raise ValueError(f"b is at most 1, got {rules['b']}")
    if (is_float and has_score) != (rules["decimals"] is not None):
        raise ValueError("decimals is for scores of tf-idf or bm25 that score_format shows")
    if rules["scoring"] == "distinct" and rules["repeats"] == "each":
        raise ValueError("distinct counts a repeated term once")
    if odd := [word for word in rules["stop_words"] if not re.fullmatch("[a-z]+", word)]:
        raise ValueError(f"stop words are lower-case words, got {odd[0]}")
