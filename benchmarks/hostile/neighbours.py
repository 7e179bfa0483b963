"""Rules one step away from the rules of a tool: another bound, order, tie, text, word, or one thing left out.

They are written from what a user could get wrong, apart from the families' own slips. Nothing checks that they make
sense together: whoever asks the oracle with them leaves out those that it cannot answer. `code_mutants` changes code.
"""

import ast
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

Change = tuple[str, dict[str, Any]]
"""What was changed, in words, and the rules after it."""
Options = Mapping[str, Sequence[Any]]
"""Name of a rule -> the values that it could have instead."""

_NUMBER = re.compile(r"\d+\.\d+")
_WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_LAYOUTS = [
    "YYYY-MM-DD", "YYYY/MM/DD", "YYYYMMDD", "DD.MM.YYYY", "DD-MM-YYYY", "DD/MM/YYYY", "MM/DD/YYYY", "MM-DD-YYYY",
]  # fmt: skip
_TIES = ["ascending", "descending", "corpus"]
_FORMS = ["{value}", "{name}: {value}", "{name} = {value}", "{name} -> {value}", "{name} has {value}"]
_MAPS = {"units", "per", "offsets", "aliases", "country"}
"""Rules that are tables, of which a line can be missing."""

OPTIONS: dict[str, Options] = {
    "unit_converter": {},
    "text_pipeline": {"scope": ["text", "lines"], "blank_lines": ["drop", "keep"]},
    "calculator": {
        "answer": ["balance", "interest", "paid"],
        "when": ["start", "end"],
        "measure": ["mean", "median", "variance", "sample_variance", "range"],
    },
    "code_validator": {
        "report": ["first", "all"],
        "success": ["ok", "upper", "bare", "tail"],
        "ending": ["letters", "digits", "letters and digits"],
        "mark": ["-", "_", ".", ":", "#"],
    },
    "table_processor": {
        "delimiter": [",", ";", "|", "tab"],
        "missing": ["drop", "unknown"],
        "repeated": ["first", "last"],
        "op": ["=", "!=", ">", ">=", "<", "<="],
        "aggregate": ["sum", "mean", "min", "max", "count", None],
        "order": ["appearance", "key", "up", "down"],
        "tie": ["key", "appearance"],
        "pair": ["=", ": ", "->", None],
        "joiner": ["; ", ", ", " / ", "newline", " "],
    },
    "note_search": {
        "split": ["spaces", "letters"],
        "scoring": ["count", "distinct", "tf-idf", "bm25"],
        "repeats": ["once", "each"],
        "filter": ["input", "inline", None],
        "tie": _TIES,
        "score_format": ["{}:{}", "{} ({})", "{}={}", None],
        "separator": [", ", "; ", " > ", "|", " "],
    },
    "api_client": {
        "between": [" - ", " / ", ": ", ", ", " "],
        "joiner": ["; ", " | ", " + ", ", "],
        "missing": ["?", "n/a", "none", "None", None],
        "next_style": ["path", "cursor", None],
    },
    "date_tool": {
        "layout": _LAYOUTS,
        "out_layout": _LAYOUTS,
        "unit": ["days", "weeks", "months", "periods", "periods_rest"],
        "month_end": ["clip", "overflow", "refuse"],
        "reversed": ["refuse", "absolute", "signed"],
        "style": ["long", "short", "number"],
        "second": ["day_of_year", "days_left", "iso_week"],
        "week_start": _WEEKDAYS,
        "weekday": _WEEKDAYS,
        "period": ["week", "month", "quarter", "year"],
        "side": ["first", "last"],
        "nth": ["first", "second", "third", "fourth", "fifth", "last"],
        "separator": [" ", "/", ", ", "-"],
        "joiner": [" ", ", ", ";", " | "],
        "weekend": [[day] for day in _WEEKDAYS],
    },
    "function_group": {
        "at_bound": ["refuse", "clamp", "wrap"],
        "unknown_balance": ["error", "zero"],
        "excess": ["refuse", "fill"],
        "lack": ["refuse", "all"],
        "overflow": ["refuse", "drop"],
        "oldest": ["used", "written", "inserted"],
        "again": ["refuse", "replace"],
        "tie": ["first", "alphabet", "last", "report"],
        "pick": ["lowest", "highest"],
        "free_form": ["count", "list"],
        "undo": ["last", "every"],
        "form": _FORMS,
    },
}


