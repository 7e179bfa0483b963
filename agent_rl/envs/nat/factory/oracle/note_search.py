"""Oracle of note searches: an inverted index, scores as 50-digit decimals, hits picked one by one.

Notes with equal contributions have equal scores exactly; `is_robust` refuses queries where floats could blur an order
or a digit.
"""

from collections.abc import Mapping
from decimal import Context, Decimal, localcontext
from functools import cache, lru_cache
from itertools import combinations
from typing import Any, NamedTuple

from agent_rl.envs.nat.spec import Value

_DIGITS = Context(prec=50)
_MARGIN = Decimal("1e-6")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class _Hit(NamedTuple):
    place: int
    """In the corpus."""
    parts: tuple[tuple[int, ...], ...]
    """What decides each query term's contribution: occurrences, notes with the term, length; () where there is none."""
    score: Decimal


def answer(rules: Mapping[str, Any], inputs: Mapping[str, Value], config: Mapping[str, int]) -> str:
    query, tags = _read(rules, inputs)
    if not query:
        return "error: empty query"
    notes = rules["notes"]
    if rules["filter"] == "input" and any(tag not in [note["tag"] for note in notes] for tag in tags):
        return "error: unknown tag"
    left = _hits(rules, query, tags)
    if not left:
        return "error: no hit"
    out = []
    while left and len(out) < config.get("k", rules["k"]):
        best = left[0]
        for hit in left[1:]:
            if hit.score > best.score or (hit.score == best.score and _comes_first(rules, hit, best)):
                best = hit
        left.remove(best)
        out.append(_written(rules, query, best))
    return rules["separator"].join(out)


def is_robust(rules: Mapping[str, Any], inputs: Mapping[str, Value], config: Mapping[str, int]) -> bool:
    """False when two scores are nearly equal without being so by construction, or one is close to a rounding tie."""
    if rules["scoring"] in ("count", "distinct"):
        return True
    hits = _hits(rules, *_read(rules, inputs))
    for one, other in combinations(hits, 2):
        if abs(one.score - other.score) < _MARGIN and not _is_tie(one, other):
            return False
    if rules["decimals"] is None:
        return True
    rests = [hit.score.scaleb(rules["decimals"]) % 1 for hit in hits]
    return all(abs(rest - Decimal("0.5")) > _MARGIN for rest in rests)


def _is_tie(one: _Hit, other: _Hit) -> bool:
    """Whether floats are bound to be equal too: a sum of three or more depends on their order."""
    if one.parts == other.parts:
        return True
    mine, others = (sorted(part for part in hit.parts if part) for hit in (one, other))
    return mine == others and len(mine) <= 2


def _comes_first(rules: Mapping[str, Any], one: _Hit, other: _Hit) -> bool:
    if rules["tie"] == "corpus":
        return one.place < other.place
    numbers = [int(rules["notes"][hit.place]["id"][1:]) for hit in (one, other)]
    return numbers[0] < numbers[1] if rules["tie"] == "ascending" else numbers[0] > numbers[1]


def _read(rules: Mapping[str, Any], inputs: Mapping[str, Value]) -> tuple[list[str], list[str]]:
    """The query's terms, and the requested tags."""
    words, tags = str(inputs["query"]).split(" "), []
    if rules["filter"] == "inline":
        tags = [word.removeprefix("tag:") for word in words if word[:4] == "tag:"]
        words = [word for word in words if word[:4] != "tag:"]
    elif rules["filter"] == "input" and inputs["tag"]:
        tags = [str(inputs["tag"])]
    terms = _terms(rules, " ".join(words))
    if rules["repeats"] == "once":
        terms = [term for number, term in enumerate(terms) if term not in terms[:number]]
    return terms, tags


def _terms(rules: Mapping[str, Any], text: str) -> list[str]:
    return list(_split(text, rules["split"], tuple(rules["stop_words"]), rules["strip_plural"]))


