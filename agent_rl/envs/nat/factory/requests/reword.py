"""Word the request of a spec of one tool as many people would: other sentences, orders, layouts, quotes, small talk.

Every fact stays, letter by letter: names, numbers, texts in quotes. Sentences are those of `factory/wording.py`, said
in the ways of the phrase files, or left as they are with other words in them. Not here: the requests that models are
tested on, which another generator writes; what an agent does.
"""

import random
import re
from collections.abc import Callable

from agent_rl.envs.nat.factory.families.base import literal
from agent_rl.envs.nat.factory.families.notes.words import FILLERS
from agent_rl.envs.nat.factory.requests.grammar import (
    Phrasing,
    choose,
    fill,
    match,
    pattern,
    read_sections,
    read_synonyms,
    read_words,
)
from agent_rl.envs.nat.factory.requests.names import WORDS, renamed
from agent_rl.envs.nat.factory.requests.slots import counts_marked, defined, with_slots_said
from agent_rl.envs.nat.factory.wording import one_tool_sentences, request
from agent_rl.envs.nat.spec import NATSpec, Tool

_PARTS = ["common", "simple", "codes", "tables", "tables_input", "tables_values", "lists", "checks"]
_PARTS += ["notes_terms", "notes_scores", "notes", "services", "failures", "slots"]
_FILES = tuple(f"phrases/{part}.txt" for part in _PARTS)
_FACT = re.compile(
    r"\w+(?=\)* [-+*/] )|(?<= [-+*/] )\w+|\w+(?= = )|\w+(?=\s?[=:] ?[\"\d-])|\w+(?:\.\w+)+|"
    r"\b[Pp]ath (?:and|with|plus) query|\b(?:tf|df|len|avg|ln|log|AsyncClient|httpx)\b|"
    r"`[^`]*`|\"(?:[^\"\\]|\\.)*\"|[^\s\"`]*[\d_/|{}<>=][^\s\"`]*|\b(?:isError|JSON|HTTP|URL|MCP|NAT|UTF-8)\b"
)
"""What no other word may stand for: names in a formula or before a value, quoted texts, numbers, files, paths."""
_WORD = re.compile(r"[A-Za-z]+(?![A-Za-z(])")
"""Not what calls a function, as in `len(rows)`."""
_LAST_JOINT = re.compile(r"(?<=`) and (?=`)")
_JOINTS = (", ", "; ", " / ", " & ", " + ", ", and ", " and also ", " and then ")
_PLAIN_NAME = re.compile(r"[A-Za-z][\w.-]*")
_IN_ANY_QUOTES = re.compile(r"[A-Za-z0-9_.\- :]+")

NOISE_SHARE = 0.3
"""Requests in which words that tell nothing give way to any words, as a reader meets who does not know them all."""
JOINED_SHARE = 0.25
"""Requests whose lists end with another sign or any word in the place of `and`: a list goes on whatever joins it."""
WORDED_SHARE, NAMED_SHARE = 0.85, 0.75
"""Specs that get another wording, and those that get other names."""


def in_any_words(spec: NATSpec, rng: random.Random) -> NATSpec:
    """A spec of one tool with another wording, other names, both or neither."""
    spec = in_any_names(spec, rng)
    return spec.model_copy(update={"request": any_request(spec, rng)})


def in_any_names(spec: NATSpec, rng: random.Random) -> NATSpec:
    """A spec of one tool with other names or its own; the request is still that of the old ones."""
    return renamed(spec, rng) if rng.random() < NAMED_SHARE else spec


def any_request(spec: NATSpec, rng: random.Random) -> str:
    """A request for a spec of one tool, in other words or its own."""
    return reworded(spec, rng) if rng.random() < WORDED_SHARE else request(spec, rng, terse=True)


