"""Operations of date tools on working days: weekends and holidays come from the rules.

What the right answer is, is not decided here.
"""

import random
from collections.abc import Callable
from datetime import date, timedelta
from typing import Annotated, Literal, Self

from pydantic import Field

from agent_rl.envs.nat.factory.families.base import join_names
from agent_rl.envs.nat.factory.families.date.operations import (
    DAY_NAMES,
    DateOperation,
    DayName,
    Given,
    Layout,
    Paired,
    Stepped,
    out_layout,
    pattern,
    some_day,
)
from agent_rl.envs.nat.spec import ConfigField, InputField

IsoDate = Annotated[str, Field(pattern=r"^20\d\d-\d\d-\d\d$")]


class Working(DateOperation):
    """Days off: some weekdays and a list of holidays."""

    weekend: list[DayName] = Field(min_length=1, max_length=2)
    holidays: list[IsoDate] = Field(min_length=1)

    @staticmethod
    def sample_days_off(rng: random.Random) -> tuple[list[DayName], list[str]]:
        weekend = rng.choice([["Saturday", "Sunday"], ["Saturday", "Sunday"], ["Friday", "Saturday"], ["Sunday"]])
        year, days = rng.randint(2019, 2029), set()
        size = rng.randint(1, 4)
        while len(days) < size:
            day = date(year, rng.randint(1, 12), rng.randint(1, 28))
            if DAY_NAMES[day.weekday()] not in weekend:
                days.add(day.isoformat())
        return weekend, sorted(days)

    def demand_sense(self, setting: bool) -> None:
        days = [date.fromisoformat(each) for each in self.holidays]
        if len({*days}) < len(days) or len({*self.weekend}) < len(self.weekend):
            raise ValueError("a day is named twice among the days off")

    def details(self, setting: bool, show: Callable[[date], str]) -> list[str]:
        holidays = join_names([show(date.fromisoformat(each)) for each in self.holidays])
        return [f"Every {' and '.join(self.weekend)} is off, and so {'are' if self.holidays[1:] else 'is'} {holidays}."]

    def constants(self) -> list[str]:
        days = [date.fromisoformat(each) for each in self.holidays]
        lines = [f"    datetime.date({each.year}, {each.month}, {each.day})," for each in days]
        weekend = ", ".join(str(DAY_NAMES.index(name)) for name in self.weekend)
        return [f"WEEKEND = {{{weekend}}}", "HOLIDAYS = {", *lines, "}"]

    def near(self, rng: random.Random) -> date:
        """A day up to ten days before a holiday, or any day."""
        holiday = date.fromisoformat(rng.choice(self.holidays))
        return holiday - timedelta(days=rng.randint(0, 10)) if rng.random() < 0.7 else some_day(rng)


class Workdays(Working, Paired):
    """Working days from one date to another."""

    op: Literal["workdays"] = "workdays"
    inclusive: bool

    @classmethod
    def sample(cls, rng: random.Random, layout: Layout, setting: bool) -> Self:
        weekend, holidays = cls.sample_days_off(rng)
        return cls(weekend=weekend, holidays=holidays, inclusive=rng.random() < 0.5)

    def config_field(self) -> ConfigField:
        return ConfigField(name="hours", default=8, low=1, high=24, description="Hours in a working day.")

    def phrases(self, setting: bool) -> list[str]:
        what = "working hours, `hours` for each working day," if setting else "working days"
        return [f"counts the {what} from `start` to `end`", f"says how many {what} there are from `start` to `end`"]

    def details(self, setting: bool, show: Callable[[date], str]) -> list[str]:
        last = "`start` and `end` are part of it." if self.inclusive else "`start` is part of it, `end` is not."
        return [*super().details(setting, show), last]

    def lines(self, setting: bool) -> list[str]:
        return [
            *self.reversed_check(),
            f"span = (last - first).days{' + 1' if self.inclusive else ''}",
            "days = [first + datetime.timedelta(days=number) for number in range(span)]",
            "count = sum(day.weekday() not in WEEKEND and day not in HOLIDAYS for day in days)",
            f"return str(count{' * hours' if setting else ''})",
        ]

    def slips(self, setting: bool) -> list[tuple[str, str]]:
        other = ".days + 1" if self.inclusive else ".days"
        return [(" and day not in HOLIDAYS", ""), (other, ".days" if self.inclusive else ".days + 1")]

    def given(self, rng: random.Random) -> Given:
        first = self.near(rng)
        gap = rng.choice([0, 1, 5, rng.randint(10, 40), rng.randint(10, 40), rng.randint(40, 120)])
        return {"start": first, "end": first + timedelta(days=gap)}


class AddWorkdays(Working, Stepped):
    """The date some working days away."""

    inputs = (InputField(name="day", type="str"), InputField(name="amount", type="int"))
    op: Literal["add_workdays"] = "add_workdays"
    signed: bool

    @classmethod
    def sample(cls, rng: random.Random, layout: Layout, setting: bool) -> Self:
        weekend, holidays = cls.sample_days_off(rng)
        return cls(
            weekend=weekend,
            holidays=holidays,
            signed=rng.random() < 0.5,
            limit=rng.choice([10, 15, 20, 30, 40]),
            out_layout=out_layout(rng, layout),
        )

    def phrases(self, setting: bool) -> list[str]:
        return ["finds the date `amount` working days after `day`", "goes on from `day` by `amount` working days"]

    def details(self, setting: bool, show: Callable[[date], str]) -> list[str]:
        back = ["A negative `amount` goes back."] if self.signed else []
        return [*super().details(setting, show), *back, "`day` itself is not counted, and with 0 it is the answer."]

    def lines(self, setting: bool) -> list[str]:
        return [
            *self.range_check(setting),
            f"step = datetime.timedelta(days=1{' if amount > 0 else -1' if self.signed else ''})",
            f"result, left = first, {'abs(amount)' if self.signed else 'amount'}",
            "while left:",
            "    result += step",
            "    if result.weekday() not in WEEKEND and result not in HOLIDAYS:",
            "        left -= 1",
            f'return result.strftime("{pattern(self.out_layout)}")',
        ]

    def slips(self, setting: bool) -> list[tuple[str, str]]:
        return [*super().slips(setting), (" and result not in HOLIDAYS", "")]

    def given(self, rng: random.Random) -> Given:
        amount = self.step(rng)
        # Going back, the holiday must lie before the day.
        first = self.near(rng) + timedelta(days=11 if amount < 0 else 0)
        return {"day": first, "amount": amount}
