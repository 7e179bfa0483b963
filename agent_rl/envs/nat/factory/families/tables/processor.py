"""Table processors: rows of a delimited text or of a JSON list are filtered, grouped, ordered and written in a line.

Cells are plain, without quotes. `rules` samples the rules, `cases` the tables, and `code` renders the reference. The
oracle decides what is right.
"""

import random
from typing import Any

from agent_rl.envs.nat.factory.families.base import Draft, Family, Inputs, Rules, chosen_field, join_names
from agent_rl.envs.nat.factory.families.probing import select_detectable
from agent_rl.envs.nat.factory.families.tables import cases as table_cases
from agent_rl.envs.nat.factory.families.tables import code as table_code
from agent_rl.envs.nat.factory.families.tables.code import EMPTY, NO_COLUMN, NO_FIELD, NO_NUMBER, NOT_JSON, RAGGED
from agent_rl.envs.nat.factory.families.tables.rules import (
    ALONE,
    Condition,
    TableRules,
    config_fields,
    configured,
    demand_sense,
    sample_rules,
)
from agent_rl.envs.nat.spec import ConfigField, InputField, Tool

HELD_OUT = {("min", "down"), ("mean", "key")}
"""Aggregates and orders that only the generalisation set puts together."""


class TableProcessor(Family):
    name = "table_processor"
    function = "summarise"
    summary = "Answer a question about the rows of a table."
    Rules: type[Rules] = TableRules

    def draft(self, rng: random.Random, level: int) -> Draft:
        has_setting = level == 2 or (level > 2 and rng.random() < 0.5)
        setting = rng.choice(["limit", "decimals", "threshold"]) if has_setting else None
        rules = sample_rules(rng, setting, level)
        fields = [field for field in config_fields(rules) if field.name == setting]
        return _draft(rules, fields[0] if setting else None)

    def complete(self, rules: dict[str, Any], config_default: int | None, name: str = "") -> Draft:
        checked = TableRules.model_validate(rules)
        demand_sense(checked)
        if checked.key is None:  # then there is one number and nothing to order or to write beside it
            checked = checked.model_copy(update=ALONE)
        if config_default is None:
            return _draft(checked, None)
        field = chosen_field(config_fields(checked), config_default, name)
        return _draft(configured(checked, field), field)

    def remade(self, tool: Tool) -> Draft:
        field = tool.config_field
        return self.complete(tool.rules, field.default, field.name) if field else self.complete(tool.rules, None)

    def sentences(self, tool: Tool, rng: random.Random) -> list[str]:
        rules, setting = _rules(tool), _setting(tool)
        out = [rng.choice(_purposes(rules)), *_source(rules)]
        if rules.filters:
            worded = [_worded(each, setting if at == 0 else None) for at, each in enumerate(rules.filters)]
            wanted = " and ".join(worded)
            out.append(rng.choice([f"Only rows with {wanted} count.", f"Take only the rows with {wanted}."]))
        out += _form(rules, setting)
        if rules.can_be_empty:
            out.append("If no row is left, answer `none`.")
        when = {
            NOT_JSON: "no JSON list of objects",
            EMPTY: "an empty list" if rules.source == "json" else "no row below the header, or no header",
            NO_COLUMN: "a needed column is not there",
            NO_FIELD: "an object lacks a needed field",
            RAGGED: "a row has more or fewer cells than its header",
            NO_NUMBER: f"a row, used or not, has no number in {join_names(rules.number_columns or ['-'], 'or')}",
        }
        texts = "; ".join(f"{when[error]}: `{error}`" for error in tool.errors)
        return [*out, rng.choice([f"Errors, checked in this order: {texts}.", f"First check, in this order: {texts}."])]

    def body(self, tool: Tool) -> tuple[list[str], list[str]]:
        rules = _rules(tool)
        return table_code.head(rules), table_code.body(rules, _setting(tool))

    def forgotten_check(self, tool: Tool) -> list[str]:
        return table_code.check(_rules(tool))

    def subtle_bodies(self, tool: Tool) -> list[list[str]]:
        return select_detectable(self, tool, table_code.slips(_rules(tool), _setting(tool)))

    def with_default(self, tool: Tool, value: int) -> Tool:
        changed = super().with_default(tool, value)
        assert changed.config_field is not None
        rules = configured(_rules(tool), changed.config_field).model_dump()
        return changed.model_copy(update={"rules": rules})

    def valid_inputs(self, tool: Tool, rng: random.Random) -> Inputs:
        return table_cases.valid(_rules(tool), rng, is_example=not tool.example.inputs)

    def error_inputs(self, tool: Tool, rng: random.Random) -> dict[str, Inputs]:
        return {error: table_cases.provoke(_rules(tool), error, rng) for error in tool.errors}

    def edge_inputs(self, tool: Tool, rng: random.Random) -> list[Inputs]:
        return table_cases.edges(_rules(tool), rng)

    def bad_inputs(self, tool: Tool) -> Inputs:
        table = str(tool.example.inputs["table"])
        is_json = _rules(tool).source == "json"
        return {**tool.example.inputs, "table": table[:-1] if is_json else table.split("\n", maxsplit=1)[0]}

    def tested_error(self, tool: Tool) -> Inputs:
        return {**self.bad_inputs(tool), "table": "["} if _rules(tool).source == "json" else self.bad_inputs(tool)

    def is_held_out(self, rules: dict[str, Any]) -> bool:
        return (rules["aggregate"], rules["order"]) in HELD_OUT


