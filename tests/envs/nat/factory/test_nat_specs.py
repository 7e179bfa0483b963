"""Specs: deterministic, divided by what they do, and worded so that a person could build them."""

import functools
import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nat_projects import sample_spec

from agent_rl.envs.nat.factory import generate
from agent_rl.envs.nat.factory.cases import WORKFLOW, hidden_cases
from agent_rl.envs.nat.factory.families import FAMILIES, GROUPS
from agent_rl.envs.nat.factory.generate import (
    HELD_OUT_FAMILY,
    LEVELS,
    STARTER_FAMILIES,
    cell_order,
    fingerprint_of,
    generate_specs,
    is_held_out,
    split_of,
)
from agent_rl.envs.nat.factory.oracle import workflow as flow_oracle
from agent_rl.envs.nat.factory.render import render_logic, render_project
from agent_rl.envs.nat.factory.tool_sampler import NUM_VALID, sample_tool
from agent_rl.envs.nat.judge.parse import parse_spec
from agent_rl.envs.nat.spec import NATSpec, Pipeline, Router
from agent_rl.errors import ConfigError, DataError

SPLITS = {"train": ["train", "sft"], "val": ["val"], "test_generalisation": ["test_generalisation"]}


def take(name: str, count: int, seed: int = 0, **only) -> list[NATSpec]:
    return list(itertools.islice(generate_specs(seed, SPLITS[name], **only), count))


@functools.cache
def train_specs() -> list[NATSpec]:
    return take("train", 120)


EVERY_CELL = [(family, level) for family, levels in LEVELS.items() for level in levels]


def one(family: str, level: int, seed: int = 0) -> NATSpec:
    """The first sound spec of a cell."""
    specs = (sample_spec(family, level, random.Random(f"{seed}-{number}"), task_id="x") for number in range(20))
    return next(spec for spec in specs if spec is not None)


def test_the_same_seed_gives_the_same_specs() -> None:
    assert [spec.model_dump_json() for spec in take("train", 30)] == [
        spec.model_dump_json() for spec in train_specs()[:30]
    ]
    assert take("train", 5, seed=1) != train_specs()[:5]


def test_no_fingerprint_is_in_two_sets_or_twice_in_one() -> None:
    digests = {name: [spec.fingerprint for spec in take(name, 60)] for name in SPLITS}
    together = list(itertools.chain.from_iterable(digests.values()))
    assert len(set(together)) == len(together)
    assert {split_of(each) for each in digests["val"]} == {"val"}
    assert "val" not in {split_of(each) for each in digests["train"]}


def test_difficulty_is_30_50_20_and_every_cell_but_the_held_out_family_takes_part() -> None:
    counts = Counter(spec.difficulty for spec in train_specs())
    assert (counts["easy"], counts["medium"], counts["hard"]) == (36, 60, 24)
    families = {family for family, _ in itertools.islice(cell_order(), 200)}
    assert families == set(LEVELS)
    assert {spec.family for spec in train_specs()} == families - {HELD_OUT_FAMILY}


def test_the_generalisation_set_is_held_out_families_and_combinations_only() -> None:
    held_out = take("test_generalisation", 40)
    assert all(is_held_out(spec) for spec in held_out)
    assert not any(is_held_out(spec) for spec in train_specs())
    kinds = Counter(spec.family == HELD_OUT_FAMILY for spec in held_out)
    assert kinds[False] > kinds[True] > 0


def test_families_and_levels_can_be_chosen_and_none_is_an_error() -> None:
    chosen = take("train", 15, families=STARTER_FAMILIES, levels=(1, 2))
    cells = set(itertools.product(STARTER_FAMILIES, (1, 2))) - {("mcp_served", 1)}
    assert {(spec.family, spec.level) for spec in chosen} == cells
    with pytest.raises(ConfigError, match="level"):
        next(cell_order(["react_agent"], [1]))
    with pytest.raises(ConfigError, match="did you mean 'calculator'"):
        next(cell_order(["calculater"]))
    with pytest.raises(ConfigError, match="held out"):
        take("train", 1, families=[HELD_OUT_FAMILY])
    assert {spec.family for spec in take("test_generalisation", 2, families=[HELD_OUT_FAMILY])} == {HELD_OUT_FAMILY}


