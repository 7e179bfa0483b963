"""Calculators: the oracle by eye, and the sampled references against it."""

import random

import pytest
from pydantic import ValidationError

from agent_rl.envs.nat.factory.families.calculator import Calculator
from agent_rl.envs.nat.factory.oracle.calculator import answer, is_robust
from agent_rl.envs.nat.factory.tool_sampler import complete_tool
from agent_rl.envs.nat.spec import InputField

FAMILY = Calculator()

FORMULA = {"formula": "(price / count) + 3", "divisors": ["count"], "nonnegative": "price", "precision": 2}
PIECEWISE = FORMULA | {
    "checks": ["large", "negative", "zero"],
    "largest": {"input": "count", "limit": 50},
    "piecewise": {"input": "price", "limit": 10, "inclusive": True, "otherwise": "(count - price) * 2"},
}
LOAN = {"precision": 2, "loop": {"kind": "loan", "payment": 60, "answer": "balance", "most": 12}}
GROWTH = {
    "precision": 2,
    "loop": {"kind": "growth", "deposit": 10, "when": "end", "rounded": True, "most": 5},
}
MEAN = {"precision": 2, "loop": {"kind": "statistic", "measure": "mean", "trim": 0, "fewest": 2}}


def changed(rules: dict, **values: object) -> dict:
    return rules | {"loop": rules["loop"] | values}


def test_a_formula_is_computed_and_rounded() -> None:
    assert answer(FORMULA, {"price": 7.0, "count": 4.0}, {}) == "4.75"
    assert answer(FORMULA, {"price": 2.0, "count": 3.0}, {"precision": 4}) == "3.6667"


def test_zero_divisors_come_before_negative_inputs() -> None:
    assert answer(FORMULA, {"price": -1.0, "count": 0.0}, {}) == "error: division by zero"
    assert answer(FORMULA, {"price": -1.0, "count": 2.0}, {}) == "error: negative input"


def test_the_threshold_decides_on_the_formula() -> None:
    assert answer(PIECEWISE, {"price": 10.0, "count": 4.0}, {}) == "5.50"
    assert answer(PIECEWISE, {"price": 11.0, "count": 4.0}, {}) == "-14.00"


def test_the_checks_are_made_in_the_order_of_the_rules() -> None:
    assert answer(PIECEWISE, {"price": -1.0, "count": 51.0}, {}) == "error: input too large"
    assert answer(PIECEWISE, {"price": -1.0, "count": 0.0}, {}) == "error: negative input"
    assert answer(PIECEWISE, {"price": 1.0, "count": 0.0}, {}) == "error: division by zero"


@pytest.mark.parametrize(("quantity", "expected"), [("balance", "0.00"), ("interest", "1.41"), ("paid", "101.41")])
def test_a_loan_is_paid_back_month_by_month(quantity: str, expected: str) -> None:
    # 100 + 1.00 - 60 = 41.00, then 0.41 of interest, and 41.41 is the last payment.
    rules = changed(LOAN, answer=quantity)
    assert answer(rules, {"principal": 100.0, "rate": 12.0, "months": 5}, {}) == expected


def test_a_loan_before_its_last_month_and_its_errors() -> None:
    assert answer(LOAN, {"principal": 100.0, "rate": 12.0, "months": 1}, {}) == "41.00"
    assert answer(LOAN, {"principal": 100.0, "rate": 12.0, "months": 1}, {"payment": 30}) == "71.00"
    assert answer(LOAN, {"principal": 100.0, "rate": -1.0, "months": 13}, {}) == "error: negative input"
    assert answer(LOAN, {"principal": 100.0, "rate": 1.0, "months": 13}, {}) == "error: too many months"


def test_an_amount_grows_by_periods() -> None:
    # 10.01 * 1.1 = 11.011; rounded to 11.01, with 10 more 21.01; then 23.111.
    given = {"amount": 10.01, "rate": 10.0, "periods": 2}
    assert answer(GROWTH, given, {}) == "33.11"
    assert answer(GROWTH, given, {"deposit": 0}) == "12.11"
    assert answer(changed(GROWTH, when="start"), given | {"periods": 1}, {}) == "22.01"
    assert answer(GROWTH, given | {"periods": 6}, {}) == "error: too many periods"
    assert answer(GROWTH, given | {"periods": -6}, {}) == "error: negative input"


