"""Render the reference code of table processors: read, check, filter, group, order, write."""

from agent_rl.envs.nat.factory.families.base import literal
from agent_rl.envs.nat.factory.families.tables.rules import Condition, TableRules

NOT_JSON = "error: bad json"
EMPTY = "error: empty table"
NO_COLUMN = "error: missing column"
NO_FIELD = "error: missing field"
RAGGED = "error: ragged row"
NO_NUMBER = "error: bad number"
_COMPUTED = {
    "sum": "sum(values)",
    "mean": "sum(values) / len(values)",
    "min": "min(values)",
    "max": "max(values)",
}


def head(rules: TableRules) -> list[str]:
    """Module-level lines: how the table is read."""
    if rules.source == "csv":
        divider = literal("\t" if rules.delimiter == "tab" else str(rules.delimiter))
        cells = f"line.split({divider})"
        row = f"[cell.strip() for cell in {cells}]" if rules.trim else cells
        return [
            "from typing import Any",
            "",
            "",
            "def split_table(text: str) -> list[list[str]]:",
            '    """The rows as lists of cells, the header first; blank lines are left out."""',
            f'    return [{row} for line in text.split("\\n") if line.strip()]',
        ]
    lines = [
        "import json",
        "from typing import Any",
        "",
        "",
        "def read_records(text: str) -> list[dict[str, Any]] | None:",
        '    """The objects of a JSON list; None when the text is no such list."""',
        "    try:",
        "        found = json.loads(text)",
        "    except ValueError:",
        "        return None",
        "    is_list = isinstance(found, list) and all(isinstance(each, dict) for each in found)",
        "    return found if is_list else None",
    ]
    if not is_nested(rules):
        return lines
    return [
        *lines,
        "",
        "",
        "def value_at(record: dict[str, Any], path: str) -> str | float | None:",
        '    """The value at a dotted path; None when a step of it is missing."""',
        "    found: Any = record",
        '    for step in path.split("."):',
        "        found = found.get(step) if isinstance(found, dict) else None",
        "    return found",
    ]


def is_nested(rules: TableRules) -> bool:
    return any("." in name for name in rules.main_columns)


def check(rules: TableRules) -> list[str]:
    """The lines that answer the first error."""
    if rules.source == "json":
        return ["if records is None:", f'    return "{NOT_JSON}"']
    return [f"if len(rows) < 2{' or len(others) < 2' if rules.join else ''}:", f'    return "{EMPTY}"']


def body(rules: TableRules, setting: str | None) -> list[str]:
    read = _csv_lines(rules) if rules.source == "csv" else _json_lines(rules)
    return [*read, *_row_lines(rules, setting), *_answer_lines(rules, setting)]


def _csv_lines(rules: TableRules) -> list[str]:
    columns = [f"not {_braced(rules.main_columns)} <= set(rows[0])"]
    first, ragged = "rows = split_table(table)", "len(row) != len(rows[0]) for row in rows"
    if rules.join:
        first = "rows, others = split_table(table), split_table(lookup)"
        ragged = "len(row) != len(each[0]) for each in (rows, others) for row in each"
        columns.append(f"not {_braced([rules.join.on, str(rules.key)])} <= set(others[0])")
    out = [
        first,
        *check(rules),
        f"if {' or '.join(columns)}:",
        f'    return "{NO_COLUMN}"',
        f"if any({ragged}):",
        f'    return "{RAGGED}"',
        "records: list[dict[str, Any]] = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]",
    ]
    if rules.number_columns:
        reads = [f'        record["{name}"] = float(record["{name}"])' for name in rules.number_columns]
        out += ["try:", "    for record in records:", *reads, "except ValueError:", f'    return "{NO_NUMBER}"']
    return out


def _braced(names: list[str]) -> str:
    return "{" + ", ".join(f'"{name}"' for name in names) + "}"


def _json_lines(rules: TableRules) -> list[str]:
    names = ", ".join(f'"{name}"' for name in rules.main_columns)
    get = "value_at(record, name)" if is_nested(rules) else "record.get(name)"
    out = [
        "records = read_records(table)",
        *check(rules),
        "if not records:",
        f'    return "{EMPTY}"',
        f"records = [{{name: {get} for name in [{names}]}} for record in records]",
        "if any(value is None for record in records for value in record.values()):",
        f'    return "{NO_FIELD}"',
    ]
    for name in rules.number_columns:
        out += [
            f'if not all(isinstance(record["{name}"], int | float) for record in records):',
            f'    return "{NO_NUMBER}"',
        ]
    return out