def test_a_choice_without_any_more_specs_reports_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "_ATTEMPTS", 20)
    with pytest.raises(ConfigError, match=r"^only \d+ different specs for val were found in families"):
        take("val", 10_000, families=["text_pipeline"], levels=[1])


def test_a_terse_request_is_the_same_task_in_fewer_words() -> None:
    long, short = (take("train", 8, families=["text_pipeline"], levels=[2], terse=terse) for terse in (False, True))
    for one, other in zip(long, short, strict=True):
        assert one.model_copy(update={"request": other.request}) == other
        assert len(other.request) < len(one.request)
        assert all(f"`{op}`: " in one.request for op in one.tools[0].rules["ops"])
        assert f"`{one.tools[0].function}` has `max_length` as its last argument" in one.request


def test_in_a_terse_request_only_the_server_sentences_identify_a_served_tool() -> None:
    served = take("train", 8, families=["mcp_served"], levels=[2], terse=True)
    for spec in served:
        assert "\n" not in spec.request and f"`{spec.server.name}`" in spec.request
        assert ("is raised, so that the client sees `isError`." in spec.request) == spec.server.raises
    assert {spec.server.raises for spec in served} == {True, False}


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(EVERY_CELL), st.integers(0, 10**6))
def test_renaming_everything_leaves_the_fingerprint_and_the_hidden_cases(cell: tuple[str, int], seed: int) -> None:
    spec = sample_spec(*cell, random.Random(seed), task_id="a")
    if spec is None:
        return
    renamed = spec.model_copy(update={"package": "nat_other_name", "task_id": "b", "request": "x"})
    if isinstance(spec.workflow, Pipeline):
        renamed = renamed.model_copy(update={"workflow": spec.workflow.model_copy(update={"type_name": "other"})})
    assert fingerprint_of(renamed) == spec.fingerprint
    assert hidden_cases(renamed, 1) == hidden_cases(spec, 1)
    assert hidden_cases(spec, 1) != hidden_cases(spec, 2)


def test_calculators_that_differ_in_input_names_only_are_one_task() -> None:
    spec = next(spec for spec in train_specs() if spec.family == "calculator" and spec.level == 1)
    tool = spec.tools[0]
    names = dict(zip((field.name for field in reversed(tool.inputs)), ["alpha", "beta", "gamma"], strict=False))
    text = tool.model_dump_json()
    for old, new in names.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    rules = dict(tool.rules)
    for old, new in names.items():
        rules["formula"] = rules["formula"].replace(old, new)
    changed = type(tool).model_validate_json(text)
    changed = changed.model_copy(update={"rules": {**changed.rules, "formula": rules["formula"]}})
    assert changed.rules != tool.rules
    assert fingerprint_of(spec.model_copy(update={"tools": (changed,)})) == spec.fingerprint


@pytest.mark.parametrize("cell", EVERY_CELL, ids=str)
def test_a_request_names_everything_the_checker_looks_at(cell: tuple[str, int]) -> None:
    spec = one(*cell)
    wanted = [spec.package]
    for tool in spec.tools:
        wanted += [tool.type_name, tool.instance, *tool.errors, *(field.name for field in tool.inputs)]
        wanted += [tool.config_field.name, str(tool.config_field.high)] if tool.config_field else []
    if spec.group:
        wanted += [spec.group.type_name, spec.group.class_name, *spec.group.instances, *spec.group.errors]
        wanted += [each.name for each in spec.group.functions]
    if isinstance(spec.workflow, Router):
        wanted += [spec.workflow.type_name, spec.workflow.unknown, spec.workflow.malformed, *spec.workflow.commands]
    if spec.server.name != spec.package:
        wanted.append(spec.server.name)
    wanted += [spec.client_group] if spec.client_group else []
    assert [word for word in wanted if word not in spec.request] == []


