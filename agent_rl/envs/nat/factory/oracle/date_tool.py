"""Oracle of date tools, by counting days: a date is the number of days since 1 January 1970.

Nothing here knows the standard library's calendar. Texts are read digit by digit along the layout's letters, so a date
without its leading zeros is no date. Time zones are offsets in minutes; daylight saving is not known.
"""

from collections.abc import Mapping
from typing import Any

from agent_rl.envs.nat.spec import Value

_NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MINUTES = 1440


def answer(rules: Mapping[str, Any], inputs: Mapping[str, Value], config: Mapping[str, int]) -> str:
    """The exact text the tool must give."""
    operation, layout = rules["operation"], rules["layout"]
    names = [name for name in ("day", "moment", "start", "end") if name in inputs]
    read = _read_moment if operation["op"] == "to_zone" else _read
    days = [day for name in names if (day := read(str(inputs[name]), layout)) is not None]
    if len(days) < len(names):
        return "error: bad date"
    if len(days) == 2 and days[1] < days[0] and operation.get("reversed", "refuse") == "refuse":
        return "error: end before start"
    for name, least in (("amount", 0), ("count", 1)):
        if name in inputs:
            most = config.get(f"max_{name}", operation["limit"])
            if not (-most if operation.get("signed") else least) <= int(inputs[name]) <= most:
                return f"error: {name} out of range"
            days.append(int(inputs[name]))
    return _ANSWERS[operation["op"]](operation, *days, layout=layout, config=config)


# ---------------------------------------------------------------- days and their numbers


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _length(year: int, month: int) -> int:
    return 28 + _is_leap(year) if month == 2 else 30 if month in (4, 6, 9, 11) else 31


def _number(year: int, month: int, day: int) -> int:
    before = year - 1
    leaps = before // 4 - before // 100 + before // 400
    return before * 365 + leaps + sum(_length(year, each) for each in range(1, month)) + day - 719163


def _parts(number: int) -> tuple[int, int, int]:
    year = 1970 + number // 366
    while _number(year + 1, 1, 1) <= number:
        year += 1
    while _number(year, 1, 1) > number:
        year -= 1
    month, day = 1, number - _number(year, 1, 1) + 1
    while day > _length(year, month):
        day -= _length(year, month)
        month += 1
    return year, month, day


def _weekday(number: int) -> int:
    """0 for Monday."""
    return (number + 3) % 7


def _read_fields(text: str, layout: str) -> dict[str, int] | None:
    """The numbers at the places of the layout's letters."""
    if len(text) != len(layout):
        return None
    fields: dict[str, int] = {}
    for char, letter in zip(text, layout, strict=True):
        if letter.isalpha():
            if char not in "0123456789":
                return None
            fields[letter] = fields.get(letter, 0) * 10 + int(char)
        elif char != letter:
            return None
    return fields


def _read(text: str, layout: str) -> int | None:
    fields = _read_fields(text, layout)
    if fields is None or fields["Y"] < 1 or not 1 <= fields["M"] <= 12:
        return None
    if not 1 <= fields["D"] <= _length(fields["Y"], fields["M"]):
        return None
    return _number(fields["Y"], fields["M"], fields["D"])


def _read_moment(text: str, layout: str) -> int | None:
    """Minutes since 1 January 1970 in UTC."""
    cut = len(layout)
    day, clock = _read(text[:cut], layout), _read_fields(text[cut : cut + 6], " hh:mm")
    sign, offset = text[cut + 6 : cut + 7], _read_fields(text[cut + 7 :], "hh:mm")
    if day is None or clock is None or offset is None or sign not in ("+", "-"):
        return None
    if max(clock["h"], offset["h"]) > 23 or max(clock["m"], offset["m"]) > 59:
        return None
    east = offset["h"] * 60 + offset["m"]
    return day * _MINUTES + clock["h"] * 60 + clock["m"] - (east if sign == "+" else -east)


def _write(number: int, layout: str) -> str:
    year, month, day = _parts(number)
    return layout.replace("YYYY", f"{year:04d}").replace("MM", f"{month:02d}").replace("DD", f"{day:02d}")


def _month_of(number: int, months: int) -> tuple[int, int]:
    """Year and month `months` after the month of a day."""
    year, month, _ = _parts(number)
    index = year * 12 + month - 1 + months
    return index // 12, index % 12 + 1


# ---------------------------------------------------------------- operations


def _shift(operation: dict[str, Any], day: int, amount: int, *, layout: str, config: Mapping[str, int]) -> str:
    if operation["unit"] != "months":
        return _write(day + amount * (7 if operation["unit"] == "weeks" else 1), operation["out_layout"])
    year, month = _month_of(day, amount)
    wanted = _parts(day)[2]
    if wanted > _length(year, month) and operation["month_end"] != "overflow":
        if operation["month_end"] == "refuse":
            return "error: no such day"
        wanted = _length(year, month)
    return _write(_number(year, month, 1) + wanted - 1, operation["out_layout"])


