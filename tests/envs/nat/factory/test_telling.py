"""Hidden cases hold the inputs that tell a tool from its neighbours, at every seed, and others that change with it."""

import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from commands import ROOT
from nat_family_checks import tool_of
from nat_projects import spec_of

from agent_rl.data.neighbours import run_program
from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.cases import NUM_CHANGING, WORKFLOW, hidden_cases, other_setting
from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.telling import telling_of, with_telling
from agent_rl.envs.nat.judge.parse import parse_spec
from agent_rl.envs.nat.spec import ConfigField, Tool

SPEC = with_telling(spec_of("unit_converter", 2))


def test_every_seed_asks_the_telling_inputs_and_others() -> None:
    (tool,) = SPEC.tools
    asked = [
        [each.inputs for each in hidden_cases(SPEC, seed)[0].questions if each.target != WORKFLOW] for seed in (0, 1, 2)
    ]
    for inputs in asked:
        assert all(each in inputs for each in tool.telling.inputs)
    common = [each for each in asked[0] if each in asked[1] and each in asked[2]]
    assert len(asked[0]) >= len(common) + NUM_CHANGING - 1


def test_the_other_setting_asks_what_tells_apart_there() -> None:
    (tool,) = SPEC.tools
    run = next(each for each in hidden_cases(SPEC, 0) if each.overrides)
    assert run.overrides == {tool.instance: tool.telling.config}
    assert all(each in [question.inputs for question in run.questions] for each in tool.telling.configured)


def test_telling_depends_on_the_tool_alone() -> None:
    (tool,) = SPEC.tools
    assert telling_of(tool) == tool.telling
    assert telling_of(tool.model_copy(update={"instance": "other"})) == tool.telling


def test_a_row_keeps_its_telling_inputs() -> None:
    assert parse_spec(SPEC.model_dump(mode="json"), "row 1") == SPEC


def test_half_a_check_is_told() -> None:
    """An unknown unit is asked on either side."""
    (tool,) = SPEC.tools
    units = set(tool.rules["units"])
    asked = [each for each in tool.telling.inputs if not {each["from_unit"], each["to_unit"]} <= units]
    assert any(each["from_unit"] not in units and each["to_unit"] in units for each in asked)
    assert any(each["to_unit"] not in units and each["from_unit"] in units for each in asked)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_the_reference_answers_all_telling_inputs_as_the_oracle_does(name: str) -> None:
    tool = tool_of(FAMILIES[name], 2, 3)
    telling = telling_of(tool)
    assert telling.inputs and telling.config != tool.defaults
    for config, asked in ((tool.defaults, telling.inputs), (telling.config, telling.configured)):
        assert all(oracle.is_robust(tool, inputs, config) for inputs in asked)
        assert all(oracle.wrong_answer(tool, tool.rules, i, config) == oracle.answer(tool, i, config) for i in asked)


def test_a_note_search_is_told_in_longer_answers_too() -> None:
    assert other_setting(ConfigField(name="k", default=2, low=1, high=8, description=""), random.Random(0)) == {"k": 4}
    assert other_setting(ConfigField(name="k", default=8, low=1, high=8, description=""), random.Random(0)) == {"k": 4}


EDGES = {
    "unit_converter": lambda tool, each: -1 < each["value"] < 0,
    "text_pipeline": lambda tool, each: len(each["text"]) == tool.config_field.default + 1,
    "code_validator": lambda tool, each: len(each["code"]) == tool.config_field.default + 1,
    "table_processor": lambda tool, each: oracle.answer(tool, each, tool.defaults) == "none",
    "note_search": lambda tool, each: any(word in each["query"].split() for word in ("the", "and", "for", "with")),
}


def _has_bound(tool: Tool) -> bool:
    """Whether some table may lose all its rows; tools of other families have their bounds."""
    return tool.family != "table_processor" or bool(tool.rules["filters"])


@pytest.mark.parametrize("name", sorted(EDGES))
def test_the_edges_of_rules_are_looked_at(name: str) -> None:
    tool = next(tool for tool in (tool_of(FAMILIES[name], 2, seed) for seed in range(9)) if _has_bound(tool))
    edges = FAMILIES[name].edge_inputs(tool, random.Random(0))
    assert any(EDGES[name](tool, each) for each in edges)
    assert all(set(each) == {field.name for field in tool.inputs} for each in edges)


def test_a_request_that_nobody_answers_is_no_difference_where_the_service_fails() -> None:
    family, tool = FAMILIES["api_client"], tool_of(FAMILIES["api_client"], 1, 0)
    right = run_program(family.definitions(tool))
    lost = {**right, f"{tool.function}_path": lambda **_: "/nowhere"}
    failing, answered = [], []
    rng = random.Random(0)
    while not (failing and answered):
        errors = family.error_inputs(tool, rng)
        inputs = errors[tool.rules["failed"]] if answered else family.valid_inputs(tool, rng)
        answer = oracle.answer(tool, inputs, tool.defaults)
        (failing if answer == tool.rules["failed"] else answered).append(inputs)
    for inputs, is_same in ((failing[0], True), (answered[0], False)):
        outcomes = [family.outcome(tool, program, inputs, tool.defaults) for program in (right, lost)]
        assert (outcomes[0] == outcomes[1]) is is_same
        elsewhere = oracle.wrong_answer(tool, {**tool.rules, "path": "/nowhere"}, inputs, tool.defaults)
        assert elsewhere == tool.rules["failed"]


def test_an_api_client_is_told_by_the_service_it_asks() -> None:
    """Other rules make another client of the same service, not another service."""
    tool = tool_of(FAMILIES["api_client"], 1, 0)
    inputs = FAMILIES["api_client"].valid_inputs(tool, random.Random(0))
    joined = {**tool.rules, "joiner": "#", "between": "#"}
    right = oracle.answer(tool, inputs, tool.defaults)
    changed = oracle.wrong_answer(tool, joined, inputs, tool.defaults)
    assert changed == right.replace(tool.rules["joiner"], "#").replace(tool.rules["between"], "#")


def test_workers_of_a_killed_preparation_end_with_it(tmp_path: Path) -> None:
    """They would finish what they have, and then wait for ever."""
    words = [sys.executable, "-m", "agent_rl.scripts.prepare_dataset", "--starter", "--num-samples", "80"]
    with subprocess.Popen([*words, "--output-dir", str(tmp_path / "tasks")], cwd=ROOT) as parent:
        workers: list[psutil.Process] = []
        deadline = time.monotonic() + 120
        while not workers and time.monotonic() < deadline:
            time.sleep(0.05)
            children = psutil.Process(parent.pid).children()
            workers = [each for each in children if "spawn_main" in " ".join(each.cmdline())]
        parent.terminate()
    assert workers
    assert psutil.wait_procs(workers, timeout=120)[1] == []