@pytest.mark.parametrize("cell", EVERY_CELL, ids=str)
def test_hidden_cases_hold_valid_ones_every_error_and_not_the_example(cell: tuple[str, int]) -> None:
    spec = one(*cell, seed=2)
    runs = hidden_cases(spec, seed=3)
    for tool in spec.tools:
        own = [question for question in runs[0].questions if question.target == tool.instance]
        assert sum(not question.expected.startswith("error") for question in own) >= NUM_VALID - 1
        assert set(tool.errors) <= {question.expected for question in own}
        assert tool.example.inputs not in [question.inputs for question in own]
    if spec.group:
        questions = [question for run in runs for question in run.questions if question.target and not run.swapped]
        assert len(questions) >= 30
        assert {question.target.partition("__")[0] for question in questions} == set(spec.group.instances)
    assert any(question.target == WORKFLOW for run in runs for question in run.questions)
    assert any(run.swapped for run in runs) == (spec.workflow.kind != "direct")
    assert any(run.through_client for run in runs) == (spec.client_group is not None)


@pytest.mark.parametrize("cell", EVERY_CELL, ids=str)
def test_reference_logic_holds_its_tests_and_every_mutant_fails_them(cell: tuple[str, int]) -> None:
    spec = one(*cell, seed=5)
    tests = "def test_" + render_project(spec)[spec.tests_path].partition("def test_")[2]
    assert holds(render_logic(spec), tests)
    for tool in spec.tools:
        for text in FAMILIES[tool.family].mutants(tool):
            assert not holds(render_logic(spec, {tool.instance: text}), tests)
    if spec.group:
        for text in GROUPS[spec.group.family].mutants(spec.group):
            assert not holds(render_logic(spec, {spec.group.type_name: text}), tests)


def holds(logic: str, tests: str) -> bool:
    namespace: dict = {}
    try:
        exec(compile(logic, "logic.py", "exec"), namespace)
        exec(compile(tests, "tests.py", "exec"), namespace)
        for name in [name for name in namespace if name.startswith("test_")]:
            namespace[name]()
    except Exception:  # any failure of a test or of the code under it
        return False
    return True


def test_golden_answers_of_a_router() -> None:
    rules = {"dimension": "length", "units": {"km": "1000.0", "m": "1.0"}, "precision": 1, "nonnegative": True}
    tool = sample_tool(
        FAMILIES["unit_converter"],
        1,
        random.Random(0),
        type_name="nat_a_tool",
        instance="main_tool",
        function="convert",
    ).model_copy(update={"rules": rules})
    spec = one("unit_converter", 3)
    flow = spec.workflow.model_copy(
        update={"separator": "|", "commands": {"go": "main_tool"}, "unknown": "error: no", "malformed": "error: what"}
    )
    spec = spec.model_copy(update={"tools": (tool,), "workflow": flow})
    lines = ["go | 2.5 | km | m", "go|-1|km|m", "stop | 1", "go | 1 | km", "go | many | km | m", " go | 1 | ft | m"]
    assert flow_oracle.conversation(spec, [{"request": line} for line in lines], {"main_tool": {}}) == [
        "2500.0",
        "error: negative value",
        "error: no",
        "error: what",
        "error: what",
        "error: unknown unit",
    ]
    swapped = flow_oracle.conversation(spec, [{"request": lines[0]}], {"main_tool": {}}, {"main_tool": "7.5"})
    assert swapped == ["7.5"]


def test_a_row_that_is_not_a_spec_is_refused_with_its_field() -> None:
    row = train_specs()[0].model_dump(mode="json")
    assert parse_spec(row, "f.jsonl:1") == train_specs()[0]
    tool = row["tools"][0]

    def refused(changed: dict, pattern: str) -> None:
        with pytest.raises(DataError, match=pattern) as error:
            parse_spec(changed, "f.jsonl:3")
        assert "\n" not in str(error.value)

    refused({key: value for key, value in row.items() if key != "package"}, r"f\.jsonl:3: field 'package'")
    refused({**row, "colour": "red"}, "field 'colour'")
    refused({**row, "level": 6}, "field 'level'")
    refused({**row, "family": "calculater"}, "field 'family': there is no task family 'calculater'; did you mean")
    refused({**row, "tools": [{**tool, "family": "poetry"}]}, r"field 'tools\.0\.family'")
    refused({**row, "tools": [{**tool, "rules": {}}]}, r"field 'tools\.0\.rules")
    refused({**row, "tools": []}, "field 'tools'")
