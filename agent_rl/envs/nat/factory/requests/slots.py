"""Say what is filled into sentences otherwise: comparisons, counts, definitions, delimiters.

Conditions, counts and delimiters are said after all noise is in, as every word of theirs tells something. Not here:
the sentences themselves (`reword.py`).
"""

import random
import re
from collections.abc import Mapping

from agent_rl.envs.nat.factory.requests.grammar import choose, fill, match, read_sections

CONDITIONS, SLOTS = "phrases/conditions.txt", "phrases/slots.txt"
SAID_SHARE = 0.55
"""Conditions, counts and definitions that are said otherwise."""
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
DIVIDERS = {",": ("comma",), ";": ("semicolon",), "|": ("pipe", "vertical bar", "bar")}
"""Names of the signs between the cells of a table."""

_COMPARISON = r"`[\w.]+ (?:[<>!]=|[<>=]) -?[\w.]+`"
_CONDITION = re.compile(rf"{_COMPARISON}(?: and {_COMPARISON})*")
_PARTS_OF_ONE = re.compile(r"`([\w.]+) ([<>!]=|[<>=]) (-?[\w.]+)`")
_CODE = re.compile(r"WHERE |if not \(")
_BEFORE_CLAUSE = re.compile(
    r"(?:\b(?:where|if|when|which|unless|whenever|provided that|not so that|long as|condition that)|:)\s$",
    re.IGNORECASE,
)
_AFTER_NOUN = re.compile(r"\)? (?:hold|holds|is|does|must|has|shall)\b|:")
_COUNT = re.compile(r"(?<=[^=<>] )\{([nk])\}(?=[ ,;.:)]|$)")
_NO_WORDS = re.compile(r"\(\w*[,)]|LIMIT|%|:\{|\w\(")
_MARKED = re.compile(r"\{(\d+)\}")
_DIVIDER = re.compile(r"(?<!\()`([,;|])`")


def with_slots_said(text: str, rng: random.Random, *, of_table: bool) -> str:
    """`text` with counts that `counts_marked` marked, and the conditions and delimiter of a table, in words."""
    text = _MARKED.sub(lambda found: NUMBERS[int(found[1])], text)
    if not of_table:
        return text
    text = _CONDITION.sub(lambda found: _condition(found, rng), text)
    return _DIVIDER.sub(lambda found: _divider(found, rng), text)


def counts_marked(way: str, parts: Mapping[str, str], rng: random.Random) -> tuple[str, dict[str, str]]:
    """`way` and its parts, with a mark around counts that shall be words: small whole numbers, and none in code."""
    out = dict(parts)

    def marked(found: re.Match[str]) -> str:
        value = parts[found[1]]
        if not (value.isdecimal() and 2 <= int(value) < len(NUMBERS)) or rng.random() >= SAID_SHARE:
            return found[0]
        out[f"{found[1]}_word"] = f"{{{value}}}"
        return f"{{{found[1]}_word}}"

    return (way if _NO_WORDS.search(way) else _COUNT.sub(marked, way)), out


def defined(names: str, rng: random.Random) -> str:
    """What stands for what in a formula, as `tf = how often the note has the term`, in other words."""
    if rng.random() >= SAID_SHARE:
        return names
    forms = ["{0} = {1}", "`{0}` = {1}", "{0} is {1}", "`{0}` is {1}", "{0}: {1}", "`{0}` being {1}", "{0} means {1}"]
    forms += ["`{0}` stands for {1}", "{0} ({1})", "with {1} as `{0}`", "{1} is called `{0}`", "`{0}` for {1}"]
    form, joint = rng.choice(forms), rng.choice([", ", ", ", "; "])
    pairs = [each.split(" = ", 1) for each in names.split(", ")]
    return joint.join(form.format(name, _definition(what, rng)) for name, what in pairs)


def _definition(what: str, rng: random.Random) -> str:
    found = match(read_sections(SLOTS), what)
    return what if found is None or rng.random() < 0.3 else choose(rng.choice(found[0].ways), rng)


def _condition(found: re.Match[str], rng: random.Random) -> str:
    before, after = found.string[: found.start()], found.string[found.end() :]
    if rng.random() >= SAID_SHARE or _CODE.search(before[-12:]):
        return found[0]
    is_clause = _BEFORE_CLAUSE.search(before) and not _AFTER_NOUN.match(after)
    kind = "where" if is_clause and rng.random() < 0.92 else "with"
    return " and ".join(compared(*each, kind, rng) for each in _PARTS_OF_ONE.findall(found[0]))


def compared(column: str, op: str, value: str, kind: str, rng: random.Random) -> str:
    """A comparison as a clause (`where`) or as what follows a preposition (`with`)."""
    is_number = value.lstrip("-").isdecimal()
    parts = {"column": f"`{column}`", "value": value if is_number and rng.random() < 0.85 else f"`{value}`"}
    source = f"{kind} {{column}} {op} {{value}}"
    (section,) = (each for each in read_sections(CONDITIONS) if source in each.sources)
    return fill(choose(rng.choice(section.ways), rng), parts)


def _divider(found: re.Match[str], rng: random.Random) -> str:
    sign, name = found[1], rng.choice(DIVIDERS[found[1]])
    if rng.random() >= SAID_SHARE:
        return found[0]
    forms = [f"`{sign}` ({name})", f"{name} `{sign}`", f"the {name} `{sign}`", f"`{sign}` (a {name})"]
    if re.search(r"\b(?:by|with|at) $", found.string[: found.start()]):
        forms += [f"{name}s (`{sign}`)", f"a {name} (`{sign}`)", f"{name}s", f"a {name}", f"the {name}"]
    return rng.choice(forms)
