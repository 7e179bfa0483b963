"""`Family.complete`: drafts follow from their rules, and inconsistent rules are refused with a reason.

Sampled rules with a few values exchanged imitate those that a planner could send.
"""

import json
import random
from typing import Any

import nat_family_checks as checks
import pytest
from pydantic import ValidationError

from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.families.base import Draft, Family
from agent_rl.envs.nat.factory.tool_sampler import complete_tool, valid_cases

LENGTHS: dict[str, Any] = {
    "dimension": "length", "units": {"m": "1.0", "km": "1000.0"}, "precision": 2, "nonnegative": False
}  # fmt: skip
FORMULA: dict[str, Any] = {"formula": "price / count + 3", "divisors": ["count"], "precision": 2}
LOAN: dict[str, Any] = {"precision": 2, "loop": {"kind": "loan", "payment": 100, "answer": "paid", "most": 12}}
PERIODS: dict[str, Any] = {
    "op": "difference", "unit": "periods", "period": 7, "inclusive": False, "reversed": "refuse"
}  # fmt: skip
TABLE: dict[str, Any] = {
    "source": "csv", "delimiter": ",", "trim": False, "join": None, "filters": [], "key": "city", "aggregate": "sum",
    "value": "price", "decimals": 1, "order": "key", "tie": "key", "top": 3, "pair": "=", "joiner": "; ",
}  # fmt: skip
CODE = [["not_blank", ""], ["min_length", 5], ["max_length", 9]]


def complete(name: str, rules: dict[str, Any], default: int | None = None) -> Draft:
    """With rules as they come from JSON."""
    family = FAMILIES[name]
    given = family.Rules.model_validate(rules).model_dump(mode="json", exclude_unset=True)
    return family.complete(given, default)


def dates(operation: dict[str, Any], **rules: Any) -> dict[str, Any]:
    return {"layout": "YYYY-MM-DD", "leading_zeros": False, "operation": operation, **rules}


def searched(**changes: Any) -> dict[str, Any]:
    """A search for tags by BM25 that shows its scores."""
    for seed in range(1000):
        rules = FAMILIES["note_search"].draft(random.Random(seed), 3).rules
        if rules["filter"] and rules["scoring"] == "bm25" and rules["decimals"] and not rules["title_weight"]:
            return {**rules, **changes}
    raise AssertionError("no such rules in a thousand samples")


def fetched(**changes: Any) -> dict[str, Any]:
    """Two pages at most, three things each."""
    for seed in range(1000):
        rules = FAMILIES["api_client"].draft(random.Random(seed), 3).rules
        if rules["max_pages"] == 2 and rules["page_size"] == 3 and rules["max_retries"] is None:
            return {**rules, **changes}
    raise AssertionError("no such rules in a thousand samples")


# ---- what follows from rules


def test_the_default_is_put_into_the_rules_too() -> None:
    assert complete("unit_converter", LENGTHS, 5).rules["precision"] == 5
    assert complete("calculator", LOAN, 250).rules["loop"]["payment"] == 250
    assert complete("date_tool", dates(PERIODS), 10).rules["operation"]["period"] == 10
    assert complete("table_processor", TABLE, 1).rules["decimals"] == 1
    assert complete("code_validator", {"rules": CODE, "report": "first"}, 12).rules["rules"][2] == ["max_length", 12]
    assert complete("api_client", fetched(), 2).rules["max_pages"] == 2


def test_the_configuration_field_is_the_one_that_has_the_default_in_the_rules() -> None:
    fields = [complete("table_processor", TABLE, default).config_field for default in (1, 3)]
    assert [field and field.name for field in fields] == ["decimals", "limit"]
    only = complete("table_processor", {**TABLE, "top": None}, 4).config_field
    assert only is not None and (only.name, only.default) == ("decimals", 4)


def test_what_is_left_out_is_what_families_take_for_granted() -> None:
    assert complete("calculator", FORMULA).rules["nonnegative"] is None
    assert (
        complete("code_validator", {"rules": CODE}).rules["success"] == "ok"
    )  # a fixed maximum needs the rich wording
    warmth = {"units": {"K": "1.8", "R": "1.0"}, "dimension": "temperature", "precision": 1, "nonnegative": False}
    assert complete("unit_converter", {**warmth, "checks": ["unknown", "cold"]}).rules["offsets"] == {}


def test_a_word_that_is_a_variable_of_the_code_stays_a_word() -> None:
    rules = {"ops": [{"op": "prefix", "text": "text: "}], "scope": "lines", "blank_lines": "drop"}
    family, draft = FAMILIES["text_pipeline"], complete("text_pipeline", rules)
    tool = complete_tool(family, draft, random.Random(0), type_name="x", instance="x", function="process")
    assert tool is not None
    assert checks.function_of(tool, family.definitions(tool))(text="a\nb") == "text: a\ntext: b"


# ---- what is refused


