"""Specs: deterministic, divided by what they do, and worded so that a person could build them."""

import itertools
import json

import pytest

from agent_rl.errors import DataError
from agent_rl.nat import oracle
from agent_rl.nat.cases import NUM_VALID, hidden_cases
from agent_rl.nat.families import FAMILIES
from agent_rl.nat.generate import generate_specs, split_of
from agent_rl.nat.project import render_project
from agent_rl.nat.spec import NATSpec, parse_spec


def take(split: str, count: int, seed: int = 0) -> list[NATSpec]:
    return list(itertools.islice(generate_specs(seed, split), count))


SPECS = take("train", 80)


def test_the_same_seed_gives_the_same_specs() -> None:
    assert [spec.model_dump_json() for spec in take("train", 20)] == [spec.model_dump_json() for spec in SPECS[:20]]
    assert take("train", 5, seed=1) != SPECS[:5]


def test_no_fingerprint_is_in_two_splits_or_twice_in_one() -> None:
    digests = {split: [spec.fingerprint for spec in take(split, 120)] for split in ("train", "val", "sft")}
    for split, values in digests.items():
        assert len(set(values)) == len(values)
        assert {split_of(value) for value in values} == {split}


def test_renaming_a_task_does_not_change_its_fingerprint() -> None:
    from agent_rl.nat.spec import fingerprint

    spec = SPECS[0]
    assert spec.fingerprint == fingerprint(spec.family, spec.level, spec.rules, spec.config_field)


def test_four_families_at_two_levels_take_part() -> None:
    assert {(spec.family, spec.level) for spec in SPECS} == {(name, level) for name in FAMILIES for level in (1, 2)}


@pytest.mark.parametrize("spec", SPECS[:16], ids=lambda spec: spec.task_id)
def test_a_request_names_everything_the_checker_looks_at(spec: NATSpec) -> None:
    wanted = [spec.package, spec.type_name, spec.instance, *spec.errors, spec.example.output]
    wanted += [field.name for field in spec.inputs]
    if spec.config_field:
        wanted += [spec.config_field.name, str(spec.config_field.default), str(spec.config_field.high)]
    assert [word for word in wanted if word not in spec.request] == []


def test_hidden_cases_hold_valid_ones_every_error_and_not_the_example() -> None:
    for spec in SPECS[:24]:
        first, *rest = hidden_cases(spec, seed=3)
        assert sum(not text.startswith("error") for text in first.expected) >= NUM_VALID - 1
        assert set(spec.errors) <= set(first.expected)
        assert spec.example.inputs not in first.inputs
        assert bool(rest) == (spec.config_field is not None)


def test_hidden_cases_depend_on_the_seed_and_not_on_the_name() -> None:
    spec = SPECS[0]
    renamed = spec.model_copy(update={"package": "nat_other_name", "task_id": "x"})
    assert hidden_cases(spec, 1) == hidden_cases(renamed, 1)
    assert hidden_cases(spec, 1) != hidden_cases(spec, 2)


def test_oracle_and_reference_logic_agree_though_they_share_no_code() -> None:
    for spec in take("val", 120):
        namespace: dict = {}
        exec(render_project(spec)[f"src/{spec.package}/logic.py"], namespace)
        for run in hidden_cases(spec, seed=5):
            given = [namespace[spec.function](**case, **run.overrides) for case in run.inputs]
            assert given == list(run.expected), spec.task_id


def test_every_mutant_differs_from_the_oracle_on_the_example_or_the_first_error() -> None:
    for spec in SPECS[:40]:
        for body in FAMILIES[spec.family].mutants(spec):
            namespace: dict = {}
            exec(render_project(spec, body=body)[f"src/{spec.package}/logic.py"], namespace)
            wrong = 0
            for run in hidden_cases(spec, seed=1)[:1]:
                for case, expected in zip(run.inputs, run.expected, strict=True):
                    try:
                        wrong += namespace[spec.function](**case) != expected
                    except (ZeroDivisionError, IndexError, KeyError):
                        wrong += 1
            assert wrong > 0, (spec.task_id, body)


def test_golden_answers_of_the_oracle() -> None:
    converter = next(spec for spec in take("sft", 300) if spec.family == "unit_converter" and spec.level == 2)
    rules = {"dimension": "length", "units": {"km": "1000.0", "m": "1.0"}, "precision": 1, "nonnegative": True}
    spec = converter.model_copy(update={"rules": rules})
    assert oracle.answer(spec, {"value": 2.5, "from_unit": "km", "to_unit": "m"}, {"precision": 2}) == "2500.00"
    assert oracle.answer(spec, {"value": -1, "from_unit": "km", "to_unit": "m"}, {}) == "error: negative value"
    assert oracle.answer(spec, {"value": -1, "from_unit": "ft", "to_unit": "m"}, {}) == "error: unknown unit"


def test_a_rounding_tie_is_not_robust() -> None:
    spec = next(spec for spec in SPECS if spec.family == "unit_converter")
    spec = spec.model_copy(update={"rules": {**spec.rules, "units": {"m": "1.0"}}})
    tie, clear = ({"value": value, "from_unit": "m", "to_unit": "m"} for value in (2.5, 2.4))
    assert not oracle.is_robust(spec, tie, {"precision": 0})
    assert oracle.is_robust(spec, clear, {"precision": 0})


def test_a_row_that_is_not_a_spec_is_refused_with_its_field() -> None:
    row = json.loads(SPECS[0].model_dump_json())
    assert parse_spec(row, "f.jsonl:1") == SPECS[0]
    with pytest.raises(DataError, match=r"f\.jsonl:3: field 'package'"):
        parse_spec({key: value for key, value in row.items() if key != "package"}, "f.jsonl:3")
    with pytest.raises(DataError, match="field 'colour'"):
        parse_spec({**row, "colour": "red"}, "f.jsonl:1")
