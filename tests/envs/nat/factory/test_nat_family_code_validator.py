"""Code validators: the oracle by eye, and the sampled references against it."""

import random

import pytest
from pydantic import ValidationError

from agent_rl.envs.nat.factory.families.code_validator import CodeValidator
from agent_rl.envs.nat.factory.oracle.code_validator import answer

FAMILY = CodeValidator()

SIMPLE = {"rules": [["not_blank", ""], ["prefix", "ab"], ["mark", "-"], ["ending", "digits"], ["min_length", 5]]}
CHECK = {"weights": [3, 1], "modulus": 11, "letters": False}


def checked(code: str, *rules: list[object], country: str = "DE", **more: str) -> str:
    return answer({"rules": [["not_blank", ""], *rules]} | more, {"code": code, "country": country}, {"max_length": 6})


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("ab-12", "ok"),
        ("", "error: blank code"),
        ("  ", "error: blank code"),
        ("ac-12", "error: bad prefix"),
        ("ab12", "error: mark missing"),
        ("ab-1x", "error: bad ending"),
        ("ab-1", "error: too short"),
    ],
)
def test_the_first_rule_that_is_broken_is_the_answer(code: str, expected: str) -> None:
    assert answer(SIMPLE, {"code": code}, {}) == expected


def test_the_longest_code_is_the_configured_one() -> None:
    assert checked("abcdef", ["max_length", ""]) == "ok"
    assert checked("abcdefg", ["max_length", 9]) == "error: too long"


def test_characters_must_be_there_and_in_their_range() -> None:
    rule = ["range", {"start": 2, "end": 3, "low": "b", "high": "d"}]
    assert [checked(code, rule) for code in ("xbd", "xbdx")] == ["ok", "ok"]
    assert {checked(code, rule) for code in ("xad", "xbe", "xb", "bbD")} == {"error: bad character"}


def test_a_check_digit_is_a_weighted_sum() -> None:
    # 3 * 1 + 1 * 2 + 3 * 4 = 17, which is 6 modulo 11; 3 * 7 = 21, which is 10.
    assert checked("1a2-46", ["check", CHECK]) == "ok"
    assert checked("1a2-45", ["check", CHECK]) == "error: bad check digit"
    assert checked("7x", ["check", CHECK]) == "ok"
    # 3 * 1 + 1 * 3 (for c) = 6
    assert checked("1C6", ["check", CHECK | {"letters": True}]) == "ok"


def test_the_country_decides_on_the_prefix() -> None:
    rule = ["country", {"DE": "ab", "FR": "cx"}]
    assert checked("ab1", rule) == "ok"
    assert checked("ab1", rule, country="FR") == checked("ab1", rule, country="XX") == "error: wrong country"


def test_all_errors_are_listed_where_the_rules_require_it() -> None:
    rules = [["mark", "-"], ["min_length", 4], ["prefix", "ab"]]
    assert checked("abc", *rules, report="all") == "error: mark missing; error: too short"
    assert checked("abc", *rules, report="first") == "error: mark missing"
    assert checked(" ", *rules, report="all") == "error: blank code"


@pytest.mark.parametrize(("success", "expected"), [("upper", "ok AB-12"), ("bare", "ok ab12"), ("tail", "ok b-12")])
def test_a_good_code_may_be_answered_with_more_than_ok(success: str, expected: str) -> None:
    assert checked("ab-12", ["mark", "-"], success=success) == expected


@pytest.mark.parametrize(
    ("rules", "place"),
    [
        ([["prefix", "ab"], ["mark", "-"]], "not_blank"),
        ([["not_blank", ""], ["mark", "-"], ["mark", "_"]], "must differ"),
        ([["not_blank", ""], ["prefix", "a b"]], "rules.1"),
        ([["not_blank", ""], ["smell", "good"]], "rules.1"),
        ([["not_blank", ""], ["check", CHECK | {"modulus": 12}]], "modulus"),
        ([["not_blank", ""], ["range", {"start": 3, "end": 2, "low": "a", "high": "f"}]], "end"),
    ],
)
def test_a_wrong_row_is_refused_with_its_place(rules: list[list[object]], place: str) -> None:
    with pytest.raises(ValidationError, match=place):
        FAMILY.Rules.model_validate({"rules": rules})


def test_a_sampled_tool_of_level_2_never_changes() -> None:
    draft = FAMILY.draft(random.Random(7), 2)
    assert draft.rules == {"rules": [["not_blank", ""], ["mark", "-"], ["min_length", 5], ["max_length", ""]]}
    assert draft.config_field is not None
    assert (draft.config_field.name, draft.config_field.default) == ("max_length", 13)
