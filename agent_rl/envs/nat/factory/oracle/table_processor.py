"""Oracle of table processors: splits cells by hand, computes in fractions, orders by counting.

Only `json.loads` is taken from the standard library's readers. Quoting in cells is not known.
"""

import json
import re
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any

from agent_rl.envs.nat.factory.oracle.rounding import fixed, is_clear
from agent_rl.envs.nat.spec import Value

_NUMBER = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_NEAR = Fraction(1, 10**9)

Row = dict[str, Any]
Entry = tuple[str, Fraction, Fraction]
"""Key, value, and the largest number on the way to the value."""


class _Refused(ValueError):
    """The table is answered with this error."""


def answer(rules: Mapping[str, Any], inputs: Mapping[str, Value], config: Mapping[str, int]) -> str:
    """The exact text the tool must give."""
    try:
        rows = _selected(rules, _rows(rules, inputs), config)
    except _Refused as error:
        return f"error: {error}"
    if not rows:
        return "none"
    entries = _entries(rules, rows)
    decimals = config.get("decimals", rules["decimals"])
    if rules["key"] is None:
        return _shown(rules, entries[0][1], decimals)
    chosen = _ordered(rules, entries)[: config.get("limit", rules["top"])]
    pair = rules["pair"]
    texts = [key if pair is None else f"{key}{pair}{_shown(rules, value, decimals)}" for key, value, _ in chosen]
    return ("\n" if rules["joiner"] == "newline" else rules["joiner"]).join(texts)


def is_robust(rules: Mapping[str, Any], inputs: Mapping[str, Value], config: Mapping[str, int]) -> bool:
    """False when sums of floats could be ordered or rounded in another way than exact ones."""
    try:
        rows = _selected(rules, _rows(rules, inputs), config)
    except _Refused:
        return True
    if not rows or rules["aggregate"] == "count":
        return True
    entries = _entries(rules, rows)
    whole = all(row[rules["value"]].denominator == 1 for row in rows)
    added = rules["aggregate"] in ("sum", "mean") and not whole
    values = [value for _, value, _ in entries]
    ranked = sorted(values) if added and rules["order"] in ("up", "down") else []
    if any(later - earlier < _NEAR for earlier, later in pairwise(ranked)):
        return False
    digits = config.get("decimals", rules["decimals"])
    return all((value == 0 and not added) or is_clear(value, digits, largest) for _, value, largest in entries)


# ---------------------------------------------------------------- reading


def _rows(rules: Mapping[str, Any], inputs: Mapping[str, Value]) -> list[Row]:
    """The rows with their numbers read and, after a join, with their keys."""
    join, compared = rules["join"], {each["column"]: each["value"] for each in rules["filters"]}
    needed = {*compared, join["on"] if join else rules["key"], rules["value"]} - {None}
    numbers = {name for name in needed if name == rules["value"] or isinstance(compared.get(name), int)}
    if rules["source"] == "json":
        return _json_rows(str(inputs["table"]), needed, numbers)
    wanted = [needed] if join is None else [needed, {join["on"], rules["key"]}]
    texts = [str(inputs[name]) for name in ("table", "lookup") if name in inputs]
    tables = [_cells(text, rules) for text in texts]
    if any(len(cells) < 2 for cells in tables):
        raise _Refused("empty table")
    if any(not names.issubset(cells[0]) for cells, names in zip(tables, wanted, strict=True)):
        raise _Refused("missing column")
    if any(len(line) != len(cells[0]) for cells in tables for line in cells):
        raise _Refused("ragged row")
    rows = [{name: line[at] for at, name in enumerate(tables[0][0])} for line in tables[0][1:]]
    for row in rows:
        for name in numbers:
            if not _NUMBER.fullmatch(row[name]):
                raise _Refused("bad number")
            row[name] = Fraction(row[name])
    return _join(rules, rows, tables[1]) if join else rows


def _cells(text: str, rules: Mapping[str, Any]) -> list[list[str]]:
    """Lines of cells, character by character; lines of nothing but blanks are left out."""
    divider = "\t" if rules["delimiter"] == "tab" else rules["delimiter"]
    lines: list[list[str]] = [[""]]
    for char in text:
        if char == "\n":
            lines.append([""])
        elif char == divider:
            lines[-1].append("")
        else:
            lines[-1][-1] += char
    # A line of tabs alone is blank, one of semicolons is not.
    lines = [line for line in lines if divider.join(line).strip()]
    return [[cell.strip() for cell in line] for line in lines] if rules["trim"] else lines


