"""Interface of a date tool's operations, and the two that only count days and months.

An operation is the `operation` of a date tool's rules. It knows nothing of how dates are written in its inputs: it
samples `date` objects. Does not: decide the right answer.
"""

import random
from abc import ABC, abstractmethod
from calendar import monthrange
from collections.abc import Callable
from datetime import date, timedelta
from typing import ClassVar, Literal, Self, get_args

from pydantic import Field

from agent_rl.envs.nat.factory.families.base import Rules
from agent_rl.envs.nat.spec import ConfigField, InputField

Layout = Literal[
    "YYYY-MM-DD", "YYYY/MM/DD", "YYYYMMDD", "DD.MM.YYYY", "DD-MM-YYYY", "DD/MM/YYYY", "MM/DD/YYYY", "MM-DD-YYYY"
]  # fmt: skip
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
DayName = Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
DAY_NAMES: tuple[DayName, ...] = get_args(DayName)
Given = dict[str, date | int]
"""Inputs by name, dates not yet written."""
BAD_DATE = "error: bad date"
REVERSED = "error: end before start"
NO_DAY = "error: no such day"


def pattern(layout: str) -> str:
    """The layout as `strftime` writes it."""
    return layout.replace("YYYY", "%Y").replace("MM", "%m").replace("DD", "%d")


def some_day(rng: random.Random) -> date:
    """A date; leap days, month ends and years' ends come often."""
    year = rng.choice([1900, 2000, 2100]) if rng.random() < 0.06 else rng.randint(2019, 2029)
    month = 2 if rng.random() < 0.15 else rng.randint(1, 12)
    last = monthrange(year, month)[1]
    return date(year, month, rng.choice([1, last - 1, last]) if rng.random() < 0.4 else rng.randint(1, last))


class DateOperation(Rules, ABC):
    """One thing to do with dates. `setting`: whether the tool has the operation's configuration field."""

    inputs: ClassVar[tuple[InputField, ...]]
    reader: ClassVar[str] = "read_date"

    @classmethod
    @abstractmethod
    def sample(cls, rng: random.Random, layout: Layout, setting: bool) -> Self: ...

    @abstractmethod
    def config_field(self) -> ConfigField: ...

    def demand_sense(self, setting: bool) -> None:
        """Raises ValueError when the operation contradicts itself."""

    @abstractmethod
    def phrases(self, setting: bool) -> list[str]:
        """What it does, in the third person, in different words."""

    @abstractmethod
    def details(self, setting: bool, show: Callable[[date], str]) -> list[str]:
        """Whole sentences for all that `phrases` leave open, but the errors; `show` writes a date like the inputs."""

    @abstractmethod
    def lines(self, setting: bool) -> list[str]:
        """Reference code after the dates have been read; the last line returns the answer."""

    @abstractmethod
    def slips(self, setting: bool) -> list[tuple[str, str]]:
        """A piece of `lines` and the buggy text that replaces it."""

    @abstractmethod
    def given(self, rng: random.Random) -> Given: ...

    def refusals(self, setting: bool) -> dict[str, str]:
        """Error text -> when it is given, for the errors that come after that of a bad date, in their order."""
        return {}

    def provoke(self, rng: random.Random) -> dict[str, Given]:
        """For each of `refusals` something that is answered with it, under the default configuration."""
        return {}

    def constants(self) -> list[str]:
        """Module-level lines."""
        return []

    @property
    def answer_layout(self) -> Layout | None:
        """How dates in the answer are written; None when it holds none."""
        return getattr(self, "out_layout", None)


def out_layout(rng: random.Random, layout: Layout) -> Layout:
    return layout if rng.random() < 0.6 else rng.choice(LAYOUTS)


# ---------------------------------------------------------------- shapes: a date and a number, two dates


