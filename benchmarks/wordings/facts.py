"""Say which facts a request lacks that its agent cannot be written without, whatever its words are.

It reads the spec alone and shares nothing with what words a request. A literal has to occur as it is; what is no
literal (a mean, an order) by one of several words, German ones among them. What the starter's requests leave out (the
meaning of an operation's name, where a setting enters the logic) is no fact here.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from agent_rl.envs.nat.spec import NATSpec, Tool, Value

Fact = tuple[str, ...]
"""Patterns, of which one has to occur in the text; words do in either case, literals as they are."""

_TYPES = {
    "float": ("float", "number", "zahl", "decimal", "numeric"),
    "int": ("int", "integer", "number", "zahl"),
    "str": ("str", "string", "text", "zeichenkette"),
}
_WORDS = {
    "sum": ("sum", "total", "added", "add up", "summe", "adds? up"),
    "mean": ("mean", "average", "avg", "mittelwert", "durchschnitt"),
    "min": ("smallest", "lowest", "least", "minimum", "min", "kleinste[rns]?", "cheapest"),
    "max": ("largest", "highest", "greatest", "maximum", "max", "biggest", "größte[rns]?", "most", "top"),
    "count": ("number of rows", "count", "how many", "records", "rows", "anzahl"),
    "none": (),
}
_ORDERS = {
    "appearance": ("appear", "occur", "mention", "first-seen", "first seen", "order of the table", "as they come"),
    "key": ("a to z", "a-z", "alphabet", "abc", "a bis z"),
    "up": ("smallest", "lowest", "least", "ascending", "minimum", "low numbers", "rise", "rising", "go up", "upwards"),
    "down": ("largest", "highest", "greatest", "descending", "maximum", "high numbers", "fall", "biggest", "downwards"),
}
_ORDERS["appearance"] += ("sequence as in", "in the order", "come first", "show up", "order how", "table order")
_ORDERS["appearance"] += ("auftauch", "auftret", "reihenfolge")
_ORDERS["up"] += ("small", "aufsteigend", "kleinste")
_ORDERS["down"] += ("big", "absteigend", "größte", "most")
_TIES = {
    "key": ("alphabet", "nearest to a", "abc", "a-z", "a to z", "a bis z"),
    "appearance": ("first", "earlier", "earliest", "nearer", "zuerst", "before"),
}
_SIGNS = {"letters": ("letter", "buchstabe"), "digits": ("digit", "ziffer", "numeral")}
_DIMENSIONS = {"duration": ("zeit",), "length": ("cm/mm",), "mass": ("kilo",)}
"""What people say in the place of the word, units among them."""
_OPS = {
    "<": ("<", "below", "under", "less than", "unter"),
    "<=": ("<=", "at most", "or less", "höchstens"),
    ">": (">", "above", "over", "more than", "über"),
    ">=": (">=", "at least", "or more", "mindestens"),
    "=": ("=", "is", "equal"),
    "!=": ("!=", "not", "except", "nicht"),
}
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_GERMAN = ("null", "eine?", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf")


def missing(spec: NATSpec, text: str) -> list[str]:
    """The facts that the text lacks, each by the first of its patterns."""
    return [fact[0] for fact in facts(spec) if not any(re.search(each, text) for each in fact)]


def facts(spec: NATSpec) -> Iterator[Fact]:
    """What a request for this spec of one tool has to say."""
    tool = spec.tools[0]
    yield from (_token(name) for name in (spec.package, tool.type_name, tool.instance))
    for each in tool.inputs:
        yield _token(each.name)
        yield _words(*_TYPES[each.type])
    if field := tool.config_field:
        yield _token(field.name)
        yield from (_number(number) for number in (field.default, field.low, field.high))
    yield from (_value(value) for value in (*tool.example.inputs.values(), tool.example.output))
    yield from (_exact(error) for error in tool.errors)
    if spec.server.name != spec.package:
        yield _token(spec.server.name)
        yield _words("mcp", r"mcp_server\.py")
        yield _words("stdio")
    if spec.server.raises:
        yield _words("isError")
    yield from _OF_FAMILY[tool.family](tool)


def _exact(text: str) -> Fact:
    return (re.escape(text),)


def _token(name: str) -> Fact:
    return (rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])",)


def _words(*words: str) -> Fact:
    return tuple(rf"(?i:(?<![a-z]){word})" for word in words)


def _number(number: int) -> Fact:
    spelled = [rf"(?i:\b{words[number]}\b)" for words in (_NUMBERS, _GERMAN) if 0 <= number < len(words)]
    return (rf"(?<!\w)(?<!\w\.){number}(?!\w|\.\d)", *spelled)


def _value(value: Value) -> Fact:
    """A value of the example: as a literal, or as a person writes it."""
    if isinstance(value, str):
        return (re.escape(json.dumps(value, ensure_ascii=False)), re.escape(value))
    whole = [rf"(?<![\w.]){int(value)}(?![\w]|\.\d)"] if value == int(value) else []
    return (rf"(?<![\w.]){re.escape(str(value))}(?!\d)", *whole)


def _units(tool: Tool) -> Iterator[Fact]:
    dimension = tool.rules["dimension"]
    yield _words(dimension, *_DIMENSIONS.get(dimension, ()))
    yield from (_token(unit) for unit in tool.rules["units"])
    yield from _digits(tool)


def _digits(tool: Tool) -> Iterator[Fact]:
    if not tool.config_field:
        yield _number(tool.rules["precision"])


def _texts(tool: Tool) -> Iterator[Fact]:
    names = [re.escape(op) for op in tool.rules["ops"]]
    yield (r"\b[\s\S]{1,60}?".join(rf"(?<![a-z_]){name}(?![a-z_])" for name in names),)


def _formula(tool: Tool) -> Iterator[Fact]:
    yield _exact(tool.rules["formula"])
    yield from _digits(tool)
    if tool.rules["nonnegative"]:
        yield _token(tool.rules["nonnegative"])


def _codes(tool: Tool) -> Iterator[Fact]:
    yield _token("ok")
    for kind, value in tool.rules["rules"]:
        if kind == "ending":
            yield from (_words(*_SIGNS[word]) for word in re.findall("letters|digits", value))
        elif kind == "min_length":
            yield _number(value)
        elif value:
            yield _exact(value)
    yield (".*".join(rf"(?s:{re.escape(error)})" for error in tool.errors).replace(".*", r"[\s\S]*"),)


def _tables(tool: Tool) -> Iterator[Fact]:
    rules, field = tool.rules, tool.config_field.name if tool.config_field else None
    yield from (_token(name) for name in (rules["key"], rules["value"]) if name)
    if rules["aggregate"]:
        yield _words(*_WORDS[rules["aggregate"]])
    if rules["source"] == "json":
        yield _words("json")
    else:
        yield (r"\btabs?\b", r"\\t") if rules["delimiter"] == "tab" else _exact(rules["delimiter"])
    if rules["trim"]:
        yield _words("spaces", "blanks", "padding", "trim", "leerzeichen")
    for each in rules["filters"]:
        yield _token(each["column"])
        yield tuple(f"(?i:{re.escape(op)})" for op in _OPS[each["op"]])
        yield _token(field) if field == "threshold" else _token(str(each["value"]))
    yield from _table_form(rules, field)
    if rules["filters"]:
        yield _token("none")
    yield (r"[\s\S]*".join(re.escape(error) for error in tool.errors),)


def _table_form(rules: dict[str, Any], field: str | None) -> Iterator[Fact]:
    if rules["aggregate"] != "count" and rules["pair"] is not None:
        yield _token("decimals") if field == "decimals" else _number(rules["decimals"])
    if not rules["key"]:
        return
    yield _words(*_ORDERS[rules["order"]])
    if rules["order"] in ("up", "down"):
        yield _words(*_TIES[rules["tie"]])
    if rules["top"]:
        yield _token("limit") if field == "limit" else _number(rules["top"])
    if rules["pair"] is not None:
        yield _exact(f"{rules['key']}{rules['pair']}number")
    yield _words("line", "newline", "zeile") if rules["joiner"] == "newline" else _exact(rules["joiner"])


def _notes(tool: Tool) -> Iterator[Fact]:
    rules = tool.rules
    for note in rules["notes"]:
        yield (rf"{re.escape(note['id'])}\W{{1,6}}{re.escape(note['text'])}",)
    yield from (_token(word) for word in rules["stop_words"])
    yield _words("spaces", "leerzeichen") if rules["split"] == "spaces" else _words(r"[^.;]{0,30}a ?(?:-|to|bis) ?z")
    if rules["strip_plural"]:
        yield _number(4)
        yield (r"[`'\"]s[`'\"]", r"(?<![\w'’])s(?!\w)")
    yield from _score(rules)
    yield _token("k") if tool.config_field else _number(rules["k"])
    yield {
        "ascending": _words("small", "low", "kleiner"),
        "descending": _words("large", "high", "big", "größer"),
        "corpus": _words("list", "earlier", "order", "sequence"),
    }[rules["tie"]]
    yield _exact((rules["score_format"] or "{}").format("ID", "SCORE"))
    yield _exact(rules["separator"])
    if rules["decimals"]:
        yield _number(rules["decimals"])


def _score(rules: dict[str, Any]) -> Iterator[Fact]:
    if rules["scoring"] == "distinct":
        yield _words(
            "different", "distinct", "unique", "without duplicates", "no term twice", "a single time", "verschieden"
        )
        return
    yield {
        "once": _words("counts? once", "once", "single time", "matters once", "einmal"),
        "each": _words("each time", "every time", "twice", "each", "jedes mal"),
    }[rules["repeats"]]
    if rules["scoring"] == "count":
        yield _words("how often", "many times", "occurrence", "frequen", "number of times", "the times", "wie oft")
    elif rules["scoring"] == "tf-idf":
        yield _exact("tf * ln(N / df)")
    else:
        yield _exact("ln(1 + (N - df + 0.5) / (df + 0.5)) * tf * (k1 + 1) / (tf + k1 * (1 - b + b * len / avg))")
        yield from (_exact(rules[name]) for name in ("k1", "b"))


def _api(tool: Tool) -> Iterator[Fact]:
    rules, name = tool.rules, tool.function
    yield _words("httpx")
    yield _exact(rules["host"] + rules["path"])
    for param in rules["params"]:
        value = {"input": f"{{{param['value']}}}", "page_size": "{page_size}"}.get(param["kind"], param["value"])
        size = [rf"{param['name']}={rules['page_size']}(?!\d)"] if param["kind"] == "page_size" else []
        yield (re.escape(f"{param['name']}={value}"), *size)
    yield (r"[\s\S]{1,10}".join(rf"(?<!\w){re.escape(each['path'])}(?!\w)" for each in rules["fields"]),)
    if len(rules["fields"]) > 1:
        yield _exact(rules["between"])
    if rules["items"]:
        yield _token(rules["items"])
        yield _exact(rules["joiner"])
    yield _words("encod", "escap", "quot", "prozent-?kodier")
    yield from (_number(number) for number in (404, 200))
    yield _words("timeout", "time-out", "timed? out", "times out", "in time", "zeit")
    if rules["connection"]:
        yield _words("con?nect", "verbindung")
    size = r"[^)]*page_size: int = \d" if "page_size" in tool.defaults else ""
    yield (rf"{re.escape(name)}_path\(" + ", ".join(f"{each.name}: {each.type}" for each in tool.inputs) + size,)
    yield _exact(f"{name}(status: int, body: str) -> str")


_OF_FAMILY = {
    "unit_converter": _units,
    "text_pipeline": _texts,
    "calculator": _formula,
    "code_validator": _codes,
    "table_processor": _tables,
    "note_search": _notes,
    "api_client": _api,
}
