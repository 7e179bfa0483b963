"""Prompts and schemas of the planner model, and the built-in requests."""

import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.planner.prompts import choice_prompt, plan_prompt
from agent_rl.envs.nat.factory.planner.schema import choice_schema, plan_schema, to_gemini
from agent_rl.envs.nat.factory.user_requests import EXAMPLES, requests
from agent_rl.envs.nat.spec import digest

KEYWORDS = {"type", "description", "enum", "required", "properties", "propertyOrdering", "items", "prefixItems"}
KEYWORDS |= {"additionalProperties", "anyOf"}


def keywords(schema: Any) -> set[str]:
    """Keywords of a JSON schema at any depth; names of properties are none."""
    if not isinstance(schema, dict):
        return set()
    parts = [*schema.get("properties", {}).values(), *schema.get("anyOf", []), *schema.get("prefixItems", [])]
    parts += [schema.get("items"), schema.get("additionalProperties")]
    return set(schema).union(*(keywords(part) for part in parts))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_familys_schema_has_only_keywords_that_gemini_knows(name: str) -> None:
    schema = plan_schema(FAMILIES[name].Rules)
    assert keywords(schema) <= KEYWORDS
    assert set(schema["properties"]["rules"]["properties"]) == set(FAMILIES[name].Rules.model_fields)


def test_what_the_planner_model_reads_never_changes() -> None:
    """Docstrings of `Rules` classes are part of it."""
    texts = [choice_prompt("x", FAMILIES), choice_schema(FAMILIES)]
    texts += [[plan_prompt("x", family), plan_schema(family.Rules)] for family in FAMILIES.values()]
    assert digest(texts) == "efb28962bfeb6485"  # since rules have upper bounds


def test_constants_references_and_cycles_are_written_in_geminis_dialect() -> None:
    class Node(BaseModel):
        kind: Literal["sum"]
        parts: list["Node"]

    class Tree(BaseModel):
        root: Node

    node = to_gemini(Tree.model_json_schema())["properties"]["root"]
    assert node["properties"]["kind"] == {"type": "string", "enum": ["sum"]}
    assert node["properties"]["parts"] == {"type": "array", "items": {"type": "object"}}


def test_constants_are_required_and_what_is_null_by_default_is_never_null() -> None:
    class Step(BaseModel):
        kind: Literal["sum"] = "sum"
        limit: int | None = None
        unit: str | None

    step = to_gemini(Step.model_json_schema())
    assert step["required"] == ["kind", "unit"]
    assert step["properties"]["limit"] == {"anyOf": [{"type": "integer"}]}
    assert step["properties"]["unit"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}


def test_the_first_call_offers_every_family_and_none() -> None:
    assert choice_schema(FAMILIES)["properties"]["family"]["enum"] == [*FAMILIES, "none"]
    prompt = choice_prompt("turn {this} into that", FAMILIES)
    assert "turn {this} into that" in prompt
    assert all(f"`{name}`" in prompt for name in FAMILIES)


def test_the_second_call_shows_the_rules_and_sampled_examples_of_one_family() -> None:
    family = FAMILIES["unit_converter"]
    prompt = plan_prompt("a converter", family)
    assert json.dumps(family.Rules.model_json_schema()) in prompt
    assert prompt.count("\nrules: {") == 5
    assert prompt.count("config_default: null") >= 2
    assert prompt == plan_prompt("a converter", family)


def test_the_examples_show_every_configuration_field_and_what_the_rules_mean() -> None:
    prompt = plan_prompt("a table tool", FAMILIES["table_processor"])
    assert all(f"({name}: " in prompt for name in ("limit", "decimals", "threshold"))
    assert "The column that groups, or names a row" in prompt


# ---------------------------------------------------------------- requests


def test_a_thousand_requests_differ_and_begin_with_the_examples() -> None:
    texts = list(requests(1000, seed=0))
    assert len(set(texts)) == 1000
    assert set(texts[: len(EXAMPLES)]) == set(EXAMPLES)


def test_more_requests_only_add_to_the_end_and_another_seed_gives_others() -> None:
    assert list(requests(50, seed=0)) == list(requests(90, seed=0))[:50]
    assert len(set(requests(90, seed=0)) & set(requests(90, seed=1))) < len(EXAMPLES) + 5