class Stepped(DateOperation):
    """A date and a whole number with bounds."""

    number: ClassVar[str] = "amount"
    least: ClassVar[int] = 0
    limit: int = Field(ge=1, le=400)
    out_layout: Layout

    @property
    def is_signed(self) -> bool:
        return bool(getattr(self, "signed", False))

    def config_field(self) -> ConfigField:
        name, top = f"max_{self.number}", 20 if self.number == "count" else 400
        return ConfigField(
            name=name, default=self.limit, low=1, high=top, description=f"Largest {self.number} that is accepted."
        )

    def bounds(self, setting: bool) -> tuple[str, str]:
        high = f"max_{self.number}" if setting else str(self.limit)
        return (f"-{high}" if self.is_signed else str(self.least)), high

    def range_error(self) -> str:
        return f"error: {self.number} out of range"

    def range_check(self, setting: bool) -> list[str]:
        low, high = self.bounds(setting)
        return [f"if not {low} <= {self.number} <= {high}:", f'    return "{self.range_error()}"']

    def slips(self, setting: bool) -> list[tuple[str, str]]:
        high = self.bounds(setting)[1]
        return [(f"{self.number} <= {high}", f"{self.number} < {high}")]

    def refusals(self, setting: bool) -> dict[str, str]:
        low, high = (f"`{each}`" if setting and "max" in each else each for each in self.bounds(setting))
        return {self.range_error(): f"`{self.number}` outside {low} to {high}"}

    def step(self, rng: random.Random) -> int:
        """A number within the bounds, often the largest."""
        low = -self.limit if self.is_signed else self.least
        return rng.choice([self.limit, self.limit, low]) if rng.random() < 0.75 else rng.randint(low, self.limit)

    def given(self, rng: random.Random) -> Given:
        return {"day": some_day(rng), self.number: self.step(rng)}

    def provoke(self, rng: random.Random) -> dict[str, Given]:
        outside = self.limit + rng.choice([1, 7])
        below = -outside if self.is_signed else self.least - 1
        return {self.range_error(): {"day": some_day(rng), self.number: rng.choice([outside, below])}}


class Paired(DateOperation):
    """Two dates, `start` and `end`; the end must not be the earlier one."""

    inputs = (InputField(name="start", type="str"), InputField(name="end", type="str"))

    @property
    def is_strict(self) -> bool:
        return True

    def reversed_check(self) -> list[str]:
        return ["if last < first:", f'    return "{REVERSED}"'] if self.is_strict else []

    def refusals(self, setting: bool) -> dict[str, str]:
        return {REVERSED: "an `end` before `start`"} if self.is_strict else {}

    def provoke(self, rng: random.Random) -> dict[str, Given]:
        first = some_day(rng)
        return (
            {REVERSED: {"start": first, "end": first - timedelta(days=rng.choice([1, 30]))}} if self.is_strict else {}
        )


# ---------------------------------------------------------------- operations


class Shift(Stepped):
    """Add days, weeks or months."""

    inputs = (InputField(name="day", type="str"), InputField(name="amount", type="int"))
    op: Literal["shift"] = "shift"
    unit: Literal["days", "weeks", "months"]
    month_end: Literal["clip", "overflow", "refuse"]
    """What becomes of 31 January plus one month."""
    signed: bool

    @classmethod
    def sample(cls, rng: random.Random, layout: Layout, setting: bool) -> Self:
        return cls(
            unit=rng.choice(["days", "weeks", "months", "months"]),
            month_end=rng.choice(["clip", "overflow", "refuse"]),
            signed=rng.random() < 0.5,
            limit=rng.choice([12, 18, 24, 36, 48, 60]),
            out_layout=out_layout(rng, layout),
        )

    def phrases(self, setting: bool) -> list[str]:
        return [f"adds `amount` {self.unit} to `day`", f"moves `day` by `amount` {self.unit}"]

    def details(self, setting: bool, show: Callable[[date], str]) -> list[str]:
        out = ["A negative `amount` goes back."] if self.signed else []
        if self.unit == "months" and self.month_end == "clip":
            out.append("If the month has no such day, take its last day.")
        elif self.unit == "months" and self.month_end == "overflow":
            out.append("Days that the month lacks run on into the next one: April 31 is May 1.")
        return out

    def refusals(self, setting: bool) -> dict[str, str]:
        refuses = self.unit == "months" and self.month_end == "refuse"
        return super().refusals(setting) | ({NO_DAY: "a month without that day"} if refuses else {})

    def lines(self, setting: bool) -> list[str]:
        out = self.range_check(setting)
        answer = f'return result.strftime("{pattern(self.out_layout)}")'
        if self.unit != "months":
            return [*out, f"result = first + datetime.timedelta({self.unit}=amount)", answer]
        out += ["index = first.year * 12 + first.month - 1 + amount", "year, month = index // 12, index % 12 + 1"]
        if self.month_end == "overflow":
            out.append("result = datetime.date(year, month, 1) + datetime.timedelta(days=first.day - 1)")
        else:
            out.append("length = calendar.monthrange(year, month)[1]")
            if self.month_end == "refuse":
                out += ["if first.day > length:", f'    return "{NO_DAY}"']
            day = "first.day" if self.month_end == "refuse" else "min(first.day, length)"
            out.append(f"result = datetime.date(year, month, {day})")
        return [*out, answer]

    def slips(self, setting: bool) -> list[tuple[str, str]]:
        out = super().slips(setting)
        if self.unit == "months" and self.month_end != "refuse":
            overflows = self.month_end == "overflow"
            out.append(("first.day - 1", "min(first.day, 28) - 1") if overflows else (", length)", ", 28)"))
        return out

    def given(self, rng: random.Random) -> Given:
        first, amount = some_day(rng), self.step(rng)
        if self.unit == "months" and self.month_end == "refuse":
            return {"day": first.replace(day=min(first.day, 28)), "amount": amount}
        if self.unit == "months" and rng.random() < 0.6:
            first = date(first.year, rng.choice([1, 3, 5, 7, 8, 10, 12]), rng.randint(29, 31))
        return {"day": first, "amount": amount}

    def provoke(self, rng: random.Random) -> dict[str, Given]:
        last = date(rng.randint(2019, 2029), rng.choice([1, 3, 5, 8, 10]), 31)
        no_day: dict[str, Given] = {NO_DAY: {"day": last, "amount": 1}} if NO_DAY in self.refusals(False) else {}
        return super().provoke(rng) | no_day