def reworded(spec: NATSpec, rng: random.Random, *, told_share: float | None = None) -> str:
    """A request for the spec. Needs one tool that is the workflow itself.

    `told_share`: no name of a package or a type is told, and of what it does, takes and gives about this share.
    """
    (tool,) = spec.tools
    head, behaviour, tail = _parts(spec, tool, rng)
    if told_share is not None:
        head = [_opening(tool, rng)]
        behaviour, tail = ([each for each in part if rng.random() < told_share] for part in (behaviour, tail))
    own = rng.choice([0.0, 0.0, 0.1, 0.3, 0.6, 1.0])
    say = [[_said(each, own, rng) for each in part] for part in (head, behaviour, tail)]
    sentences = _with_errors_in_order(_ordered(*say, rng=rng), [*say[0], *say[1], *say[2]], tool)
    if rng.random() < 0.5:
        share = rng.choice([0.1, 0.3, 0.6])
        sentences = [_with_synonyms(each, share, rng) for each in sentences]
    if rng.random() < NOISE_SHARE:
        share = rng.choice([0.05, 0.1, 0.2])
        sentences = [_with_strange_words(each, share, rng) for each in sentences]
    is_joined = rng.random() < JOINED_SHARE
    if is_joined:
        sentences = [_with_other_joint(each, rng) for each in sentences]
    text = _with_typos(_laid_out(sentences, rng), rng)
    text = with_slots_said(text, rng, of_table=tool.family == "table_processor")
    # Without quotes nobody could tell any word that joins a list from its entries.
    return _with_chatter(_with_quotes(text, rng, may_be_bare=not is_joined), rng)


def _parts(spec: NATSpec, tool: Tool, rng: random.Random) -> tuple[list[str], list[str], list[str]]:
    """What it is called; what it does; inputs, setting, example and server. One sentence each."""
    head, behaviour, tail = one_tool_sentences(spec, tool, rng, terse=True)
    behaviour = [part for each in behaviour for part in _split(each)]
    tail = [part for each in tail for part in _split(each)]
    return list(head), behaviour, [_facts_otherwise(each, tool, rng) for each in tail]


def _opening(tool: Tool, rng: random.Random) -> str:
    (section,) = (each for each in read_sections("openings.txt") if each.sources == (tool.family,))
    return _with_words(choose(rng.choice(section.ways), rng), rng)


def _with_words(way: str, rng: random.Random) -> str:
    """`way` with any word where it has `{w}`."""
    return re.sub(r"\{w\}", lambda _: rng.choice(read_words(WORDS)), way)


def _split(sentence: str) -> list[str]:
    """Sentences that the generator keeps together."""
    return re.split(r"(?<=\.) (?=Spaces around|There, an)", sentence)


def _facts_otherwise(sentence: str, tool: Tool, rng: random.Random) -> str:
    """Inputs and the example's values written in another form; the other sentences as they are."""
    sections = read_sections(_FILES[0])
    found = match(sections, sentence)
    if found is None or rng.random() < 0.4:
        return sentence
    section, parts = found
    if "inputs" in parts:
        return fill(section.sources[0], {"inputs": _inputs(tool, rng)})
    if "given" in parts:
        named = [f"{each.name}{rng.choice(['=', ' = ', ': '])}" for each in tool.inputs]
        values = [literal(tool.example.inputs[each.name]) for each in tool.inputs]
        pairs = [name + value for name, value in zip(named, values, strict=True)]
        given = rng.choice([", ".join(pairs), ", ".join(pairs), " and ".join(values), f"({', '.join(values)})"])
        return fill(section.sources[0], parts | {"given": given})
    return sentence


def _inputs(tool: Tool, rng: random.Random) -> str:
    kinds = {
        "float": ["float", "float", "a float", "number, float"],
        "int": ["int", "int", "an int", "integer"],
        "str": ["str", "str", "a str", "string", "text", "a string"],
    }
    form = rng.choice(["`{0}` ({1})", "`{0}`: {1}", "{1} `{0}`", "`{0}` as {1}", "`{0}`, {1},", "`{0}` of type {1}"])
    kind = {name: rng.choice(ways) for name, ways in kinds.items()}
    each = [form.format(field.name, kind[field.type]).removesuffix(",") for field in tool.inputs]
    if len(each) == 1:
        return each[0]
    joint = rng.choice([", ", "; ", " and "])
    return f"{joint.join(each[:-1])}{rng.choice([joint, ' and '])}{each[-1]}"


def sections() -> tuple[Phrasing, ...]:
    """All ways to say a sentence or a clause."""
    return tuple(section for name in _FILES for section in read_sections(name))


