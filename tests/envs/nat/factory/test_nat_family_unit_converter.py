"""Unit converters: the oracle by eye, and the sampled references against it."""

import random

import pytest
from pydantic import ValidationError

from agent_rl.envs.nat.factory.families.unit_converter import UnitConverter
from agent_rl.envs.nat.factory.oracle.unit_converter import answer, is_robust

FAMILY = UnitConverter()

LENGTH = {"dimension": "length", "units": {"km": "1000.0", "m": "1.0"}, "precision": 1, "nonnegative": True}
TEMPERATURE = {
    "dimension": "temperature",
    "units": {"C": "1.8", "F": "1.0", "K": "1.8"},
    "offsets": {"C": "273.15", "F": "459.67"},
    "aliases": {"celsius": "C"},
    "precision": 2,
    "nonnegative": False,
    "checks": ["large", "unknown", "same", "cold"],
    "largest": 500,
}
SPEED = {
    "dimension": "speed",
    "units": {"km": "1000.0", "m": "1.0"},
    "per": {"h": "3600.0", "s": "1.0"},
    "aliases": {"kmph": "km/h"},
    "precision": 1,
    "nonnegative": True,
    "checks": ["negative", "unknown"],
}


def given(value: float, from_unit: str, to_unit: str) -> dict[str, float | str]:
    return {"value": value, "from_unit": from_unit, "to_unit": to_unit}


def test_a_length_is_converted_and_rounded() -> None:
    assert answer(LENGTH, given(2.5, "km", "m"), {}) == "2500.0"
    assert answer(LENGTH, given(260.0, "m", "km"), {}) == "0.3"
    assert answer(LENGTH, given(260.0, "m", "km"), {"precision": 3}) == "0.260"


def test_unknown_units_come_before_negative_values() -> None:
    assert answer(LENGTH, given(-1.0, "m", "parsec"), {}) == "error: unknown unit"
    assert answer(LENGTH, given(-1.0, "m", "km"), {}) == "error: negative value"


def test_temperatures_have_an_offset() -> None:
    assert answer(TEMPERATURE, given(100.0, "celsius", "F"), {}) == "212.00"
    assert answer(TEMPERATURE, given(-40.0, "F", "C"), {}) == "-40.00"
    assert answer(TEMPERATURE, given(0.0, "K", "C"), {}) == "-273.15"


def test_the_checks_are_made_in_the_order_of_the_rules() -> None:
    assert answer(TEMPERATURE, given(501.0, "parsec", "C"), {}) == "error: value too large"
    assert answer(TEMPERATURE, given(-300.0, "C", "celsius"), {}) == "error: same unit"
    assert answer(TEMPERATURE, given(-300.0, "C", "F"), {}) == "error: below absolute zero"


def test_a_ratio_of_units_is_one_unit() -> None:
    assert answer(SPEED, given(36.0, "kmph", "m/s"), {}) == "10.0"
    assert answer(SPEED, given(10.0, "m/s", "m/h"), {}) == "36000.0"
    assert answer(SPEED, given(10.0, "m", "m/s"), {}) == "error: unknown unit"
    assert answer(SPEED, given(-1.0, "parsec", "m/s"), {}) == "error: negative value"


def test_a_rounding_tie_and_absolute_zero_are_not_sampled() -> None:
    assert not is_robust(LENGTH, given(250.0, "m", "km"), {})
    assert is_robust(LENGTH, given(260.0, "m", "km"), {})
    assert not is_robust(TEMPERATURE, given(-273.15, "C", "F"), {})


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"precision": -1}, "precision"),
        ({"units": {"m": "one", "km": "1000.0"}}, "units.m"),
        ({"units": {"m": "1.0"}}, "at least two units"),
        ({"aliases": {"metre": "cm"}}, "aliases"),
        ({"checks": ["large"]}, "largest"),
        ({"shape": "round"}, "shape"),
    ],
)
def test_a_wrong_row_is_refused_with_its_place(change: dict[str, object], place: str) -> None:
    with pytest.raises(ValidationError, match=place):
        FAMILY.Rules.model_validate(LENGTH | change)


def test_a_sampled_tool_of_level_2_never_changes() -> None:
    draft = FAMILY.draft(random.Random(7), 2)
    assert draft.rules == {
        "dimension": "length",
        "units": {"cm": "0.01", "km": "1000.0", "m": "1.0"},
        "precision": 0,
        "nonnegative": False,
    }
    assert draft.config_field is not None
    assert (draft.config_field.name, draft.config_field.default) == ("precision", 0)
