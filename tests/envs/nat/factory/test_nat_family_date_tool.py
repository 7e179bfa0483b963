"""Date tools: the oracle by eye and against the standard library, and the sampled references against the oracle."""

import random
from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from agent_rl.envs.nat.factory.families.date.tool import DateTool
from agent_rl.envs.nat.factory.oracle.date_tool import answer

FAMILY = DateTool()


def rules(layout: str = "YYYY-MM-DD", **operation: Any) -> dict[str, Any]:
    return {"layout": layout, "leading_zeros": False, "operation": operation}


def shift(unit: str, month_end: str = "clip", *, signed: bool = False, layout: str = "YYYY-MM-DD") -> dict[str, Any]:
    return rules(layout, op="shift", unit=unit, month_end=month_end, signed=signed, limit=400, out_layout="YYYY-MM-DD")


def moved(tool: dict[str, Any], day: str, amount: int, **config: int) -> str:
    return answer(tool, {"day": day, "amount": amount}, config)


WORK = {"weekend": ["Saturday", "Sunday"], "holidays": ["2024-05-01", "2024-05-04"]}
MONTHS = shift("months")


def test_leap_days_and_centuries_are_counted() -> None:
    assert moved(shift("days"), "2024-02-28", 1) == "2024-02-29"
    assert moved(shift("days"), "2023-02-28", 1) == "2023-03-01"
    assert moved(shift("days"), "2100-02-28", 1) == "2100-03-01"
    assert moved(shift("weeks"), "2000-02-28", 1) == "2000-03-06"
    assert moved(shift("days", signed=True), "1900-03-01", -1) == "1900-02-28"


def test_a_month_without_the_day_is_clipped_overrun_or_refused() -> None:
    assert moved(MONTHS, "2024-01-31", 1) == "2024-02-29"
    assert moved(MONTHS, "2023-11-30", 3) == "2024-02-29"
    assert moved(shift("months", "overflow"), "2023-01-31", 1) == "2023-03-03"
    assert moved(shift("months", "refuse"), "2024-03-31", 1) == "error: no such day"
    assert moved(shift("months", signed=True), "2024-01-15", -13) == "2022-12-15"


def test_the_date_is_checked_before_the_amount_and_a_setting_replaces_the_limit() -> None:
    assert moved(MONTHS, "2024-02-30", 500) == "error: bad date"
    assert moved(MONTHS, "2024-02-29", 401) == "error: amount out of range"
    assert moved(MONTHS, "2024-02-29", -1) == "error: amount out of range"
    assert moved(MONTHS, "2024-02-29", 401, max_amount=401) == "2057-07-29"


@pytest.mark.parametrize(
    "text", ["2024-5-17", "2024-13-01", "2023-02-29", "17.05.2024", "", "2024-05-17 ", "0000-01-01"]
)
def test_a_text_that_is_no_such_date_is_refused(text: str) -> None:
    assert moved(shift("days"), text, 1) == "error: bad date"


def test_layouts_decide_which_number_is_the_month() -> None:
    assert moved(shift("days", layout="DD/MM/YYYY"), "03/04/2024", 0) == "2024-04-03"
    assert moved(shift("days", layout="MM/DD/YYYY"), "03/04/2024", 0) == "2024-03-04"
    assert moved(shift("days", layout="YYYYMMDD"), "20240304", 0) == "2024-03-04"


def test_differences_are_whole_periods_and_know_their_order() -> None:
    weeks = rules(op="difference", unit="periods_rest", period=7, inclusive=False, reversed="refuse")
    assert answer(weeks, {"start": "2024-02-20", "end": "2024-03-15"}, {}) == "3 r 3"
    assert answer(weeks, {"start": "2024-02-20", "end": "2024-03-15"}, {"period": 10}) == "2 r 4"
    assert answer(weeks, {"start": "2024-03-15", "end": "2024-03-14"}, {}) == "error: end before start"
    both = rules(op="difference", unit="days", period=7, inclusive=True, reversed="absolute")
    assert answer(both, {"start": "2024-03-15", "end": "2024-03-13"}, {}) == "3"
    signed = rules(op="difference", unit="days", period=7, inclusive=False, reversed="signed")
    assert answer(signed, {"start": "2024-03-15", "end": "2024-03-13"}, {}) == "-2"


@pytest.mark.parametrize(
    ("style", "week_start", "second", "expected"),
    [
        ("long", "Monday", "day_of_year", "Tuesday/366"),
        ("short", "Monday", "days_left", "Tue/0"),
        ("number", "Monday", "iso_week", "2/1"),
        ("number", "Sunday", "iso_week", "3/1"),
    ],
)
def test_the_last_day_of_2024_is_a_tuesday_of_week_1(style: str, week_start: str, second: str, expected: str) -> None:
    tool = rules(op="weekday", style=style, week_start=week_start, second=second, separator="/")
    assert answer(tool, {"day": "2024-12-31"}, {}) == expected
    assert answer(tool, {"day": "2024-12-21"}, {"offset_days": 10}) == expected