def rule_neighbours(family: str, rules: dict[str, Any], rng: random.Random) -> Iterator[Change]:
    """All rules one step from these; `rng` chooses words to put in."""
    special: dict[str, Callable[[dict[str, Any], random.Random], Iterator[Change]]] = {
        "unit_converter": _units,
        "text_pipeline": _texts,
        "calculator": _calculators,
        "code_validator": _codes,
        "table_processor": _tables,
        "note_search": _notes,
        "api_client": _apis,
        "date_tool": _dates,
        "function_group": _groups,
    }
    apart = {"notes", "formula", "names", "inputs", "errors", "words", "ops", "rules"}
    plain = {key: value for key, value in rules.items() if key not in apart}
    for words, changed in steps(plain, OPTIONS[family]):
        yield words.strip(), {**rules, **changed}
    yield from special[family](rules, rng)


def steps(value: Any, options: Options, key: str = "") -> Iterator[tuple[str, Any]]:
    """Values one step from a plain JSON value, whatever it means; `options` gives those of texts."""
    if key in options:
        yield from ((f"{key} {value!r} -> {each!r}", each) for each in options[key] if each != value)
    elif isinstance(value, bool):
        yield f"{key} {value} -> {not value}", not value
    elif isinstance(value, int):
        yield from ((f"{key} {value} -> {value + more}", value + more) for more in (-1, 1))
    elif isinstance(value, str) and _NUMBER.fullmatch(value):
        last = str((int(value[-1]) + 1) % 10)
        yield from ((f"{key} {value} -> {each}", each) for each in (value[:-1] + last, f"1{value}", f"{value}1"))
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from ((f"{key} {words}", {**value, name: each}) for words, each in steps(inner, options, name))
        if key in _MAPS:
            yield from _table_steps(value, key)
    elif isinstance(value, list):
        yield from list_steps(value, key)
        for at, inner in enumerate(value):
            for words, each in steps(inner, options, key):
                yield f"{words} (number {at + 1})", [*value[:at], each, *value[at + 1 :]]


def list_steps(values: list[Any], key: str) -> Iterator[tuple[str, list[Any]]]:
    """One left out, or two neighbours exchanged."""
    for at, value in enumerate(values):
        yield f"{key} without {value!r}", values[:at] + values[at + 1 :]
    for at in range(len(values) - 1):
        both = [values[at + 1], values[at]]
        yield f"{key} {both[0]!r} before {both[1]!r}", values[:at] + both + values[at + 2 :]


