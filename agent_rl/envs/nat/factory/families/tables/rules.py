"""Rules of table processors: the tables, what is selected from them, and how the answer is written.

Samples rules. `processor` words and renders what they mean, and the oracle decides it.
"""

import random
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from agent_rl.envs.nat.factory.families.base import Rules
from agent_rl.envs.nat.spec import ConfigField

WORDS: dict[str, list[str]] = {
    "city": ["Cairo", "Kyoto", "Lima", "Oslo", "Rome"],
    "item": ["cup", "desk", "lamp", "pen", "rug"],
    "team": ["blue", "gold", "green", "grey", "red"],
    "genre": ["crime", "drama", "essay", "poetry", "travel"],
    "status": ["done", "late", "new", "open", "paid"],
    "code": ["a1", "b2", "c3", "d4"],
}
"""Text columns with what their cells hold; `code` connects two tables."""
RANGES: dict[str, tuple[int, int, int]] = {
    "qty": (1, 30, 0),
    "hours": (0, 12, 0),
    "points": (-20, 40, 0),
    "price": (1, 90, 2),
    "weight": (1, 15, 1),
    "rain": (0, 20, 1),
}
"""Number columns with the smallest and largest cell, and the decimals of a cell."""
NAME = r"^[a-z]+(\.[a-z]+)?$"
Name = Annotated[str, Field(pattern=NAME, description=f"A column: one of {sorted([*WORDS, *RANGES])}")]
Plain = Annotated[str, Field(pattern=r"^[A-Za-z0-9]+$")]


class Condition(Rules):
    """A row is kept if its cell compares so; texts are only compared by `=` and `!=`."""

    column: Name
    op: Literal["=", "!=", ">", ">=", "<", "<="]
    value: int | Plain


class Join(Rules):
    """`key` comes from the row of the second table that has the same cell in `on`."""

    on: Name
    missing: Literal["drop", "unknown"]
    repeated: Literal["first", "last"]


class TableRules(Rules):
    source: Literal["csv", "json"]
    delimiter: Literal[",", ";", "|", "tab"] | None
    trim: bool
    """Whether cells can have spaces around them, which do not count; else there are none."""
    join: Join | None
    filters: list[Condition] = Field(max_length=2)
    key: Name | None
    """The column that groups, or names a row; None: one number for the whole table."""
    aggregate: Literal["sum", "mean", "min", "max", "count"] | None
    """None: every row stands for itself."""
    value: Name | None
    """The number column; None to count rows."""
    decimals: int = Field(ge=0, le=6)
    order: Literal["appearance", "key", "up", "down"]
    """`up` and `down` go by the value."""
    tie: Literal["key", "appearance"]
    top: int | None = Field(ge=1, le=20)
    pair: Literal["=", ": ", "->"] | None
    """What stands between key and value; None: only keys are written."""
    joiner: Literal["; ", ", ", " / ", "newline"]

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.source == "csv") != (self.delimiter is not None):
            raise ValueError("delimiter: a csv table has one, a json table has none")
        if (self.value is None) != (self.aggregate == "count"):
            raise ValueError("value: every aggregate but count needs a column")
        if self.key is None and (self.aggregate is None or self.join is not None):
            raise ValueError("key: only an aggregate of a single table goes without one")
        return self

    @property
    def main_columns(self) -> list[str]:
        """Columns that the first table must have."""
        names = [each.column for each in self.filters]
        names += [self.join.on] if self.join else [self.key] if self.key else []
        return list(dict.fromkeys([*names, *([self.value] if self.value else [])]))

    @property
    def number_columns(self) -> list[str]:
        return [name for name in self.main_columns if is_number(name)]

    @property
    def can_be_empty(self) -> bool:
        """Whether all rows can be lost on the way."""
        return bool(self.filters) or (self.join is not None and self.join.missing == "drop")


ALONE = {"order": "appearance", "tie": "appearance", "top": None, "pair": "=", "joiner": "; "}
"""Of a table that is answered with one number."""


def is_number(column: str) -> bool:
    return leaf(column) in RANGES


def leaf(column: str) -> str:
    """The last step of a path."""
    return column.rsplit(".", maxsplit=1)[-1]