@pytest.mark.parametrize(
    ("measure", "trim", "expected"),
    [
        ("mean", 0, "5.25"),
        ("median", 0, "4.50"),
        ("range", 0, "8.00"),
        ("variance", 0, "9.69"),
        ("sample_variance", 0, "12.92"),
        ("mean", 1, "4.50"),
        ("range", 1, "3.00"),
    ],
)
def test_statistics_of_2_3_6_10(measure: str, trim: int, expected: str) -> None:
    assert answer(changed(MEAN, measure=measure, trim=trim), {"values": "10, 2,6,3"}, {}) == expected


def test_lists_that_are_not_good_numbers_are_errors() -> None:
    assert answer(MEAN, {"values": " "}, {}) == "error: no numbers"
    assert answer(MEAN, {"values": "4"}, {}) == "error: too few numbers"
    for values in ("4,,5", "4,x", "4,1e5", "4,5.", "4,+5", "4, 5 6"):
        assert answer(MEAN, {"values": values}, {}) == "error: bad number"


def test_answers_that_floats_could_blur_are_not_sampled() -> None:
    assert not is_robust(FORMULA, {"price": 1.0, "count": 8.0}, {})  # 3.125
    assert is_robust(FORMULA, {"price": 1.0, "count": 8.0}, {"precision": 3})
    assert not is_robust(GROWTH, {"amount": 10.05, "rate": 10.0, "periods": 1}, {})  # 11.055
    assert not is_robust(LOAN, {"principal": 59.7, "rate": 6.0, "months": 1}, {})  # 0.2985 is no tie, but 60 is owed


def test_calculators_that_differ_in_names_alone_are_equal() -> None:
    other = {
        "formula": "(depth / speed) + 3",
        "divisors": ["speed"],
        "nonnegative": "depth",
        "precision": 2,
        "checks": ["large", "negative", "zero"],
        "largest": {"input": "speed", "limit": 50},
        "piecewise": {"input": "depth", "limit": 10, "inclusive": True, "otherwise": "(speed - depth) * 2"},
    }
    inputs = (InputField(name="count", type="float"), InputField(name="price", type="float"))
    assert FAMILY.canonical(other, inputs) == FAMILY.canonical(PIECEWISE, inputs)
    assert FAMILY.canonical(PIECEWISE, inputs)["formula"] == "(a / b) + 3"
    assert FAMILY.canonical(PIECEWISE, inputs)["piecewise"]["otherwise"] == "(b - a) * 2"
    assert FAMILY.canonical(FORMULA | {"nonnegative": "count"}, inputs) != FAMILY.canonical(FORMULA, inputs)
    assert PIECEWISE["divisors"] == ["count"]


@pytest.mark.parametrize(
    ("rules", "place"),
    [
        (FORMULA | {"formula": "price / __import__"}, "formula"),
        (FORMULA | {"divisors": ["depth"]}, "must name inputs"),
        (FORMULA | {"loop": MEAN["loop"]}, "either a formula or a loop"),
        (changed(MEAN, trim=1), "needs fewest >= 3"),
        (changed(LOAN, payment=0), "loop.loan.payment"),
        (changed(LOAN, kind="lottery"), "loop"),
    ],
)
def test_a_wrong_row_is_refused_with_its_place(rules: dict[str, object], place: str) -> None:
    with pytest.raises(ValidationError, match=place):
        FAMILY.Rules.model_validate(rules)


def test_a_sampled_tool_of_level_2_never_changes() -> None:
    draft = FAMILY.draft(random.Random(7), 2)
    assert draft.rules == {
        "formula": "((count / weight) + width) + 2",
        "divisors": ["weight"],
        "nonnegative": "weight",
        "precision": 2,
    }
    assert draft.config_field is not None
    assert (draft.config_field.name, draft.config_field.default) == ("precision", 2)


@pytest.mark.parametrize(
    ("rules", "inputs"),
    [
        (PIECEWISE, {"count": 50.5, "price": 50.5}),
        (PIECEWISE | {"checks": ["zero", "large", "negative"]}, {"count": 0.0, "price": 0.0}),
        (LOAN, {"principal": -0.5, "rate": -0.5, "months": -1}),
        (MEAN, {"values": " "}),
    ],
)
def test_one_value_for_all_inputs_tests_the_first_check(rules: dict, inputs: dict) -> None:
    names = {"type_name": "my_tool", "instance": "tool", "function": "compute"}
    tool = complete_tool(FAMILY, FAMILY.complete(rules, None), random.Random(0), **names)
    assert tool is not None
    assert FAMILY.tested_error(tool) == inputs
    assert answer(tool.rules, inputs, {}) == tool.errors[0]
