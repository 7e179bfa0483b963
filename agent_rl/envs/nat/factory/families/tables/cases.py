"""Sample tables for table processors, with many bounds, ties, repeated rows and lookups without a match.

Nothing here knows which answer a table should get, only which single thing is wrong with a bad one.
"""

import json
import random
import re
from typing import Any

from agent_rl.envs.nat.factory.families.base import Inputs
from agent_rl.envs.nat.factory.families.tables import code
from agent_rl.envs.nat.factory.families.tables.rules import RANGES, WORDS, Condition, TableRules, is_number, leaf

_SPARE = ["note", "source", "batch"]
"""Columns that no rule speaks of."""
_NUM_EDGES = 20
_NUMBER = re.compile(r"-?\d+(\.\d+)?")

Record = dict[str, str]
"""A row: column -> cell."""


def valid(rules: TableRules, rng: random.Random, *, is_example: bool) -> Inputs:
    """Tables without a fault; one in ten may lose all its rows, unless it is to be shown as an example."""
    records, lookup = _records(rules, rng), _lookup(rules, rng)
    if is_example or rng.random() < 0.9:
        row = rng.choice(records)
        row.update({each.column: _fitting(each, rng) for each in rules.filters})
        if rules.join:
            row[rules.join.on] = rng.choice(lookup)[rules.join.on]
    return _written(rules, records, lookup, rng)


def edges(rules: TableRules, rng: random.Random) -> list[Inputs]:
    """Tables of which no row passes, and tables in which all values are the same."""
    out = []
    for _ in range(_NUM_EDGES):
        records, lookup = _records(rules, rng), _lookup(rules, rng)
        if rules.filters:
            for row in records:
                each = rng.choice(rules.filters)
                row[each.column] = _unfitting(each, rng)
            out.append(_written(rules, records, lookup, rng))
        if rules.value:
            records = _records(rules, rng)
            # A whole number, so that equal sums are equal however they are added.
            same = f"{rng.randint(2, 9):.{RANGES[leaf(rules.value)][2]}f}"
            for row in records:
                row[rules.value] = same
                row.update({each.column: _fitting(each, rng) for each in rules.filters if each.column != rules.value})
            out.append(_written(rules, records, lookup, rng))
    return out


def provoke(rules: TableRules, error: str, rng: random.Random) -> Inputs:
    """Inputs with that one thing wrong."""
    records, lookup = _records(rules, rng), _lookup(rules, rng)
    table = rng.choice(["table", "lookup"]) if rules.join else "table"
    rows = records if table == "table" else lookup
    if error == code.NO_COLUMN:
        needed = rules.main_columns if table == "table" else list(lookup[0])
        column = rng.choice(needed)
        for row in rows:
            del row[column]
    elif error == code.NO_FIELD:
        del rng.choice(records)[rng.choice(rules.main_columns)]
    elif error == code.NO_NUMBER:
        rng.choice(records)[rng.choice(rules.number_columns)] = rng.choice(["abc", "12x", "n/a", "--3", "1.2.3"])
    inputs = _written(rules, records, lookup, rng)
    text = str(inputs[table])
    if error == code.NOT_JSON:
        text = rng.choice([text[:-1], "{}", "[1, 2]", "no table"])
    elif error == code.EMPTY:
        text = "[]" if rules.source == "json" else rng.choice(["", "\n", text.strip("\n").split("\n")[0]])
    elif error == code.RAGGED:
        lines = [line for line in text.split("\n") if line.strip()]
        at, divider = rng.randrange(1, len(lines)), _divider(rules)
        lines[at] = rng.choice([f"{lines[at]}{divider}x", lines[at].rsplit(divider, 1)[0]])
        text = "\n".join(lines)
    return {**inputs, table: text}


def _records(rules: TableRules, rng: random.Random) -> list[Record]:
    out: list[Record] = []
    columns = list(rules.main_columns)
    if len(columns) < 2 or rng.random() < 0.4:
        columns.append(rng.choice(_SPARE))
    # Few words, so that they repeat.
    words = {name: rng.sample(WORDS[leaf(name)], 4) for name in columns if leaf(name) in WORDS}
    for _ in range(rng.choice([2, 3, 4, 5, 6, 7, 7, 8])):
        if out and rng.random() < 0.25:
            out.append(dict(rng.choice(out)))
            continue
        row = {name: _cell(rules, name, words, rng) for name in columns}
        if out and rules.value and rng.random() < 0.3:
            row[rules.value] = rng.choice(out)[rules.value]
        out.append(row)
    return out


