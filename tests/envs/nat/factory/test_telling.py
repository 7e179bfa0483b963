"""Hidden cases hold the inputs that tell a tool from its neighbours, at every seed, and others that change with it."""

import random

import pytest
from nat_family_checks import tool_of
from nat_projects import spec_of

from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.cases import NUM_CHANGING, WORKFLOW, hidden_cases
from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.telling import telling_of, with_telling
from agent_rl.envs.nat.judge.parse import parse_spec

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


def test_an_api_client_is_told_by_the_service_it_asks() -> None:
    """Other rules make another client of the same service, not another service."""
    tool = tool_of(FAMILIES["api_client"], 1, 0)
    inputs = FAMILIES["api_client"].valid_inputs(tool, random.Random(0))
    joined = {**tool.rules, "joiner": "#", "between": "#"}
    right = oracle.answer(tool, inputs, tool.defaults)
    changed = oracle.wrong_answer(tool, joined, inputs, tool.defaults)
    assert changed == right.replace(tool.rules["joiner"], "#").replace(tool.rules["between"], "#")