def _table_steps(table: dict[str, Any], key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    names = list(table)
    for name in names:
        yield f"{key} without {name}", {each: table[each] for each in names if each != name}
        for other in names:
            if other != name and table[other] != table[name]:
                yield f"{key} {name} like {other}", {**table, name: table[other]}


def _units(rules: dict[str, Any], rng: random.Random) -> Iterator[Change]:
    names = [f"{a}/{b}" for a in rules["units"] for b in rules["per"]] if "per" in rules else list(rules["units"])
    for alias, unit in rules.get("aliases", {}).items():
        for other in names:
            if other != unit:
                yield f"alias {alias} of {other}", {**rules, "aliases": {**rules["aliases"], alias: other}}
    checks = rules.get("checks", ["unknown", "negative"] if rules["nonnegative"] else ["unknown"])
    for check in {"negative", "same", "large", "cold"} - {*checks}:
        for at in (0, len(checks)):
            added = {"checks": [*checks[:at], check, *checks[at:]], "largest": rules.get("largest", 100)}
            yield f"check {check} added", {**rules, **added}


_OPS = [
    "strip", "lower", "upper", "reverse", "squeeze", "sort_words", "dedupe_words", "drop_digits", "snake", "initials",
    "title", "swap_case", "double",
]  # fmt: skip


def _texts(rules: dict[str, Any], rng: random.Random) -> Iterator[Change]:
    ops = rules["ops"]
    for at, op in enumerate(ops):
        for other in [*_OPS, *_similar(op)]:
            if other != op:
                yield f"{op} -> {other}", {**rules, "ops": [*ops[:at], other, *ops[at + 1 :]]}
        yield f"{op} twice", {**rules, "ops": [*ops[: at + 1], *ops[at:]]}
    yield from ((words, {**rules, "ops": changed}) for words, changed in list_steps(ops, "ops"))
    for at in range(len(ops) + 1):
        for added in ("strip", "squeeze", "dedupe_words", "lower"):
            yield f"{added} added as {at + 1}", {**rules, "ops": [*ops[:at], added, *ops[at:]]}
    if rules.get("scope") != "lines":
        for blank in ("drop", "keep"):
            yield f"line by line, blank ones {blank}", {**rules, "scope": "lines", "blank_lines": blank}


def _similar(op: Any) -> list[dict[str, Any]]:
    """The operation with another parameter."""
    if not isinstance(op, dict):
        return []
    numbers = [{**op, key: op[key] + more} for key in ("n", "first", "last") if key in op for more in (-1, 1)]
    if op["op"] == "take_words":
        return [*numbers, {**op, "last": 99}, {**op, "first": 1}]
    if op["op"] in ("prefix", "suffix"):
        texts = {op["text"] + "x", op["text"].strip(), op["text"][:-1]} - {op["text"]}
        return [{**op, "op": {"prefix": "suffix", "suffix": "prefix"}[op["op"]]}, *({**op, "text": t} for t in texts)]
    if op["op"] == "replace":
        others = [("new", ""), ("new", op["new"] + "x"), ("old", op["old"].upper()), ("old", op["old"] + " ")]
        return [{**op, key: text} for key, text in others]
    return numbers + [{**op, "op": other} for other in ("truncate", "rotate", "repeat") if other != op["op"]]


def _calculators(rules: dict[str, Any], rng: random.Random) -> Iterator[Change]:
    if "formula" not in rules:
        return
    names = sorted({*re.findall("[a-z]+", rules["formula"])})
    for formula in formulas(rules["formula"], names):
        yield f"formula {rules['formula']} -> {formula}", {**rules, "formula": formula}
    split = rules.get("piecewise")
    if split:
        yield "only the first piece", {key: value for key, value in rules.items() if key != "piecewise"}
        for formula in formulas(split["otherwise"], names):
            yield f"other piece {formula}", {**rules, "piecewise": {**split, "otherwise": formula}}
    for key in {"piecewise", "largest"} & rules.keys():
        for name in names:
            if name != rules[key]["input"]:
                yield f"{key} by {name}", {**rules, key: {**rules[key], "input": name}}
    for name in [*names, None]:
        if name != rules["nonnegative"]:
            yield f"{name} must not be negative", {**rules, "nonnegative": name}
        if name and name not in rules["divisors"]:
            yield f"{name} must not be zero", {**rules, "divisors": [*rules["divisors"], name]}


def formulas(formula: str, names: list[str]) -> Iterator[str]:
    """The formula with another operator, number or name, or with operands exchanged."""
    tree = ast.parse(formula, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp):
            right = node.op
            for other in (ast.Add(), ast.Sub(), ast.Mult(), ast.Div()):
                if type(other) is not type(right):
                    node.op = other
                    yield ast.unparse(tree)
            node.op, node.left, node.right = right, node.right, node.left
            yield ast.unparse(tree)
            node.left, node.right = node.right, node.left
        elif isinstance(node, ast.Constant):
            number = node.value
            for node.value in (number - 1, number + 1):  # type: ignore[misc]
                yield ast.unparse(tree)
            node.value = number
        elif isinstance(node, ast.Name):
            name = node.id
            for node.id in [each for each in names if each != name]:
                yield ast.unparse(tree)
            node.id = name


def _codes(rules: dict[str, Any], rng: random.Random) -> Iterator[Change]:
    pairs = rules["rules"]
    yield from ((words, {**rules, "rules": changed}) for words, changed in list_steps(pairs, "rules"))
    for at, (kind, value) in enumerate(pairs):
        for words, other in [*steps(value, OPTIONS["code_validator"], kind), *_code_values(kind, value)]:
            yield words, {**rules, "rules": [*pairs[:at], [kind, other], *pairs[at + 1 :]]}


def _code_values(kind: str, value: Any) -> Iterator[tuple[str, Any]]:
    if kind == "prefix":
        for other in (value[:-1], value + "q", value[::-1], value[1:]):
            yield f"prefix {value} -> {other}", other
    elif kind == "range":
        for end in ("low", "high"):
            for more in (-1, 1):
                other = chr(ord(value[end]) + more)
                yield f"range {end} {value[end]} -> {other}", {**value, end: other}
    elif kind == "check":
        weights = value["weights"]
        yield "weights reversed", {**value, "weights": weights[::-1]}
        yield "the first weight again at the end", {**value, "weights": [*weights, weights[0]]}


def _tables(rules: dict[str, Any], rng: random.Random) -> Iterator[Change]:
    for top in {1, None} - {rules["top"]}:
        yield f"top {rules['top']} -> {top}", {**rules, "top": top}
    for at, each in enumerate(rules["filters"]):
        if isinstance(each["value"], str):
            for value in (each["value"].upper(), each["value"] + "x"):
                filters = [*rules["filters"][:at], {**each, "value": value}, *rules["filters"][at + 1 :]]
                yield f"filter {each['column']} by {value}", {**rules, "filters": filters}
        if isinstance(each["value"], int) and rules["value"]:
            filters = [*rules["filters"][:at], {**each, "column": rules["value"]}, *rules["filters"][at + 1 :]]
            yield f"filter by {rules['value']}", {**rules, "filters": filters}
            yield f"value {rules['value']} -> {each['column']}", {**rules, "value": each["column"]}


def _notes(rules: dict[str, Any], rng: random.Random) -> Iterator[Change]:
    notes = rules["notes"]
    yield from ((words, {**rules, "notes": changed}) for words, changed in list_steps(notes, "notes"))
    pool = sorted({word for note in notes for word in note["text"].split()})
    tags = sorted({note["tag"] for note in notes if note["tag"]})
    for at, note in enumerate(notes):
        for words, other in _note_changes(note, pool, tags, rng):
            yield f"{note['id']}: {words}", {**rules, "notes": [*notes[:at], other, *notes[at + 1 :]]}
    for word in sorted({"the", "and", "for", "with", pool[0].lower()} - {*rules["stop_words"]}):
        yield f"stop word {word} added", {**rules, "stop_words": [*rules["stop_words"], word]}
    for scoring in ("count", "distinct", "tf-idf", "bm25"):
        if scoring != rules["scoring"]:
            # With what the other score needs, so that it is one step and not a crash.
            more = {"k1": rules["k1"] or "1.2", "b": rules["b"] or "0.75", "decimals": rules["decimals"] or 2}
            yield f"scoring by {scoring}", {**rules, "scoring": scoring, **more}


def _note_changes(
    note: dict[str, Any], pool: list[str], tags: list[str], rng: random.Random
) -> Iterator[tuple[str, dict[str, Any]]]:
    for key in ("text", "title"):
        words = (note[key] or "").split()
        for at, word in enumerate(words):
            yield f"{key} loses {word!r}", {**note, key: " ".join([*words[:at], *words[at + 1 :]])}
            bare = word.strip(",").removesuffix("s")
            if bare != word:
                yield f"{key} has {bare!r} for {word!r}", {**note, key: " ".join([*words[:at], bare, *words[at + 1 :]])}
            elif "-" in word:
                yield f"{key} has {word!r} apart", {**note, key: " ".join(words).replace(word, word.replace("-", " "))}
    words = note["text"].split()
    for word in rng.sample(pool, min(3, len(pool))):
        at = rng.randint(0, len(words))
        yield f"text gains {word!r}", {**note, "text": " ".join([*words[:at], word, *words[at:]])}
    yield "text without its last letter", {**note, "text": note["text"][:-1]}
    yield "id one more", {**note, "id": f"n{int(note['id'][1:]) + 1}"}
    yield from ((f"tag {tag}", {**note, "tag": tag}) for tag in tags if tag != note["tag"])


def _apis(rules: dict[str, Any], rng: random.Random) -> Iterator[Change]:
    fields = rules["fields"]
    for at, field in enumerate(fields):
        for path in ["note", "uid", field["path"].rpartition(".")[2]]:
            if path != field["path"]:
                changed = [*fields[:at], {**field, "path": path}, *fields[at + 1 :]]
                yield f"field {field['path']} -> {path}", {**rules, "fields": changed}
    texts = ["not_found", "failed", "not_json", "nothing", "timeout", "connection"]
    for one in texts:
        for other in texts:
            if None not in (rules[one], rules[other]) and rules[one] != rules[other]:
                yield f"{one} answered like {other}", {**rules, one: rules[other]}
    if rules["connection"]:
        yield "a failed connection is not caught", {**rules, "connection": None}
    for key in ("max_retries", "max_pages"):
        if rules[key] is not None:
            yield f"{key} 0", {**rules, key: 0}
    if rules["token"]:
        yield "no token", {**rules, "token": None}


def _dates(rules: dict[str, Any], rng: random.Random) -> Iterator[Change]:
    operation = rules["operation"]
    for day in _WEEKDAYS if "weekend" in operation else []:
        if day not in operation["weekend"]:
            yield f"{day} off too", {**rules, "operation": {**operation, "weekend": [*operation["weekend"], day]}}
    days = operation.get("holidays", [])
    for at, day in enumerate(days):
        for more in (-1, 1, 365):
            other = (date.fromisoformat(day) + timedelta(days=more)).isoformat()
            changed = {**operation, "holidays": [*days[:at], other, *days[at + 1 :]]}
            yield f"holiday {day} -> {other}", {**rules, "operation": changed}
    for more in (-60, -30, 30, 60) if "offset" in operation else ():
        yield f"offset {more:+}", {**rules, "operation": {**operation, "offset": operation["offset"] + more}}


def _groups(rules: dict[str, Any], rng: random.Random) -> Iterator[Change]:
    errors = rules["errors"]
    for one in errors:
        for other in errors:
            if one != other:
                yield f"{one} answered like {other}", {**rules, "errors": {**errors, one: errors[other]}}
    for key, text in rules["words"].items():
        yield f"word {text} -> {text}x", {**rules, "words": {**rules["words"], key: f"{text}x"}}
    if rules["kind"] in ("queue", "stack"):
        yield "the other end first", {**rules, "kind": {"queue": "stack", "stack": "queue"}[rules["kind"]]}
