"""Operations of date tools on weekdays, periods and zones.

Zones are fixed offsets: there is no daylight saving and no clock. What the right answer is, is not decided here.
"""

import random
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from typing import ClassVar, Literal, Self

from pydantic import Field

from agent_rl.envs.nat.factory.families.date.operations import (
    DAY_NAMES,
    DateOperation,
    DayName,
    Given,
    Layout,
    Stepped,
    out_layout,
    pattern,
    some_day,
)
from agent_rl.envs.nat.spec import ConfigField, InputField

NTH = {"first": "[:1]", "second": "[1:2]", "third": "[2:3]", "fourth": "[3:4]", "fifth": "[4:5]", "last": "[-1:]"}
"""Which of a month's Mondays (for example), with the slice that picks it."""
OFFSETS = [-480, -300, -210, 60, 120, 330, 345, 540]
"""Zones in minutes east of UTC."""


class Weekday(DateOperation):
    """The weekday and one more number."""

    inputs = (InputField(name="day", type="str"),)
    op: Literal["weekday"] = "weekday"
    style: Literal["long", "short", "number"]
    week_start: DayName
    """Its number is 1."""
    second: Literal["day_of_year", "days_left", "iso_week"]
    separator: Literal[" ", "/", ", ", "-"]

    @classmethod
    def sample(cls, rng: random.Random, layout: Layout, setting: bool) -> Self:
        return cls(
            style=rng.choice(["long", "short", "number", "number"]),
            week_start=rng.choice(["Monday", "Sunday", "Saturday"]),
            second=rng.choice(["day_of_year", "days_left", "iso_week"]),
            separator=rng.choice([" ", "/", ", ", "-"]),
        )

    def config_field(self) -> ConfigField:
        return ConfigField(name="offset_days", default=0, low=-60, high=60, description="Days added to the date first.")

    def phrases(self, setting: bool) -> list[str]:
        second = {
            "day_of_year": "the number of the day in its year, counted from 1",
            "days_left": "the number of days left in its year after it",
            "iso_week": "its ISO week number",
        }[self.second]
        return [f"gives the weekday of `day` and {second}", f"says which weekday `day` is, and then {second}"]

    def details(self, setting: bool, show: Callable[[date], str]) -> list[str]:
        out = {
            "long": "Weekdays are `Monday`, `Tuesday` and so on",
            "short": "Weekdays are `Mon`, `Tue` and so on",
            "number": f"A weekday is a number from 1 to 7, {self.week_start} being 1",
        }[self.style]
        divider = {" ": "a space", "/": "`/`", ", ": "a comma and a space", "-": "`-`"}[self.separator]
        shift = (
            ["All this is about the date `offset_days` days after `day` (before it if negative)."] if setting else []
        )
        return [*shift, f"{out}; the two are divided by {divider}."]

    def constants(self) -> list[str]:
        cut = 3 if self.style == "short" else None
        names = ", ".join(f'"{name[:cut]}"' for name in DAY_NAMES)
        return [] if self.style == "number" else [f"NAMES = [{names}]"]

    def lines(self, setting: bool) -> list[str]:
        out = ["first += datetime.timedelta(days=offset_days)"] if setting else []
        shift = -DAY_NAMES.index(self.week_start) % 7
        number = f"(first.weekday() + {shift}) % 7 + 1" if shift else "first.isoweekday()"
        name = number if self.style == "number" else "NAMES[first.weekday()]"
        second = {
            "day_of_year": "first.timetuple().tm_yday",
            "days_left": "(datetime.date(first.year, 12, 31) - first).days",
            "iso_week": "first.isocalendar().week",
        }[self.second]
        return [*out, f"name = {name}", f"second = {second}", f'return f"{{name}}{self.separator}{{second}}"']

    def slips(self, setting: bool) -> list[tuple[str, str]]:
        return {
            "day_of_year": [("first.timetuple()", "first.replace(year=2023).timetuple()")],
            "days_left": [("(datetime.date(first.year, 12, 31) - first).days", "365 - first.timetuple().tm_yday")],
            "iso_week": [("first.isocalendar().week", "first.timetuple().tm_yday // 7 + 1")],
        }[self.second]

    def given(self, rng: random.Random) -> Given:
        first = some_day(rng)
        # Leap years more often than one in four: that is where day numbers go wrong.
        return (
            {"day": date(rng.choice([2020, 2024, 2028]), first.month, first.day)}
            if rng.random() < 0.4
            else {"day": first}
        )