@pytest.mark.parametrize(
    ("name", "rules", "default", "reason"),
    [
        ("unit_converter", {**LENGTHS, "units": {"m": "1.0", "km": "1024.0"}}, None, "not {'km': '1024.0'}"),
        ("unit_converter", {**LENGTHS, "units": {"m": "1.0", "mile": "1609.0"}}, None, "worth what is known"),
        ("unit_converter", {**LENGTHS, "aliases": {"metre": "m"}}, None, "['aliases'] need `checks`"),
        ("unit_converter", {**LENGTHS, "checks": ["negative"]}, None, "checks must hold `unknown`"),
        ("unit_converter", {**LENGTHS, "checks": ["unknown", "cold"]}, None, "only a temperature"),
        ("text_pipeline", {"ops": [{"op": "repeat", "n": 20}] * 2, "scope": "text"}, None, "400 times as long"),
        ("calculator", {**FORMULA, "divisors": ["price"]}, None, "divides by ['count']"),
        ("calculator", {**FORMULA, "formula": "price / (count - 1)"}, None, "got count - 1"),
        ("calculator", {**FORMULA, "formula": "price ** 9 / count"}, None, "+ - * /, got price ** 9"),
        ("calculator", {**FORMULA, "formula": "price / count )"}, None, "is no formula"),
        ("calculator", {**FORMULA, "formula": "print / count"}, None, "cannot be called print"),
        ("calculator", {**FORMULA, "checks": ["zero", "large"]}, None, "checks must be ['zero']"),
        ("calculator", {**LOAN, "precision": 3}, None, "have precision 2, got 3"),
        ("calculator", {**LOAN, "checks": ["zero"]}, None, "leave out ['checks']"),
        ("date_tool", dates({**PERIODS, "unit": "days"}), 7, "no configuration field"),
        ("date_tool", dates({**PERIODS, "reversed": "signed"}), None, "can be signed"),
        ("date_tool", dates({"op": "workdays", "weekend": ["Sunday"], "holidays": ["2024-02-30"], "inclusive": True}),
         None, "day is out of range for month"),
        ("table_processor", {**TABLE, "key": "region"}, None, "got ['region']"),
        ("table_processor", {**TABLE, "value": "team"}, None, "value one of numbers"),
        ("table_processor", {**TABLE, "decimals": 3}, 3, "is not clear: limit 3, decimals 3"),
        ("table_processor", {**TABLE, "filters": [{"column": "team", "op": "=", "value": 3}]}, None, "another kind"),
        ("code_validator", {"rules": [["not_blank", ""], ["max_length", ""]]}, None, "max_length needs a number"),
        ("code_validator", {"rules": CODE}, 4, "min_length 5 is above max_length 4"),
        ("code_validator", {"rules": CODE, "report": "all"}, None, "two rules that a code can break at once"),
        ("code_validator", {"rules": CODE[:2]}, 9, "a rule of the kind max_length"),
        ("note_search", searched(k1=None), None, "k1 and b are for bm25"),
        ("note_search", searched(decimals=None), None, "decimals is for scores"),
        ("note_search", searched(title_weight=2), None, "title_weight is for notes with titles"),
        ("api_client", fetched(page_size=None), None, "page_size needs one parameter"),
        ("api_client", fetched(nothing=None), None, "has items and nothing"),
        ("api_client", fetched(), 7, "is not clear: page_size 3, max_pages 2"),
    ],
)  # fmt: skip
def test_rules_that_make_no_sense_are_refused(
    name: str, rules: dict[str, Any], default: int | None, reason: str
) -> None:
    with pytest.raises(ValueError) as caught:
        complete(name, rules, default)
    assert not isinstance(caught.value, ValidationError)
    assert reason in str(caught.value)


@pytest.mark.parametrize("text", ["{__import__('os')}", '"', "`"])
def test_texts_that_would_be_code_in_an_f_string_are_not_in_the_vocabulary(text: str) -> None:
    with pytest.raises(ValidationError):
        complete("api_client", fetched(between=text))


# ---- what is accepted is consistent


def altered(rules: Any, other: Any, rng: random.Random) -> Any:
    """The rules with some values exchanged for those of others, or for near ones."""
    if isinstance(rules, dict) and isinstance(other, dict):
        selected = {
            key: altered(value, other.get(key, value), rng) for key, value in rules.items() if rng.random() > 0.02
        }
        return selected | {key: other[key] for key in other if rng.random() < 0.05}
    if isinstance(rules, list) and isinstance(other, list):
        out = [altered(each, rng.choice(other or [each]), rng) for each in rules]
        return rng.sample(out, len(out)) if rng.random() < 0.05 else out
    if rng.random() > 0.1:
        return rules
    if isinstance(rules, int) and not isinstance(rules, bool):
        return rng.choice([rules - 1, rules + 1, 0, 1, 30])
    return other


def planned_tools(family: Family, count: int) -> int:
    """How many of `count` changed rules make a tool; the reference of each answers as the oracle does."""
    made = 0
    for seed in range(count):
        rng = random.Random(f"{family.name}-{seed}")
        draft, other = (family.draft(rng, rng.choice([1, 2, 3])) for _ in range(2))
        rules = altered(json.loads(json.dumps(draft.rules)), json.loads(json.dumps(other.rules)), rng)
        default = draft.config_field.default if draft.config_field else None
        try:
            draft = complete(family.name, rules, default)
        except ValueError:
            continue
        field = draft.config_field
        if field and not field.low <= field.default <= field.high:
            continue
        try:
            tool = complete_tool(family, draft, rng, type_name="x", instance="x", function=family.function)
            cases = valid_cases(family, tool, rng, tool.defaults, 12) if tool else []
        except (LookupError, ValueError):  # a range that is empty, and the like
            continue
        if tool is None:
            continue
        made += 1
        family.Rules.model_validate(tool.rules)
        assert " ".join(family.sentences(tool, rng)).isprintable()
        answer = checks.function_of(tool, family.definitions(tool))
        for inputs in [*cases, *family.error_inputs(tool, rng).values(), family.bad_inputs(tool)]:
            assert answer(**inputs) == oracle.answer(tool, inputs, tool.defaults), (tool.rules, inputs)
    return made


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "api_client"])  # whose reference calls a service
def test_whatever_is_accepted_has_a_reference_that_answers_as_the_oracle(name: str) -> None:
    assert planned_tools(FAMILIES[name], 120) > 20