def _draft(rules: TableRules, field: ConfigField | None) -> Draft:
    names = ["table", "lookup"] if rules.join else ["table"]
    errors = [EMPTY, NO_COLUMN, RAGGED] if rules.source == "csv" else [NOT_JSON, EMPTY, NO_FIELD]
    return Draft(
        rules=rules.model_dump(mode="json"),
        inputs=tuple(InputField(name=name, type="str") for name in names),
        errors=(*errors, NO_NUMBER) if rules.number_columns else tuple(errors),
        config_field=field,
    )


def _rules(tool: Tool) -> TableRules:
    return TableRules.model_validate(tool.rules)


def _setting(tool: Tool) -> str | None:
    return tool.config_field.name if tool.config_field else None


# ---------------------------------------------------------------- wording


def _purposes(rules: TableRules) -> list[str]:
    value, key = f"`{rules.value}`", f"`{rules.key}`"
    what = {
        "sum": f"the sum of {value}",
        "mean": f"the mean of {value}",
        "min": f"the smallest {value}",
        "max": f"the largest {value}",
        "count": "the number of rows",
    }.get(rules.aggregate or "")
    if rules.key is None:
        return [
            f"It gives {what} in a table.",
            f"I want {what} in the rows of a table.",
            f"From a table the tool works out {what}.",
        ]
    if what is None:
        return [
            f"It lists {key} and {value} of the rows of a table.",
            f"From every row of a table it takes {key} and {value}.",
            f"I want {key} and {value} of each row of a table.",
        ]
    return [
        f"For every {key} in a table it gives {what}.",
        f"It groups the rows of a table by {key} and gives {what} of each group.",
        f"I want {what} for each {key} of a table.",
    ]


def _source(rules: TableRules) -> list[str]:
    if rules.source == "json":
        paths = [name for name in rules.main_columns if "." in name]
        example = f"; `{paths[0]}` is the field `{paths[0].split('.')[1]}` of the object in the field " if paths else ""
        where = f"{example}`{paths[0].split('.')[0]}`" if paths else ""
        return [f"`table` is a JSON list of objects{where}."]
    divider = "tabs" if rules.delimiter == "tab" else f"`{rules.delimiter}`"
    names = "`table` and `lookup` are each" if rules.join else "`table` is"
    spaces = " Spaces around a cell do not belong to it." if rules.trim else ""
    out = [f"{names} a header line and one line for each row, with {divider} between cells; skip blank lines.{spaces}"]
    out.append("Columns are found by their names.")
    if rules.join:
        on = rules.join.on
        missing = "does not count" if rules.join.missing == "drop" else f"has the `{rules.key}` `unknown`"
        twice = f"of two rows with one `{on}` in `lookup` the {rules.join.repeated} holds"
        out += [
            f"The `{rules.key}` of a row of `table` stands in `lookup`, in the row with the same `{on}`.",
            f"A row whose `{on}` is not in `lookup` {missing}; {twice}.",
        ]
    return out


def _worded(condition: Condition, setting: str | None) -> str:
    wanted = "threshold" if setting == "threshold" else condition.value
    return f"`{condition.column} {condition.op} {wanted}`"


def _form(rules: TableRules, setting: str | None) -> list[str]:
    """Order, number and shape of what is written."""
    decimals = (
        "`decimals` decimals" if setting == "decimals" else f"{rules.decimals} decimal{'s' * (rules.decimals != 1)}"
    )
    is_plain = rules.aggregate == "count" or rules.pair is None
    digits = [] if is_plain else [f"Write numbers with exactly {decimals}, rounded."]
    if rules.key is None:
        return digits
    tie = (
        f"the `{rules.key}` first in the alphabet" if rules.tie == "key" else "the one that appears first in the table"
    )
    order = {
        "appearance": "Keep them in the order in which they first appear.",
        "key": f"Sort them by `{rules.key}`, from A to Z; what is equal there stays in the order of the rows.",
        "up": f"The smallest number comes first, on a tie {tie}.",
        "down": f"The largest number comes first, on a tie {tie}.",
    }[rules.order]
    if rules.order == "key" and rules.aggregate:
        order = f"Sort them by `{rules.key}`, from A to Z."
    top = "`limit`" if setting == "limit" else rules.top
    cut = [f"Only the first {top} are written."] if top else []
    shape = f"only the `{rules.key}`" if rules.pair is None else f"`{rules.key}{rules.pair}number`"
    between = "on lines of their own" if rules.joiner == "newline" else f"joined by `{rules.joiner}`"
    return [order, *cut, f"Write {shape} of each, {between}.", *digits]
