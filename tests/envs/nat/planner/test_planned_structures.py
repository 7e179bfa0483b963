"""Agents of several tools from a planner: each structure becomes a spec whose reference project is right."""

from typing import Any

import pytest
from created_agents import KILOMETRES, SHOUT, outline, planned, planner
from nat_projects import check, row

from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.planner.plan import plan_of
from agent_rl.envs.nat.factory.planner.structure import outline_prompt, outline_schema
from agent_rl.envs.nat.judge.parse import parse_spec
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.spec import NATSpec

CODES = {"rules": [["not_blank", ""], ["ending", "letters and digits"], ["min_length", 7]]}
PLANS: dict[str, dict[str, Any]] = {
    "unit_converter": planned(KILOMETRES, name="length_tool"),
    "text_pipeline": planned(SHOUT, name="shout_tool"),
    "code_validator": planned(CODES, name="code_check"),
}


def spec_of_structure(structure: str, *families: str, **changes: Any) -> NATSpec:
    plans = [{**PLANS[family], **changes} for family in families]
    found = planner(outline(structure, *families), *plans).plan("x", with_cases=False)
    assert found.spec is not None, found.reason
    return found.spec


def reason_of(*answers: Any, max_tools: int = 4) -> str:
    found = planner(*answers, max_tools=max_tools).plan("x", with_cases=False)
    assert found.spec is None
    return found.reason


@pytest.mark.parametrize(
    ("structure", "families", "scaffold", "level"),
    [
        ("direct", ("unit_converter",), "simple_tool", 1),
        ("router", ("unit_converter", "unit_converter"), "router", 3),
        ("router", ("unit_converter", "text_pipeline"), "router", 5),
        ("chain", ("text_pipeline", "text_pipeline"), "pipeline", 3),
        ("chain", ("code_validator", "text_pipeline"), "pipeline", 3),
        ("served", ("unit_converter", "text_pipeline"), "mcp_client", 4),
    ],
)
def test_a_structure_becomes_a_spec_whose_reference_is_right(
    nat_toolkit: NatToolkit, structure: str, families: tuple[str, ...], scaffold: str, level: int
) -> None:
    spec = spec_of_structure(structure, *families)
    assert (spec.plan.scaffold_type, spec.level) == (scaffold, level)
    assert [tool.family for tool in spec.tools] == list(families)
    assert len({tool.instance for tool in spec.tools}) == len(families)
    assert parse_spec(row(spec), "row") == spec
    assert spec.plan == plan_of(spec)
    assert check(nat_toolkit, spec).complete


def test_a_react_agent_gets_its_tools_and_a_bound_of_calls() -> None:
    spec = spec_of_structure("react", "unit_converter", "text_pipeline")
    assert (spec.family, spec.level, spec.workflow.kind) == ("react_agent", 5, "react")


def test_a_check_in_a_chain_passes_the_text_on() -> None:
    flow = spec_of_structure("chain", "code_validator", "text_pipeline").workflow
    assert flow.kind == "pipeline"
    assert [list(step.arguments.values()) for step in flow.steps] == [["text"], ["text"]]
    flow = spec_of_structure("chain", "text_pipeline", "text_pipeline").workflow
    assert flow.kind == "pipeline"
    assert [list(step.arguments.values()) for step in flow.steps] == [["text"], ["step 1"]]


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "../../up", "a" * 500, "import os", "class", ""])
def test_hostile_names_are_replaced(name: str) -> None:
    plan = planned(KILOMETRES, name=name, package=name)
    found = planner(outline("router", "unit_converter", "unit_converter"), plan, plan).plan("x", with_cases=False)
    assert found.spec is not None
    assert not name or name not in ("".join(tool.instance for tool in found.spec.tools), found.spec.package)
    assert "<" not in found.spec.model_dump_json()


@pytest.mark.parametrize(
    ("answers", "word"),
    [
        ([outline("none")], "no family fits: because"),
        ([outline("router", "unit_converter")], "takes 2 to 4"),
        ([outline("direct", "unit_converter", "unit_converter")], "takes 1 to 1"),
        ([outline("router", *["unit_converter"] * 5)], "planned 5 tools"),
        ([outline("router", "unit_converter", "../up")], "there is no family '../up'"),
        ([outline("served", "unit_converter", "api_client")], "HTTP API"),
        ([{"reason": "x", "structure": "tower", "parts": []}], "structure"),
        ([outline("chain", "unit_converter", "text_pipeline"), *map(PLANS.get, ("unit_converter", "text_pipeline"))],
         "one text as input"),
        ([outline("chain", "text_pipeline", "code_validator"), *map(PLANS.get, ("text_pipeline", "code_validator"))],
         "end with a check"),
        ([outline("router", "unit_converter", "unit_converter"), PLANS["unit_converter"],
          planned(KILOMETRES, left_out=["the moon"])], "the moon"),
        ([outline("router", "unit_converter", "text_pipeline"), PLANS["unit_converter"],
          planned({"ops": ['say "hi"']})], "rules"),
        ([outline("router", "unit_converter", "unit_converter"), PLANS["unit_converter"],
          planned({**KILOMETRES, "dimension": 'length"\n'})], "rules.dimension"),
    ],
)  # fmt: skip
def test_what_no_agent_can_be_made_of_is_refused(answers: list[Any], word: str) -> None:
    assert word in reason_of(*answers)


def test_a_part_is_planned_from_its_own_words() -> None:
    prompts: list[str] = []
    asker = planner(outline("router", "unit_converter", "text_pipeline"), *map(PLANS.get, ("unit_converter",)))
    inner = asker._generate.generate

    def listen(prompt: str, schema: Any) -> Any:
        prompts.append(prompt)
        return inner(prompt, schema)

    asker._generate.generate = listen
    with pytest.raises(IndexError):  # the script ends before the second part
        asker.plan("all of it")
    words = [prompt.split("<<<\n")[1].split("\n>>>")[0] for prompt in prompts]
    assert words == ["all of it", "a tool of unit_converter", "a tool of text_pipeline"]


def test_the_first_call_offers_every_family_and_structure() -> None:
    schema = outline_schema(FAMILIES)
    assert schema["properties"]["parts"]["items"]["properties"]["family"]["enum"] == list(FAMILIES)
    assert "served" in schema["properties"]["structure"]["enum"]
    prompt = outline_prompt("turn {this} into that", FAMILIES, max_tools=3)
    assert "turn {this} into that" in prompt and "at most 3" in prompt