class Period(DateOperation):
    """The first or last day of the date's month, quarter, year or week."""

    inputs = (InputField(name="day", type="str"),)
    op: Literal["period"] = "period"
    period: Literal["week", "month", "quarter", "year"]
    week_start: DayName
    side: Literal["first", "last"]
    with_days: bool
    out_layout: Layout

    @classmethod
    def sample(cls, rng: random.Random, layout: Layout, setting: bool) -> Self:
        return cls(
            period=rng.choice(["week", "month", "quarter", "year"]),
            week_start=rng.choice(["Monday", "Sunday", "Saturday"]),
            side=rng.choice(["first", "last"]),
            with_days=rng.random() < 0.5,
            out_layout=out_layout(rng, layout),
        )

    def config_field(self) -> ConfigField:
        return ConfigField(name="ahead", default=0, low=-24, high=24, description="Periods to go on.")

    def phrases(self, setting: bool) -> list[str]:
        what = f"the {self.side} day of the {self.period}"
        return [f"finds {what} that `day` is in", f"gives {what} that holds `day`"]

    def details(self, setting: bool, show: Callable[[date], str]) -> list[str]:
        out = [f"Weeks start on {self.week_start}."] if self.period == "week" else []
        if setting:
            out.append(f"`ahead` picks a later {self.period}: 1 the next one, -1 the one before.")
        if self.with_days:
            out.append("Then come a space and how many days apart the two dates are, never negative.")
        return out

    def lines(self, setting: bool) -> list[str]:
        if self.period == "week":
            shift = -DAY_NAMES.index(self.week_start) % 7
            days = "6 - into" if self.side == "last" else "-into"
            out = [
                f"into = (first.weekday() + {shift}) % 7" if shift else "into = first.weekday()",
                f"result = first + datetime.timedelta(days={days}{', weeks=ahead' if setting else ''})",
            ]
        else:
            months = {"month": 1, "quarter": 3, "year": 12}[self.period]
            ahead = " + ahead" if setting else ""
            plus = " + 1" if self.side == "last" else ""
            whole = f"index // {months}"
            out = [
                "index = first.year * 12 + first.month - 1",
                f"begin = ({whole}{ahead}{plus}) * {months}" if ahead or plus else f"begin = {whole} * {months}",
                "result = datetime.date(begin // 12, begin % 12 + 1, 1)",
            ]
            if plus:
                out.append("result -= datetime.timedelta(days=1)")
        days = " {abs((result - first).days)}" if self.with_days else ""
        return [*out, f'return f"{{result:{pattern(self.out_layout)}}}{days}"']

    def slips(self, setting: bool) -> list[tuple[str, str]]:
        if self.period != "week":
            return [("first.month - 1", "first.month - 1 - (first.day < 2)")]
        return [("first.weekday()", "(first.weekday() or 7)")] if self.week_start == "Monday" else [(") % 7", ")")]

    def given(self, rng: random.Random) -> Given:
        first = some_day(rng)
        if rng.random() < 0.5:
            return {"day": first}
        # The first day of a period is where an error of one day shows.
        if self.period == "week":
            return {"day": first - timedelta(days=(first.weekday() - DAY_NAMES.index(self.week_start)) % 7)}
        months = {"month": 1, "quarter": 3, "year": 12}[self.period]
        return {"day": first.replace(day=1, month=(first.month - 1) // months * months + 1)}


class NthWeekday(Stepped):
    """The next second Tuesdays of the month, say."""

    number: ClassVar[str] = "count"
    least: ClassVar[int] = 1
    inputs = (InputField(name="day", type="str"), InputField(name="count", type="int"))
    op: Literal["nth_weekday"] = "nth_weekday"
    nth: Literal["first", "second", "third", "fourth", "fifth", "last"]
    weekday: DayName
    inclusive: bool
    """Whether `day` can be an answer itself."""
    joiner: Literal[" ", ", ", ";", " | "]

    @classmethod
    def sample(cls, rng: random.Random, layout: Layout, setting: bool) -> Self:
        return cls(
            nth=rng.choice(list(NTH)),
            weekday=rng.choice(DAY_NAMES),
            inclusive=rng.random() < 0.5,
            joiner=rng.choice([" ", ", ", ";", " | "]),
            limit=rng.randint(3, 8),
            out_layout=out_layout(rng, layout),
        )

    def phrases(self, setting: bool) -> list[str]:
        what = f"that are the {self.nth} {self.weekday} of their month"
        return [
            f"lists the next `count` dates after `day` {what}",
            f"names `count` dates {what}, the next ones after `day`",
        ]

    def details(self, setting: bool, show: Callable[[date], str]) -> list[str]:
        fifth = ["A month without a fifth one is skipped."] if self.nth == "fifth" else []
        itself = f"If `day` is such a date, it is {'the first of them' if self.inclusive else 'left out'}."
        return [*fifth, itself, f"The dates are in order, joined by `{self.joiner}`."]

    def lines(self, setting: bool) -> list[str]:
        return [
            *self.range_check(setting),
            "found: list[str] = []",
            "year, month = first.year, first.month",
            "while len(found) < count:",
            "    days = range(1, calendar.monthrange(year, month)[1] + 1)",
            "    dates = [datetime.date(year, month, each) for each in days]",
            f"    hits = [each for each in dates if each.weekday() == {DAY_NAMES.index(self.weekday)}]{NTH[self.nth]}",
            f'    found += [each.strftime("{pattern(self.out_layout)}") for each in hits if each >{self.equal} first]',
            "    year, month = (year, month + 1) if month < 12 else (year + 1, 1)",
            f'return "{self.joiner}".join(found)',
        ]

    @property
    def equal(self) -> str:
        return "=" if self.inclusive else ""

    def slips(self, setting: bool) -> list[tuple[str, str]]:
        other = "" if self.inclusive else "="
        return [*super().slips(setting), (f"each >{self.equal} first", f"each >{other} first")]

    def given(self, rng: random.Random) -> Given:
        out = super().given(rng)
        if rng.random() < 0.5:
            return out
        # One of the requested dates: the usual mistake is whether it counts itself.
        year = date(rng.randint(2019, 2029), 1, 1)
        dates = [year + timedelta(days=number) for number in range(365)]
        hits = [each for each in dates if DAY_NAMES[each.weekday()] == self.weekday and self.is_nth(each)]
        return {**out, "day": rng.choice(hits)}

    def is_nth(self, day: date) -> bool:
        if self.nth == "last":
            return (day + timedelta(days=7)).month != day.month
        return (day.day - 1) // 7 == list(NTH).index(self.nth)


class ToZone(DateOperation):
    """A moment, written with the offset of its zone, in another zone."""

    reader: ClassVar[str] = "read_moment"
    inputs = (InputField(name="moment", type="str"),)
    op: Literal["to_zone"] = "to_zone"
    offset: int = Field(ge=-720, le=840)
    """Minutes east of UTC."""
    with_offset: bool
    out_layout: Layout

    @classmethod
    def sample(cls, rng: random.Random, layout: Layout, setting: bool) -> Self:
        return cls(
            offset=rng.choice(OFFSETS),
            with_offset=not setting and rng.random() < 0.5,
            out_layout=out_layout(rng, layout),
        )

    def config_field(self) -> ConfigField:
        return ConfigField(
            name="offset_minutes", default=self.offset, low=-720, high=840, description="Minutes ahead of UTC."
        )

    def demand_sense(self, setting: bool) -> None:
        if setting and self.with_offset:
            raise ValueError("an offset that is configurable cannot be written as a fixed text, with_offset is true")

    @property
    def zone(self) -> str:
        hours, minutes = divmod(abs(self.offset), 60)
        return f"{'-' if self.offset < 0 else '+'}{hours:02d}:{minutes:02d}"

    def phrases(self, setting: bool) -> list[str]:
        zone = "the zone `offset_minutes` minutes ahead of UTC" if setting else f"the zone UTC{self.zone}"
        return [f"tells what date and time `moment` is in {zone}", f"converts `moment` to {zone}"]

    def details(self, setting: bool, show: Callable[[date], str]) -> list[str]:
        end = f"`HH:MM{self.zone}`" if self.with_offset else "`HH:MM`"
        return [f"The answer is the date, a space, and the time as {end}."]

    def lines(self, setting: bool) -> list[str]:
        minutes = "offset_minutes" if setting else self.offset
        return [
            f"zone = datetime.timezone(datetime.timedelta(minutes={minutes}))",
            "result = first.astimezone(zone)",
            f'return result.strftime("{pattern(self.out_layout)} %H:%M{self.zone if self.with_offset else ""}")',
        ]

    def slips(self, setting: bool) -> list[tuple[str, str]]:
        return [("first.astimezone(zone)", "first.astimezone(zone).replace(day=first.day)")]

    def given(self, rng: random.Random) -> Given:
        other = rng.choice([each for each in [0, *OFFSETS] if abs(each - self.offset) >= 60])
        day = some_day(rng)
        near_midnight = 23 if other < self.offset else 0
        hour = near_midnight if rng.random() < 0.6 else rng.randint(0, 23)
        zone = timezone(timedelta(minutes=other))
        return {"moment": datetime(day.year, day.month, day.day, hour, rng.randint(0, 59), tzinfo=zone)}
