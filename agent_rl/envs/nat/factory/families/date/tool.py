"""Date tools: one operation on dates written in a given layout.

The clock, the locale and names of time zones are never read. Dates without their leading zeros occur only where the
rules forbid them. The operations are in `operations`, `calendar` and `workdays`.
"""

import random
from datetime import date, datetime
from typing import Annotated, Any

from pydantic import Field

from agent_rl.envs.nat.factory.families.base import Draft, Family, Inputs, Rules
from agent_rl.envs.nat.factory.families.date.calendar import NthWeekday, Period, ToZone, Weekday
from agent_rl.envs.nat.factory.families.date.operations import (
    BAD_DATE,
    LAYOUTS,
    DateOperation,
    Difference,
    Given,
    Layout,
    Shift,
    pattern,
)
from agent_rl.envs.nat.factory.families.date.workdays import AddWorkdays, Workdays
from agent_rl.envs.nat.factory.families.probing import select_detectable
from agent_rl.envs.nat.spec import Tool

EASY: list[type[DateOperation]] = [Shift, Difference, Weekday, Period, Workdays, AddWorkdays]
HARD: list[type[DateOperation]] = [NthWeekday, NthWeekday, ToZone, ToZone, AddWorkdays, Shift]


_SET_BY = {"max_amount": "limit", "max_count": "limit", "period": "period", "offset_minutes": "offset"}
"""Configuration fields whose default is in the operation too."""


class DateRules(Rules):
    layout: Layout
    leading_zeros: bool
    """Whether a date without them is refused; else none is ever asked."""
    operation: Annotated[
        Shift | Difference | Weekday | Period | Workdays | AddWorkdays | NthWeekday | ToZone, Field(discriminator="op")
    ]


class DateTool(Family):
    name = "date_tool"
    function = "shift"
    summary = "Answer a question about dates."
    Rules = DateRules

    def draft(self, rng: random.Random, level: int) -> Draft:
        setting = level == 2 or (level > 2 and rng.random() < 0.5)
        layout = rng.choice(LAYOUTS)
        operation = rng.choice(HARD if level > 2 else EASY).sample(rng, layout, setting)
        zeros = level > 2 and operation.reader == "read_date" and rng.random() < 0.6
        rules = DateRules.model_validate(
            {"layout": layout, "leading_zeros": zeros, "operation": operation.model_dump(mode="json")}
        )
        return self.complete(rules.model_dump(mode="json"), operation.config_field().default if setting else None)

    def complete(self, rules: dict[str, Any], config_default: int | None) -> Draft:
        checked = DateRules.model_validate(rules)
        operation, setting = checked.operation, config_default is not None
        operation.demand_sense(setting)
        if checked.leading_zeros and operation.reader != "read_date":
            raise ValueError("leading_zeros is about dates, not about moments")
        field = None
        if config_default is not None:
            field = operation.config_field().model_copy(update={"default": config_default})
            operation = operation.model_copy(
                update={_SET_BY[field.name]: config_default} if field.name in _SET_BY else {}
            )
        return Draft(
            rules=checked.model_copy(update={"operation": operation}).model_dump(mode="json"),
            inputs=operation.inputs,
            errors=(BAD_DATE, *operation.refusals(setting)),
            config_field=field,
        )

    def sentences(self, tool: Tool, rng: random.Random) -> list[str]:
        rules, setting = _rules(tool), tool.config_field is not None
        operation = rules.operation
        what = rng.choice(operation.phrases(setting))
        kind = "moment" if operation.reader == "read_moment" else "date"
        refusals = {BAD_DATE: f"a text that is no such {kind}", **operation.refusals(setting)}
        texts = [f"{when} gives `{error}`" for error, when in refusals.items()]
        order = rng.choice(["Errors, checked in this order: ", "Check in this order: "]) if texts[1:] else "Error: "
        return [
            rng.choice([f"It {what}.", f"I want a tool that {what}.", f"The tool {what}."]),
            *_layouts(rules),
            *operation.details(setting, lambda day: day.strftime(pattern(rules.layout))),
            f"{order}{'; '.join(texts)}.",
        ]

    def body(self, tool: Tool) -> tuple[list[str], list[str]]:
        rules, setting = _rules(tool), tool.config_field is not None
        reads = ", ".join(f"{rules.operation.reader}({field.name})" for field in tool.inputs if field.type == "str")
        names = "first, last" if "," in reads else "first"
        lines = [f"{names} = {reads}", *self.forgotten_check(tool), *rules.operation.lines(setting)]
        imports = ["import calendar"] if any("calendar." in line for line in lines) else []
        return [*imports, *_reader(rules)], lines

    def forgotten_check(self, tool: Tool) -> list[str]:
        num_dates = sum(field.type == "str" for field in tool.inputs)
        condition = "first is None" if num_dates == 1 else "first is None or last is None"
        return [f"if {condition}:", f'    return "{BAD_DATE}"']

    def subtle_bodies(self, tool: Tool) -> list[list[str]]:
        text = "\n".join(self.body(tool)[1])
        slips = _rules(tool).operation.slips(tool.config_field is not None)
        return select_detectable(self, tool, [text.replace(right, wrong, 1).split("\n") for right, wrong in slips])

    def valid_inputs(self, tool: Tool, rng: random.Random) -> Inputs:
        rules = _rules(tool)
        return _written(rules.operation.given(rng), rules.layout)

    def error_inputs(self, tool: Tool, rng: random.Random) -> dict[str, Inputs]:
        rules = _rules(tool)
        bad = self.valid_inputs(tool, rng)
        name = rng.choice([field.name for field in tool.inputs if field.type == "str"])
        bad[name] = _spoilt(str(bad[name]), rules, rng)
        provoked = rules.operation.provoke(rng)
        return {BAD_DATE: bad, **{error: _written(given, rules.layout) for error, given in provoked.items()}}

    def bad_inputs(self, tool: Tool) -> Inputs:
        name = tool.inputs[0].name
        text = str(tool.example.inputs[name])
        return {**tool.example.inputs, name: _with(text, _rules(tool).layout, "MM", "13")}

    def is_held_out(self, rules: dict[str, object]) -> bool:
        operation = DateRules.model_validate(rules).operation
        return any(operation.model_dump().items() >= combination.items() for combination in HELD_OUT)


