"""Plans that would cost the host more than those of the generator are refused before anything is computed with them."""

import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from nat_projects import row, spec_of

from agent_rl.envs.nat.factory.oracle.rounding import MAX_DIGITS, is_clear
from agent_rl.envs.nat.judge.parse import parse_spec
from agent_rl.errors import DataError

HUGE = 10**40
Row = dict[str, Any]


def plan(family: str, level: int) -> Row:
    return json.loads(json.dumps(row(spec_of(family, level, of=frozenset({family})))))


def refused(changed: Row) -> str:
    with pytest.raises(DataError) as error:
        parse_spec(changed, "p")
    assert "\n" not in str(error.value) and len(str(error.value)) < 600
    return str(error.value)


@pytest.mark.parametrize("end", ["low", "default", "high"])
@pytest.mark.parametrize("value", [10**6, -(10**6), HUGE])
@pytest.mark.parametrize(
    "family",
    ["unit_converter", "calculator", "text_pipeline", "table_processor", "code_validator", "note_search", "api_client"],
)
def test_a_setting_stays_within_the_bounds_of_its_family(family: str, end: str, value: int) -> None:
    changed = plan(family, 2)
    changed["tools"][0]["config_field"][end] = value
    said = refused(changed)
    assert "field 'tools.0': the setting" in said or "is above max_length" in said


@pytest.mark.parametrize("end", ["low", "default", "high"])
def test_a_groups_setting_stays_within_its_bounds(end: str) -> None:
    changed = plan("function_group", 4)
    kind = changed["group"]["rules"]["kind"]
    known = {"counter": "step", "slots": "limit", "ledger": "overdraft", "poll": "quorum"}.get(kind, "capacity")
    field = {"name": known, "default": changed["group"]["rules"][known], "low": 1, "high": 3, "description": "x"}
    changed["group"]["config_field"] = {**field, end: HUGE}
    assert "field 'group': the setting" in refused(changed)


def test_a_setting_that_the_rules_do_not_offer_is_none() -> None:
    changed = plan("unit_converter", 2)
    changed["tools"][0]["config_field"]["name"] = "digits"
    assert "have no setting 'digits'" in refused(changed)


def test_of_two_settings_with_one_default_the_named_one_is_meant() -> None:
    changed = plan("api_client", 3)
    tool = changed["tools"][0]
    tool["rules"] |= {"max_retries": 2}
    if not tool["rules"]["params"]:
        tool["rules"]["params"] = [{"name": "view", "kind": "fixed", "value": "short"}]
    pages = [{"name": "limit", "kind": "page_size", "value": ""}]
    tool["rules"]["params"] = [each for each in tool["rules"]["params"] if each["kind"] != "page_size"] + pages
    tool["rules"] |= {"page_size": 2, "items": "items", "nothing": "error: nothing"}
    tool["config_field"] = {"name": "max_retries", "default": 2, "low": 0, "high": 4, "description": "x"}
    tool["errors"] = parse_errors(changed)
    assert parse_spec(changed, "p").tools[0].defaults == {"max_retries": 2}


def parse_errors(changed: Row) -> list[str]:
    """The errors that the rules make."""
    text = refused({**changed, "tools": [{**changed["tools"][0], "errors": ["error: other"]}]})
    found: list[str] = json.loads(text.partition("the errors ")[2].partition("]")[0].replace("'", '"') + "]")
    return found


TELLING: list[tuple[str, Callable[[Row], Any]]] = [
    ("under the setting", lambda tool: tool["telling"].update(config={"precision": HUGE})),
    ("under the setting", lambda tool: tool["telling"].update(config={"other": 1})),
    ("the input 'value'", lambda tool: tool["example"]["inputs"].update(value="1e99999999")),
    ("the input 'value'", lambda tool: tool["example"]["inputs"].update(value=HUGE)),
    ("the input 'value'", lambda tool: tool["example"]["inputs"].update(value=5e-324)),
    ("the input 'to_unit'", lambda tool: tool["example"]["inputs"].update(to_unit="x" * 5000)),
    ("inputs must be", lambda tool: tool["example"]["inputs"].update(more=1)),
    ("telling.inputs", lambda tool: tool["telling"].update(inputs=[tool["example"]["inputs"]] * 500)),
]


@pytest.mark.parametrize(("said", "change"), TELLING)
def test_examples_and_telling_inputs_are_bounded(said: str, change: Callable[[Row], Any]) -> None:
    changed = plan("unit_converter", 2)
    change(changed["tools"][0])
    assert said in refused(changed)


RULES: list[tuple[str, str, Callable[[Row], Any]]] = [
    ("unit_converter", "units", lambda rules: rules.update(units={f"a{'b' * n}": "1.0" for n in range(30)})),
    ("unit_converter", "rules have", lambda rules: rules.update(units={f"a{'b' * n}": "1.0" for n in range(300)})),
    ("calculator", "the rules hold 1000", lambda rules: rules.update(precision=HUGE)),
    ("calculator", "single inputs", lambda rules: rules.update(formula=f"{rules['formula']} / (9 - 1)")),
    ("calculator", "names, whole numbers", lambda rules: rules.update(formula=f"{rules['formula']} ** 9 ** 9")),
    ("code_validator", "rules", lambda rules: rules["rules"].append(["min_length", 100_000])),
    ("note_search", "quotes", lambda rules: rules.update(separator='" + __import__("os").system("true") + "')),
    ("note_search", "title_weight", lambda rules: rules.update(title_weight=10_000)),
    ("api_client", "max_retries", lambda rules: rules.update(max_retries=100_000)),
    ("api_client", "quotes", lambda rules: rules.update(failed='error: "')),
]


@pytest.mark.parametrize(("family", "said", "change"), RULES)
def test_rules_are_bounded_and_hold_together(family: str, said: str, change: Callable[[Row], Any]) -> None:
    changed = plan(family, 2)
    change(changed["tools"][0]["rules"])
    assert said in refused(changed)


def test_the_inputs_and_errors_are_those_that_the_rules_make() -> None:
    changed = plan("unit_converter", 1)
    changed["tools"][0]["inputs"][0]["type"] = "str"
    assert "make a tool of the inputs" in refused(changed)
    changed = plan("function_group", 4)
    changed["group"]["errors"] = ["error: other"]
    assert "make a group of other functions" in refused(changed)
    changed["group"]["class_name"] = "A:\n import os\nclass B"
    assert "group.class_name" in refused(changed)


def test_structures_are_bounded() -> None:
    changed = plan("unit_converter", 1)
    assert "field 'tools'" in refused({**changed, "tools": changed["tools"] * 13})
    changed = plan("unit_converter", 3)
    if changed["workflow"]["kind"] == "router":
        changed["workflow"]["example"]["inputs"]["request"] = "x" * 5000
        assert "field 'workflow.example'" in refused(changed)


def test_digits_that_no_float_has_are_never_clear() -> None:
    assert is_clear(Fraction(1, 3), 5)
    assert not is_clear(Fraction(1, 3 * 10**9), MAX_DIGITS + 1)
    assert not is_clear(Fraction(1, 3), 10**12)  # at once