def sample_rules(rng: random.Random, setting: str | None, level: int) -> TableRules:
    """Rules that have the configuration field `setting`: `limit`, `decimals`, `threshold` or none."""
    shape = rng.choice(["join", "nested"]) if level > 2 else rng.choice(["csv", "csv", "json"])
    source = "csv" if shape in ("csv", "join") else "json"
    key, label = rng.sample([name for name in sorted(WORDS) if name != "code"], 2)
    value, other = rng.sample(sorted(RANGES), 2)
    if shape == "nested":
        key, value = f"{rng.choice(['place', 'owner'])}.{key}", f"stats.{value}"
    aggregate = rng.choice(["sum", "mean", "min", "max", "count", None])
    if setting == "decimals" and aggregate == "count":
        aggregate = "mean"
    alone = shape in ("csv", "json") and aggregate and setting != "limit" and rng.random() < 0.3
    filters = _filters(rng, value, other, label, level)
    if setting == "threshold" or (alone and not filters):
        filters = [_number_condition(rng, rng.choice([value, other]))]
    order = rng.choice(["appearance", "key", "up", "down", "down"])
    top = None if alone else rng.randint(2, 3) if setting == "limit" or rng.random() < 0.4 else None
    keys_only = not alone and order in ("up", "down") and setting != "decimals" and rng.random() < 0.25
    return TableRules(
        source=source,
        delimiter=rng.choice([",", ";", "|", "tab"]) if source == "csv" else None,
        trim=source == "csv" and rng.random() < 0.3,
        join=_join(rng) if shape == "join" else None,
        filters=filters,
        key=None if alone else key,
        aggregate=aggregate,
        value=None if aggregate == "count" else value,
        decimals=0 if aggregate == "count" else rng.randint(1 if aggregate == "mean" else 0, 3),
        order="appearance" if alone else order,
        tie=rng.choice(["key", "appearance"]) if order in ("up", "down") and not alone else "appearance",
        top=top,
        pair=None if keys_only else "=" if alone else rng.choice(["=", ": ", "->"]),
        joiner="; " if alone else rng.choice(["; ", ", ", " / ", "newline"]),
    )


def _join(rng: random.Random) -> Join:
    return Join(on="code", missing=rng.choice(["drop", "unknown"]), repeated=rng.choice(["first", "last"]))


def _filters(rng: random.Random, value: str, other: str, label: str, level: int) -> list[Condition]:
    """None or one at the lower levels, then one or two; the first is about a number."""
    number = _number_condition(rng, rng.choice([value, other]))
    text = Condition(column=label, op=rng.choice(["=", "!=", "!="]), value=rng.choice(WORDS[label]))
    if level <= 2:
        return rng.choice([[], [number], [number], [text]])
    return rng.choice([[number], [number, text]])


def _number_condition(rng: random.Random, column: str) -> Condition:
    low, high, _ = RANGES[leaf(column)]
    third = (high - low) // 3
    return Condition(column=column, op=rng.choice([">", ">=", "<", "<="]), value=rng.randint(low + third, high - third))


def config_fields(rules: TableRules) -> list[ConfigField]:
    """What of the rules can be made a setting, with their values as defaults."""
    out = []
    if rules.top is not None:
        out.append(ConfigField(name="limit", default=rules.top, low=1, high=20, description="Entries in the answer."))
    if rules.aggregate != "count" and rules.pair is not None:
        text = "Digits after the decimal point."
        out.append(ConfigField(name="decimals", default=rules.decimals, low=0, high=6, description=text))
    if rules.filters and isinstance(wanted := rules.filters[0].value, int):
        column = rules.filters[0].column
        low, high, _ = RANGES[leaf(column)]
        text = f"What `{column}` is compared with."
        out.append(ConfigField(name="threshold", default=wanted, low=low, high=high, description=text))
    return out


def configured(rules: TableRules, field: ConfigField) -> TableRules:
    """The rules with the field's default where they have it."""
    if field.name == "threshold":
        first = rules.filters[0].model_copy(update={"value": field.default})
        return rules.model_copy(update={"filters": [first, *rules.filters[1:]]})
    return rules.model_copy(update={{"limit": "top", "decimals": "decimals"}[field.name]: field.default})


def demand_sense(rules: TableRules) -> None:
    """Raises ValueError for columns that no table can be sampled for, and for rules that contradict each other."""
    names = list(dict.fromkeys([*rules.main_columns, *([rules.key] if rules.key else [])]))
    known = {*WORDS, *RANGES}
    if unknown := [name for name in names if leaf(name) not in known or ("." in name and rules.source == "csv")]:
        raise ValueError(f"columns are {sorted(known)}, in json tables also OBJECT.COLUMN, got {unknown}")
    if not names or {name.partition(".")[0] for name in names if "." in name} & {*names}:
        raise ValueError(f"there must be columns, and none of them may hold another, got {names}")
    if (rules.key and is_number(rules.key)) or (rules.value and not is_number(rules.value)):
        raise ValueError(f"key is a column of texts, value one of numbers, got {rules.key} and {rules.value}")
    for each in rules.filters:
        if isinstance(each.value, int) != is_number(each.column):
            raise ValueError(f"{each.column} is compared with {each.value!r}, which is of another kind")
        if isinstance(each.value, int) and not (ends := RANGES[leaf(each.column)])[0] < each.value < ends[1]:
            raise ValueError(f"{each.column} goes from {ends[0]} to {ends[1]}, it cannot be compared with {each.value}")
        if isinstance(each.value, str) and each.op not in ("=", "!="):
            raise ValueError(f"texts are compared by = and !=, got {each.op}")
    if rules.join and rules.source == "json":
        raise ValueError("only csv tables are joined")
    if rules.join and (
        is_number(rules.join.on) or rules.key in (rules.join.on, *(each.column for each in rules.filters))
    ):
        raise ValueError("join: `on` is a column of texts, and `key` stands in the second table alone")