def _join(rules: Mapping[str, Any], rows: list[Row], cells: list[list[str]]) -> list[Row]:
    on, key = cells[0].index(rules["join"]["on"]), cells[0].index(rules["key"])
    out = []
    for row in rows:
        found = [line[key] for line in cells[1:] if line[on] == row[rules["join"]["on"]]]
        if found or rules["join"]["missing"] == "unknown":
            chosen = (found[0] if rules["join"]["repeated"] == "first" else found[-1]) if found else "unknown"
            out.append({**row, rules["key"]: chosen})
    return out


def _json_rows(text: str, needed: set[str], numbers: set[str]) -> list[Row]:
    try:
        records = json.loads(text, parse_float=Fraction)
    except ValueError:
        records = None
    if not isinstance(records, list) or any(not isinstance(record, dict) for record in records):
        raise _Refused("bad json")
    if not records:
        raise _Refused("empty table")
    rows = [{path: _at(record, path) for path in needed} for record in records]
    if any(value is None for row in rows for value in row.values()):
        raise _Refused("missing field")
    for row in rows:
        for name in numbers:
            if isinstance(row[name], bool) or not isinstance(row[name], int | Fraction):
                raise _Refused("bad number")
            row[name] = Fraction(row[name])
    return rows


def _at(record: Any, path: str) -> Any:
    first, _, rest = path.partition(".")
    inner = record.get(first) if isinstance(record, dict) else None
    return _at(inner, rest) if rest else inner


# ---------------------------------------------------------------- answering


def _selected(rules: Mapping[str, Any], rows: list[Row], config: Mapping[str, int]) -> list[Row]:
    for number, condition in enumerate(rules["filters"]):
        wanted = config.get("threshold", condition["value"]) if number == 0 else condition["value"]
        rows = [row for row in rows if _holds(row[condition["column"]], condition["op"], wanted)]
    return rows


def _holds(cell: Any, op: str, wanted: Any) -> bool:
    if op in ("=", "!="):
        return (cell == wanted) == (op == "=")
    return (cell == wanted and "=" in op) or (cell > wanted if ">" in op else cell < wanted)


def _entries(rules: Mapping[str, Any], rows: list[Row]) -> list[Entry]:
    """In the order of first appearance."""
    keys = [row[rules["key"]] if rules["key"] else "" for row in rows]
    values = [Fraction(1) if rules["value"] is None else row[rules["value"]] for row in rows]
    if rules["aggregate"] is None:
        return [(key, value, abs(value)) for key, value in zip(keys, values, strict=True)]
    out = []
    for key in dict.fromkeys(keys):
        own = [value for each, value in zip(keys, values, strict=True) if each == key]
        if rules["aggregate"] in ("min", "max"):
            value = min(own) if rules["aggregate"] == "min" else max(own)
            out.append((key, value, abs(value)))
            continue
        total, largest = sum(own, Fraction(0)), sum(map(abs, own), Fraction(0))
        out.append((key, total / len(own) if rules["aggregate"] == "mean" else total, largest))
    return out


def _ordered(rules: Mapping[str, Any], entries: list[Entry]) -> list[Entry]:
    """Every entry at the place that the number of entries before it says."""
    places: list[Entry | None] = [None] * len(entries)
    for number, entry in enumerate(entries):
        before = sum(_goes_before(rules, other, entry, at < number) for at, other in enumerate(entries) if at != number)
        places[before] = entry
    return [entry for entry in places if entry is not None]


def _goes_before(rules: Mapping[str, Any], one: Entry, other: Entry, appears_before: bool) -> bool:
    if rules["order"] in ("up", "down") and one[1] != other[1]:
        return (one[1] < other[1]) == (rules["order"] == "up")
    by_key = rules["order"] == "key" or (rules["order"] != "appearance" and rules["tie"] == "key")
    return one[0] < other[0] if by_key and one[0] != other[0] else appears_before


def _shown(rules: Mapping[str, Any], value: Fraction, decimals: int) -> str:
    return str(int(value)) if rules["aggregate"] == "count" else fixed(value, decimals)