def _said(sentence: str, own: float, rng: random.Random) -> str:
    """The sentence in one of its ways; as it is with probability `own`, or where no way is known."""
    found = match(sections(), sentence)
    if found is None:
        return sentence
    section, parts = found
    if rng.random() < own:
        (source, *_) = (each for each in section.sources if pattern(each).fullmatch(sentence))
        return fill(*counts_marked(source, parts, rng))
    parts = {name: _part_said(name, value, rng) for name, value in parts.items()}
    said = fill(*counts_marked(choose(rng.choice(section.ways), rng), parts, rng))
    return _sentence(said)


def _part_said(name: str, value: str, rng: random.Random) -> str:
    """A part of a sentence, in other words where it is a clause or a list of clauses."""
    if name == "errors" and all(": `" in clause for clause in value.split("; ")):
        pairs = [clause.split(": `", 1) for clause in value.split("; ")]
        form = rng.choice(["{0}: {1}", "{0} -> {1}", "{1} if {0}", "{1} for {0}", "{0} gives {1}", "{0} means {1}"])
        return rng.choice(["; ", "; ", ", "]).join(form.format(_clause(when, rng), f"`{text}") for when, text in pairs)
    if name == "steps":
        steps = re.split(r", (?=split|leave|drop)", value)
        return rng.choice([", ", ", then ", "; "]).join(_clause(each, rng) for each in steps)
    if name == "names":
        return defined(value, rng)
    if name == "columns" and "`" in value:
        return _either(value, rng)
    return value if name in ("notes", "given", "output", "url", "formula", "condition") else _clause(value, rng)


def _either(columns: str, rng: random.Random) -> str:
    """Columns of which any is meant, as in `a`, `b` or `c`."""
    joint = rng.choice([" or ", " or ", " or else ", " and/or ", " / ", " or in "])
    return columns.replace("` or `", f"`{joint}`")


def _clause(value: str, rng: random.Random) -> str:
    found = match(sections(), value)
    if found is None or rng.random() < 0.3:
        return value
    section, parts = found
    return fill(choose(rng.choice(section.ways), rng), parts)


def _ordered(head: list[str], behaviour: list[str], tail: list[str], *, rng: random.Random) -> list[str]:
    """All sentences, in the usual order half of the time."""
    if rng.random() < 0.45:
        return [*head, *behaviour, *tail]
    if rng.random() < 0.6:
        behaviour = rng.sample(behaviour, len(behaviour))
    first = [head[0]] if rng.random() < 0.6 else []
    rest = [[each] for each in (*head[len(first) :], *tail)]
    rest += [behaviour] if rng.random() < 0.5 else [[each] for each in behaviour]
    rng.shuffle(rest)
    return [*first, *(each for block in rest for each in block)]


def _with_errors_in_order(sentences: list[str], usual: list[str], tool: Tool) -> list[str]:
    """`sentences`, those with an error's text as they follow each other in `usual`: this is the order of the checks."""
    in_order = iter([each for each in usual if any(error in each for error in tool.errors)])
    return [next(in_order) if any(error in each for error in tool.errors) else each for each in sentences]


def _outside_facts(text: str, change: Callable[[str], str]) -> str:
    """`text` with `change` applied to what lies between facts."""
    out, last = [], 0
    for found in _FACT.finditer(text):
        out += [change(text[last : found.start()]), found[0]]
        last = found.end()
    return "".join([*out, change(text[last:])])


def _with_synonyms(sentence: str, share: float, rng: random.Random) -> str:
    table = read_synonyms("synonyms.txt")

    def other(found: re.Match[str]) -> str:
        word = found[0]
        ways = table.get(word.lower())
        if ways is None or _is_code(word) or rng.random() >= share:
            return word
        chosen = rng.choice(ways)
        return chosen.capitalize() if word[0].isupper() else chosen

    return _outside_facts(sentence, lambda text: _WORD.sub(other, text))


def _is_code(word: str) -> bool:
    """Capitals alone, as in `ORDER BY`."""
    return len(word) > 1 and word.isupper()


def _with_strange_words(sentence: str, share: float, rng: random.Random) -> str:
    """Any word in place of a share of those that tell nothing: what is left is enough to know what is meant."""
    telling = set(read_words("telling_words.txt"))

    def other(found: re.Match[str]) -> str:
        word = found[0]
        if len(word) == 1 or word.lower() in telling or _is_code(word) or rng.random() >= share:
            return word
        return rng.choice(read_words(WORDS))

    return _outside_facts(sentence, lambda text: _WORD.sub(other, text))