def _cell(rules: TableRules, column: str, words: dict[str, list[str]], rng: random.Random) -> str:
    limits = [each for each in rules.filters if each.column == column]
    if is_number(column):
        low, high, decimals = RANGES[leaf(column)]
        number = rng.uniform(low, high)
        # On the limit is where a comparison goes wrong.
        if limits and rng.random() < 0.35:
            number = int(limits[0].value)
        elif limits and rng.random() < 0.5:
            return _fitting(limits[0], rng)
        return f"{number:.{decimals}f}".replace("-0", "0")
    if limits and rng.random() < 0.6:
        return rng.choice([str(limits[0].value), _fitting(limits[0], rng)])
    return rng.choice(words.get(column, ["x", "y7", "z"]))


def _fitting(condition: Condition, rng: random.Random) -> str:
    """A cell that meets the condition."""
    if not isinstance(condition.value, int):
        others = [word for word in WORDS[leaf(condition.column)] if word != condition.value]
        return condition.value if condition.op == "=" else rng.choice(others)
    low, high, decimals = RANGES[leaf(condition.column)]
    number = rng.randint(condition.value + 1, high) if ">" in condition.op else rng.randint(low, condition.value - 1)
    return f"{number:.{decimals}f}"


def _unfitting(condition: Condition, rng: random.Random) -> str:
    """A cell that does not meet the condition."""
    if not isinstance(condition.value, int):
        others = [word for word in WORDS[leaf(condition.column)] if word != condition.value]
        return rng.choice(others) if condition.op == "=" else condition.value
    low, _, decimals = RANGES[leaf(condition.column)]
    is_low = ">" in condition.op
    number = rng.randint(min(low, condition.value - 1), condition.value - 1) if is_low else condition.value + 1
    return f"{number:.{decimals}f}"


def _lookup(rules: TableRules, rng: random.Random) -> list[Record]:
    """The second table: some codes are not in it, some are there twice."""
    if not rules.join:
        return []
    codes, words = WORDS[rules.join.on], WORDS[str(rules.key)]
    chosen = rng.sample(codes, rng.randint(2, len(codes)))
    chosen += rng.choices(chosen, k=rng.randint(0, 2))
    return [{rules.join.on: each, str(rules.key): rng.choice(words)} for each in chosen]


# ---------------------------------------------------------------- writing


def _written(rules: TableRules, records: list[Record], lookup: list[Record], rng: random.Random) -> Inputs:
    write = _delimited if rules.source == "csv" else _listed
    tables = {"table": records, "lookup": lookup} if rules.join else {"table": records}
    return {name: write(rules, rows, rng) for name, rows in tables.items()}


def _divider(rules: TableRules) -> str:
    return "\t" if rules.delimiter == "tab" else str(rules.delimiter)


def _delimited(rules: TableRules, rows: list[Record], rng: random.Random) -> str:
    columns = rng.sample(list(rows[0]), len(rows[0]))
    lines = [columns, *([row[name] for name in columns] for row in rows)]
    if rules.trim:
        lines = [[rng.choice([cell, cell, f" {cell}", f"{cell} "]) for cell in line] for line in lines]
    texts = [_divider(rules).join(line) for line in lines]
    if rng.random() < 0.2:
        texts.insert(rng.randint(1, len(texts)), "")
    return "\n".join(texts)


def _listed(rules: TableRules, rows: list[Record], rng: random.Random) -> str:
    out = []
    for row in rows:
        record: dict[str, Any] = {}
        for path, cell in row.items():
            value: Any = cell
            if is_number(path) and _NUMBER.fullmatch(cell):
                value = float(cell) if "." in cell else int(cell)
            *steps, last = path.split(".")
            inner = record
            for step in steps:
                inner = inner.setdefault(step, {})
            inner[last] = value
        out.append(record)
    return json.dumps(out)