HELD_OUT: list[dict[str, object]] = [
    {"op": "shift", "unit": "months", "month_end": "overflow"},
    {"op": "difference", "unit": "periods_rest", "reversed": "absolute", "inclusive": True},
    {"op": "period", "period": "quarter", "side": "first"},
    {"op": "workdays", "weekend": ["Friday", "Saturday"]},
    {"op": "nth_weekday", "nth": "last"},
]
"""Parts of operations that only the generalisation set uses."""


def _rules(tool: Tool) -> DateRules:
    return DateRules.model_validate(tool.rules)


def _layouts(rules: DateRules) -> list[str]:
    """How dates are written, in the inputs and in the answer."""
    operation = rules.operation
    if operation.reader == "read_moment":
        zone = "at its end how far its zone is ahead of UTC (with `-` behind it)"
        written = f"`moment` is written `{rules.layout} HH:MM+HH:MM`, {zone}"
    else:
        written = f"Dates are written `{rules.layout}`"
    out = [f"{written}, always with leading zeros, or they are no dates." if rules.leading_zeros else f"{written}."]
    if operation.answer_layout not in (None, rules.layout):
        out.append(f"In the answer dates are written `{operation.answer_layout}`.")
    return out


def _reader(rules: DateRules) -> list[str]:
    layout = pattern(rules.layout)
    is_moment = rules.operation.reader == "read_moment"
    if is_moment:
        layout += " %H:%M%z"
    kind, found = "datetime.date", f'datetime.datetime.strptime(text, "{layout}")'
    reads = ["    try:", f"        return {found}.date()", "    except ValueError:", "        return None"]
    if is_moment:
        kind = "datetime.datetime"
        reads[1] = f"        return {found}"
    elif rules.leading_zeros:
        reads[1] = f"        found = {found}"
        reads.append(f'    return found.date() if found.strftime("{layout}") == text else None')
    constants = rules.operation.constants()
    return [
        "import datetime",
        *(["", *constants] if constants else []),
        "",
        "",
        f"def {rules.operation.reader}(text: str) -> {kind} | None:",
        f'    """The {"moment" if is_moment else "date"} that the text names; None when it names none."""',
        *reads,
    ]


def _written(given: Given, layout: str) -> Inputs:
    """The inputs as texts and numbers."""
    return {name: value if isinstance(value, int) else _text(value, layout) for name, value in given.items()}


def _text(value: date, layout: str) -> str:
    text = value.strftime(pattern(layout))
    return f"{text} {value.isoformat()[11:16]}{value.isoformat()[-6:]}" if isinstance(value, datetime) else text


def _with(text: str, layout: str, letters: str, digits: str) -> str:
    """The text with other digits where the layout has `letters`."""
    at = layout.index(letters)
    return text[:at] + digits + text[at + len(letters) :]


def _spoilt(text: str, rules: DateRules, rng: random.Random) -> str:
    """A text that is nearly a date, and no date by any reading."""
    layout = rules.layout
    out = [
        _with(text, layout, "MM", rng.choice(["13", "00"])),
        _with(_with(text, layout, "MM", "02"), layout, "DD", "30"),
        _with(_with(text, layout, "MM", rng.choice(["04", "06", "09", "11"])), layout, "DD", "31"),
        _with(_with(_with(text, layout, "MM", "02"), layout, "DD", "29"), layout, "YYYY", rng.choice(["2023", "2100"])),
        rng.choice(["", "tomorrow", text + " x", text[:-1] + "x"]),
    ]
    if rules.operation.reader == "read_moment":
        out += [text[:-6], text[: len(layout)] + " 24:10" + text[-6:]]
    if rules.leading_zeros:
        out += [_with(text, layout, "MM", "5")] * 3
    return rng.choice(out)