def _row_lines(rules: TableRules, setting: str | None) -> list[str]:
    """The join and the filters."""
    out = []
    if rules.join:
        on, key = f'record["{rules.join.on}"]', str(rules.key)
        lines = "reversed(others[1:])" if rules.join.repeated == "first" else "others[1:]"
        drops = rules.join.missing == "drop"
        cell, selection = (f"found[{on}]", f" if {on} in found") if drops else (f'found.get({on}, "unknown")', "")
        out += [
            f'at, to = others[0].index("{rules.join.on}"), others[0].index("{key}")',
            f"found = {{row[at]: row[to] for row in {lines}}}",
            f'records = [{{**record, "{key}": {cell}}} for record in records{selection}]',
        ]
    if rules.filters:
        conditions = [_condition(each, setting if at == 0 else None) for at, each in enumerate(rules.filters)]
        out.append(f"records = [record for record in records if {' and '.join(conditions)}]")
    return [*out, "if not records:", '    return "none"'] if rules.can_be_empty else out


def _condition(condition: Condition, setting: str | None) -> str:
    op = "==" if condition.op == "=" else condition.op
    return f'record["{condition.column}"] {op} {"threshold" if setting == "threshold" else literal(condition.value)}'


def _answer_lines(rules: TableRules, setting: str | None) -> list[str]:
    decimals = "{decimals}" if setting == "decimals" else str(rules.decimals)
    suffix = "" if rules.aggregate == "count" else f":.{decimals}f"
    value, key = f'record["{rules.value}"]', f'record["{rules.key}"]'
    computed = _COMPUTED.get(rules.aggregate or "")
    if rules.key is None:
        if rules.aggregate == "count":
            return ["return str(len(records))"]
        return [f"values = [{value} for record in records]", f'return f"{{{computed}{suffix}}}"']
    if rules.aggregate is None:
        out = [f"entries = [({key}, {value}) for record in records]"]
    elif rules.aggregate == "count":
        count = f"    counts[{key}] = counts.get({key}, 0) + 1"
        out = ["counts: dict[str, int] = {}", "for record in records:", count, "entries = list(counts.items())"]
    else:
        out = [
            "groups: dict[str, list[float]] = {}",
            "for record in records:",
            f"    groups.setdefault({key}, []).append({value})",
            f"entries = [(key, {computed}) for key, values in groups.items()]",
        ]
    if rules.order != "appearance":
        out.append(f"entries.sort(key=lambda entry: {order_key(rules)})")
    cut = "[:limit]" if setting == "limit" else f"[:{rules.top}]" if rules.top else ""
    text = "key" if rules.pair is None else f'f"{{key}}{rules.pair}{{value{suffix}}}"'
    joiner = literal("\n" if rules.joiner == "newline" else rules.joiner)
    names = "key, _" if rules.pair is None else "key, value"
    return [*out, f"return {joiner}.join({text} for {names} in entries{cut})"]


def order_key(rules: TableRules) -> str:
    """What entries are sorted by; the sort is stable, so nothing more is needed for the order of appearance."""
    if rules.order == "key":
        return "entry[0]"
    value = f"{'-' if rules.order == 'down' else ''}entry[1]"
    return f"({value}, entry[0])" if rules.tie == "key" else value


def slips(rules: TableRules, setting: str | None) -> list[list[str]]:
    """Bodies with one thing wrong: a bound, a tie, a repeated row; some may be right in all but rare cases."""
    lines = body(rules, setting)
    text = "\n".join(lines)
    value = f"{'-' if rules.order == 'down' else ''}entry[1]"
    pairs = [(f'"] {one} ', f'"] {other} ') for one, other in [(">=", ">"), (">", ">="), ("<=", "<"), ("<", "<=")]]
    pairs += [("min(values)", "min(values, key=str)"), ("max(values)", "max(values, key=str)")]
    pairs += [("min(values)", "values[0]"), ("max(values)", "values[-1]"), ("sum(values)", "sum(set(values))")]
    pairs += [(f"entry: ({value}, entry[0])", f"entry: {value}"), (f"entry: {value})", f"entry: ({value}, entry[0]))")]
    pairs += [("in reversed(others[1:])", "in others[1:]"), ("in others[1:]}", "in reversed(others[1:])}")]
    pairs += [(f"entries[:{rules.top}]", f"entries[:{(rules.top or 0) + 1}]")]
    bodies = [text.replace(right, wrong, 1).split("\n") for right, wrong in pairs if right in text]
    if rules.key and not rules.aggregate:
        bodies.append([*lines[:-1], "entries = list(dict(entries).items())", lines[-1]])
    # Rows that are equal in all columns, counted once.
    starts = ("values = ", "entries = [(r", "counts:", "groups:", "return str(")
    at = next(number for number, line in enumerate(lines) if line.startswith(starts))
    once = "records = [each for number, each in enumerate(records) if each not in records[:number]]"
    return [*bodies, [*lines[:at], once, *lines[at:]]]