def _difference(operation: dict[str, Any], start: int, end: int, *, layout: str, config: Mapping[str, int]) -> str:
    days = end - start
    if operation["reversed"] == "absolute" and days < 0:
        days = start - end
    days += operation["inclusive"]
    if operation["unit"] == "days":
        return str(days)
    whole, rest = divmod(days, config.get("period", operation["period"]))
    return str(whole) if operation["unit"] == "periods" else f"{whole} r {rest}"


def _weekday_name(operation: dict[str, Any], day: int, *, layout: str, config: Mapping[str, int]) -> str:
    day += config.get("offset_days", 0)
    year = _parts(day)[0]
    thursday = day - _weekday(day) + 3
    second = {
        "day_of_year": day - _number(year, 1, 1) + 1,
        "days_left": _number(year, 12, 31) - day,
        "iso_week": (thursday - _number(_parts(thursday)[0], 1, 1)) // 7 + 1,
    }[operation["second"]]
    name = _NAMES[_weekday(day)]
    if operation["style"] == "number":
        name = str((_weekday(day) - _NAMES.index(operation["week_start"])) % 7 + 1)
    elif operation["style"] == "short":
        name = name[:3]
    return f"{name}{operation['separator']}{second}"


def _period(operation: dict[str, Any], day: int, *, layout: str, config: Mapping[str, int]) -> str:
    ahead = config.get("ahead", 0)
    if operation["period"] == "week":
        begin = day - (_weekday(day) - _NAMES.index(operation["week_start"])) % 7 + 7 * ahead
        result = begin if operation["side"] == "first" else begin + 6
    else:
        length = {"month": 1, "quarter": 3, "year": 12}[operation["period"]]
        into = (_parts(day)[1] - 1) % length
        begin = _number(*_month_of(day, ahead * length - into), 1)
        after = _number(*_month_of(day, ahead * length - into + length), 1)
        result = begin if operation["side"] == "first" else after - 1
    days = f" {abs(result - day)}" if operation["with_days"] else ""
    return _write(result, operation["out_layout"]) + days


def _num_workdays(operation: dict[str, Any], first: int, last: int) -> int:
    """Working days of `first` to `last`, both counted: whole weeks at once, then what is left, less the holidays."""
    off = {_NAMES.index(name) for name in operation["weekend"]}
    weeks, rest = divmod(last - first + 1, 7)
    count = weeks * (7 - len(off)) + sum(_weekday(last - back) not in off for back in range(rest))
    free = {_read(text, "YYYY-MM-DD") for text in operation["holidays"]}
    return count - sum(first <= day <= last and _weekday(day) not in off for day in free if day is not None)


def _workdays(operation: dict[str, Any], start: int, end: int, *, layout: str, config: Mapping[str, int]) -> str:
    last = end if operation["inclusive"] else end - 1
    return str(_num_workdays(operation, start, last) * config.get("hours", 1))


def _add_workdays(operation: dict[str, Any], day: int, amount: int, *, layout: str, config: Mapping[str, int]) -> str:
    found = day + amount
    while True:
        between = (day + 1, found) if amount > 0 else (found, day - 1)
        missing = abs(amount) - _num_workdays(operation, *between)
        if not missing:
            return _write(found, operation["out_layout"])
        found += missing if amount > 0 else -missing


def _nth_weekday(operation: dict[str, Any], day: int, count: int, *, layout: str, config: Mapping[str, int]) -> str:
    wanted, found, months = _NAMES.index(operation["weekday"]), [], 0
    while len(found) < count:
        year, month = _month_of(day, months)
        first, length = _number(year, month, 1), _length(year, month)
        if operation["nth"] == "last":
            hit = first + length - 1
            hit -= (_weekday(hit) - wanted) % 7
        else:
            order = ("first", "second", "third", "fourth", "fifth").index(operation["nth"])
            hit = first + (wanted - _weekday(first)) % 7 + 7 * order
        if hit < first + length and (hit > day or (hit == day and operation["inclusive"])):
            found.append(_write(hit, operation["out_layout"]))
        months += 1
    return operation["joiner"].join(found)


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _to_zone(operation: dict[str, Any], moment: int, *, layout: str, config: Mapping[str, int]) -> str:
    offset = config.get("offset_minutes", operation["offset"])
    day, minute = divmod(moment + offset, _MINUTES)
    tail = f"{'-' if offset < 0 else '+'}{_clock(abs(offset))}" if operation["with_offset"] else ""
    return f"{_write(day, operation['out_layout'])} {_clock(minute)}{tail}"


_ANSWERS = {
    "shift": _shift,
    "difference": _difference,
    "weekday": _weekday_name,
    "period": _period,
    "workdays": _workdays,
    "add_workdays": _add_workdays,
    "nth_weekday": _nth_weekday,
    "to_zone": _to_zone,
}