def test_periods_end_where_the_calendar_ends_them() -> None:
    def end(period: str, side: str = "last", ahead: int = 0) -> str:
        tool = rules(
            op="period", period=period, week_start="Sunday", side=side, with_days=True, out_layout="DD.MM.YYYY"
        )
        return answer(tool, {"day": "2024-02-14"}, {"ahead": ahead})

    assert end("month") == "29.02.2024 15"
    assert end("quarter") == "31.03.2024 46"
    assert end("year", "first") == "01.01.2024 44"
    assert end("week") == "17.02.2024 3"
    assert end("week", "first", ahead=1) == "18.02.2024 4"
    assert end("month", ahead=-12) == "28.02.2023 351"


def test_working_days_leave_out_weekends_and_holidays_but_no_holiday_twice() -> None:
    between = rules(op="workdays", inclusive=True, **WORK)
    # Monday 29 April to Monday 6 May: six weekdays, 1 May is off, 4 May is a Saturday anyway.
    assert answer(between, {"start": "2024-04-29", "end": "2024-05-06"}, {}) == "5"
    assert answer(between, {"start": "2024-04-29", "end": "2024-05-06"}, {"hours": 8}) == "40"
    add = rules(op="add_workdays", signed=True, limit=10, out_layout="YYYY-MM-DD", **WORK)
    assert moved(add, "2024-04-30", 1) == "2024-05-02"
    assert moved(add, "2024-05-06", -3) == "2024-04-30"
    assert moved(add, "2024-05-04", 0) == "2024-05-04"


def test_a_fifth_weekday_skips_months_and_a_last_one_does_not() -> None:
    def days(nth: str, day: str, *, inclusive: bool = False) -> str:
        tool = rules(
            op="nth_weekday",
            nth=nth,
            weekday="Tuesday",
            inclusive=inclusive,
            joiner=" ",
            limit=3,
            out_layout="MM-DD-YYYY",
        )
        return answer(tool, {"day": day, "count": 2}, {})

    assert days("fifth", "2024-01-30") == "04-30-2024 07-30-2024"
    assert days("fifth", "2024-01-30", inclusive=True) == "01-30-2024 04-30-2024"
    assert days("last", "2024-02-01") == "02-27-2024 03-26-2024"
    assert days("second", "2024-12-11") == "01-14-2025 02-11-2025"


def test_a_moment_in_another_zone_can_be_on_another_day() -> None:
    tool = rules(op="to_zone", offset=330, with_offset=True, out_layout="YYYY-MM-DD")
    assert answer(tool, {"moment": "2024-02-28 23:45+01:00"}, {}) == "2024-02-29 04:15+05:30"
    assert answer(tool, {"moment": "2024-02-28 23:45-08:00"}, {"offset_minutes": -210}) == "2024-02-29 04:15-03:30"
    for bad in ("2024-02-28 24:00+01:00", "2024-02-28 23:45", "2024-02-30 10:00+01:00"):
        assert answer(tool, {"moment": bad}, {}) == "error: bad date"


@settings(max_examples=50, deadline=None)
@given(st.dates(date(1600, 1, 1), date(2900, 1, 1)), st.integers(0, 400))
def test_day_numbers_agree_with_the_standard_library(day: date, amount: int) -> None:
    assert moved(shift("days"), day.isoformat(), amount) == (day + timedelta(days=amount)).isoformat()
    names = rules(op="weekday", style="number", week_start="Monday", second="iso_week", separator=" ")
    _, week, weekday = day.isocalendar()
    assert answer(names, {"day": day.isoformat()}, {}) == f"{weekday} {week}"


@settings(max_examples=50, deadline=None)
@given(st.dates(date(2024, 3, 1), date(2024, 7, 1)), st.integers(1, 10))
def test_adding_working_days_and_counting_them_are_inverse(day: date, amount: int) -> None:
    add = rules(op="add_workdays", signed=False, limit=10, out_layout="YYYY-MM-DD", **WORK)
    between = rules(op="workdays", inclusive=True, **WORK)
    first = day + timedelta(days=1)
    end = moved(add, day.isoformat(), amount)
    assert answer(between, {"start": first.isoformat(), "end": end}, {}) == str(amount)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"layout": "YY-MM-DD"}, "layout"),
        ({"zone": "UTC"}, "zone"),
        ({"operation": MONTHS["operation"] | {"unit": "years"}}, "operation.shift.unit"),
        ({"operation": MONTHS["operation"] | {"limit": 0}}, "operation.shift.limit"),
        ({"operation": {"op": "easter"}}, "operation"),
        ({"operation": {"op": "workdays", "inclusive": True, **WORK, "holidays": ["1 May"]}}, "holidays.0"),
    ],
)
def test_a_wrong_row_is_refused_with_its_place(change: dict[str, object], place: str) -> None:
    with pytest.raises(ValidationError, match=place):
        FAMILY.Rules.model_validate(MONTHS | change)


def test_every_operation_is_sampled() -> None:
    easy = {FAMILY.draft(random.Random(seed), 1).rules["operation"]["op"] for seed in range(60)}
    hard = {FAMILY.draft(random.Random(seed), 5).rules["operation"]["op"] for seed in range(60)}
    assert easy == {"shift", "difference", "weekday", "period", "workdays", "add_workdays"}
    assert hard == {"nth_weekday", "to_zone", "add_workdays", "shift"}