class Difference(Paired):
    """Days, or whole periods of days, from one date to another."""

    op: Literal["difference"] = "difference"
    unit: Literal["days", "periods", "periods_rest"]
    period: int = Field(ge=2, le=60)
    inclusive: bool
    reversed: Literal["refuse", "absolute", "signed"]

    @classmethod
    def sample(cls, rng: random.Random, layout: Layout, setting: bool) -> Self:
        unit = rng.choice(["periods", "periods_rest"] if setting else ["days", "periods", "periods_rest"])
        order = rng.choice(["refuse", "absolute", "signed"] if unit == "days" else ["refuse", "absolute"])
        return cls(
            unit=unit,
            period=rng.choice([7, 7, 10, 14, 30]),
            inclusive=order != "signed" and rng.random() < 0.5,
            reversed=order,
        )

    def demand_sense(self, setting: bool) -> None:
        if self.reversed == "signed" and (self.inclusive or self.unit != "days"):
            raise ValueError("only days that are not counted inclusively can be signed")
        if setting and self.unit == "days":
            raise ValueError("a difference in days has no configuration field, periods have")

    def config_field(self) -> ConfigField:
        return ConfigField(name="period", default=self.period, low=2, high=60, description="Days in a period.")

    @property
    def is_strict(self) -> bool:
        return self.reversed == "refuse"

    def phrases(self, setting: bool) -> list[str]:
        period = "`period`" if setting else self.period
        what = "days" if self.unit == "days" else f"whole periods of {period} days"
        return [f"counts the {what} from `start` to `end`", f"says how many {what} there are from `start` to `end`"]

    def details(self, setting: bool, show: Callable[[date], str]) -> list[str]:
        out = ["Both `start` and `end` count." if self.inclusive else "One of the two days counts, not both."]
        if self.unit == "periods_rest":
            out.append("Write the periods and the days left over as `3 r 2`.")
        if self.reversed == "absolute":
            out.append("An `end` before `start` is counted the same way, as if they were exchanged.")
        elif self.reversed == "signed":
            out.append("With `end` before `start` the number is negative.")
        return out

    def lines(self, setting: bool) -> list[str]:
        days = "abs((last - first).days)" if self.reversed == "absolute" else "(last - first).days"
        period = "period" if setting else str(self.period)
        answer = {
            "days": "str(days)",
            "periods": f"str(days // {period})",
            "periods_rest": f'f"{{days // {period}}} r {{days % {period}}}"',
        }[self.unit]
        plus = " + 1" if self.inclusive else ""
        return [*self.reversed_check(), f"days = {days}{plus}", f"return {answer}"]

    def slips(self, setting: bool) -> list[tuple[str, str]]:
        return {
            "refuse": [("last < first", "last <= first")],
            "absolute": [("abs((last - first).days)", "(last - first).days")],
            "signed": [("(last - first).days", "abs((last - first).days)")],
        }[self.reversed]

    def given(self, rng: random.Random) -> Given:
        first = some_day(rng)
        gap = 0 if rng.random() < 0.4 else rng.choice([1, self.period, rng.randint(2, 400), rng.randint(2, 400)])
        if not self.is_strict and rng.random() < 0.6:
            gap = -rng.randint(1, 400)
        return {"start": first, "end": first + timedelta(days=gap)}