@lru_cache(maxsize=4096)
def _split(text: str, split: str, stop_words: tuple[str, ...], strip_plural: bool) -> tuple[str, ...]:
    out, term = [], ""
    for char in [*text.lower(), " "]:
        if char in _LETTERS or (split == "spaces" and char != " "):
            term += char
            continue
        if term and term not in stop_words:
            out.append(term[: len(term) - 1] if strip_plural and len(term) >= 4 and term[-1] == "s" else term)
        term = ""
    return tuple(out)


@lru_cache(maxsize=256)
def _index(
    texts: tuple[tuple[str, str], ...], title_weight: int, split: str, stop_words: tuple[str, ...], strip_plural: bool
) -> tuple[dict[str, dict[int, int]], list[int]]:
    """Term -> place of a note -> occurrences, and the lengths of the notes."""
    index: dict[str, dict[int, int]] = {}
    lengths = []
    for place, (title, text) in enumerate(texts):
        terms = _split(title, split, stop_words, strip_plural) * title_weight
        terms += _split(text, split, stop_words, strip_plural)
        lengths.append(len(terms))
        for term in terms:
            postings = index.setdefault(term, {})
            postings[place] = postings.get(place, 0) + 1
    return index, lengths


def _hits(rules: Mapping[str, Any], query: list[str], tags: list[str]) -> list[_Hit]:
    """Notes with a score above zero, those with other tags left out."""
    texts = tuple((note["title"] or "", note["text"]) for note in rules["notes"])
    index, lengths = _index(
        texts, rules["title_weight"] or 0, rules["split"], tuple(rules["stop_words"]), rules["strip_plural"]
    )
    out = []
    for place, note in enumerate(rules["notes"]):
        parts = tuple(
            (index[term][place], len(index[term]), lengths[place]) if place in index.get(term, {}) else ()
            for term in query
        )
        if not any(parts):
            continue
        if rules["scoring"] == "tf-idf":
            # The length does not matter, and a term of all notes adds nothing.
            parts = tuple(part[:2] if part and part[1] < len(lengths) else () for part in parts)
        score = _score(rules, parts, lengths)
        if score > 0 and (not tags or note["tag"] in tags):
            out.append(_Hit(place, parts, score))
    return out


def _score(rules: Mapping[str, Any], parts: tuple[tuple[int, ...], ...], lengths: list[int]) -> Decimal:
    if rules["scoring"] == "distinct":
        return Decimal(len([part for part in parts if part]))
    if rules["scoring"] == "count":
        return Decimal(sum(part[0] for part in parts if part))
    with localcontext(_DIGITS):
        # Sorted, so that equal parts give equal sums.
        values = [_contribution(rules, part, lengths) for part in sorted(parts) if part]
        return sum(values, Decimal(0))


def _contribution(rules: Mapping[str, Any], part: tuple[int, ...], lengths: list[int]) -> Decimal:
    tf, df = Decimal(part[0]), Decimal(part[1])
    num_notes = Decimal(len(lengths))
    if rules["scoring"] == "tf-idf":
        return tf * (_ln(num_notes) - _ln(df))
    k1, b = Decimal(rules["k1"]), Decimal(rules["b"])
    relative = Decimal(part[2] * len(lengths)) / Decimal(sum(lengths))
    # 1 + (N - df + 0.5) / (df + 0.5) is (N + 1) / (df + 0.5).
    rarity = _ln((num_notes + 1) / (df + Decimal("0.5")))
    return rarity * tf * (k1 + 1) / (tf + k1 * (1 - b + b * relative))


@cache
def _ln(value: Decimal) -> Decimal:
    """To 50 digits in any context; cached, as few values repeat often."""
    return value.ln(_DIGITS)


def _written(rules: Mapping[str, Any], query: list[str], hit: _Hit) -> str:
    note = rules["notes"][hit.place]
    out = note["id"]
    if rules["score_format"]:
        out = rules["score_format"].format(out, round(hit.score, rules["decimals"] or 0))
    if not rules["snippet"]:
        return out
    words = [word for word in f"{note['title'] or ''} {note['text']}".split(" ") if word]
    matching = [number for number, word in enumerate(words) if any(term in query for term in _terms(rules, word))]
    around = [words[number] for number in range(matching[0] - 1, matching[0] + 2) if 0 <= number < len(words)]
    return f"{out} [{' '.join(around)}]"