def _with_other_joint(sentence: str, rng: random.Random) -> str:
    joint = rng.choice(_JOINTS) if rng.random() < 0.4 else f" {rng.choice(read_words(WORDS))} "
    return _LAST_JOINT.sub(lambda _: joint, sentence)


def _laid_out(sentences: list[str], rng: random.Random) -> str:
    """Running text, lines, a list, or notes without full stops."""
    kind = rng.random()
    if kind < 0.6:
        if rng.random() < 0.2:
            joints = read_sections("chatter.txt")[-1].ways
            sentences = [
                f"{choose(rng.choice(joints), rng)} {_lowered(each)}" if at and rng.random() < 0.3 else each
                for at, each in enumerate(sentences)
            ]
        return " ".join(sentences)
    if kind < 0.7:
        return "\n".join(sentences)
    if kind < 0.85:
        mark = rng.choice(["- ", "* ", "• ", "{n}. ", "{n}) "])
        first = 1 if rng.random() < 0.6 else 0
        points = [f"{mark.format(n=at)}{each}" for at, each in enumerate(sentences[first:], start=1)]
        return "\n".join([*sentences[:first], *points])
    joint = rng.choice(["; ", ", ", " / ", "\n", ". "])
    lower = rng.random() < 0.6
    return joint.join(_lowered(each.rstrip(".")) if lower else each.rstrip(".") for each in sentences)


def _lowered(sentence: str) -> str:
    return sentence if sentence[:2].isupper() or _FACT.match(sentence) else f"{sentence[:1].lower()}{sentence[1:]}"


def _with_quotes(text: str, rng: random.Random, *, may_be_bare: bool) -> str:
    """Backticks, or other quotes, or none around plain names that are no common word."""
    kind = rng.random()
    if kind < 0.55:
        return text
    left, right = rng.choice([('"', '"'), ("'", "'"), ('"', '"'), ("“", "”")])
    bare = may_be_bare and kind > 0.8
    common = {*read_words("telling_words.txt"), *FILLERS}

    def other(found: re.Match[str]) -> str:
        inner = found[1]
        if bare and _PLAIN_NAME.fullmatch(inner) and inner.lower() not in common:
            return inner
        return f"{left}{inner}{right}" if _IN_ANY_QUOTES.fullmatch(inner) else found[0]

    return re.sub(r"`([^`]*)`", other, text)


def _with_chatter(text: str, rng: random.Random) -> str:
    """A greeting, small talk and thanks, each now and then."""
    greeting, closing, filler, _ = read_sections("chatter.txt")

    def line(section: Phrasing) -> str:
        return _with_words(choose(rng.choice(section.ways), rng), rng)

    joint = rng.choice([" ", " ", "\n", "\n\n"])
    if rng.random() < 0.12:
        text = f"{_sentence(line(filler))}{joint}{text}"
    if rng.random() < 0.3:
        text = f"{line(greeting)}{joint}{text}"
    if rng.random() < 0.12:
        text = f"{text}{joint}{_sentence(line(filler))}"
    if rng.random() < 0.3:
        text = f"{text}{joint}{line(closing)}"
    return text


def _sentence(text: str) -> str:
    """With a capital, unless it begins with a fact."""
    return text if _FACT.match(text) else f"{text[:1].upper()}{text[1:]}"


def _with_typos(text: str, rng: random.Random) -> str:
    """A few slips of the finger in one request of eight, small letters alone in one of ten; facts stay."""
    if rng.random() < 0.1:
        text = _outside_facts(text, str.lower)
    if rng.random() >= 0.12:
        return text
    left = rng.randint(1, 3)

    def slip(found: re.Match[str]) -> str:
        nonlocal left
        word = found[0]
        if not left or rng.random() > 0.08:
            return word
        left -= 1
        at = rng.randrange(1, len(word) - 1)
        return rng.choice(
            [
                word[:at] + word[at + 1 :],
                word[:at] + word[at + 1] + word[at] + word[at + 2 :],
                word[:at] + word[at:][:1] + word[at:],
            ]
        )

    return _outside_facts(text, lambda part: re.sub(r"[a-z]{5,}(?![a-z(])", slip, part))
