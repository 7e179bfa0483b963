"""Schemas of the planner's answers: two small JSON shapes, and their translation into the dialect Gemini accepts.

A request is planned in two calls: first the family, then the plan with that family's rules. One schema for all
families at once would be refused by the service as too complex, and would cost more tokens than the second call.
Nothing here calls a model, and nothing it returns is trusted: the pydantic models are checked again on our side.
"""

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from agent_rl.envs.nat.factory.families.base import Rules
from agent_rl.envs.nat.spec import Plan

RulesT = TypeVar("RulesT", bound=Rules)
NO_FAMILY = "none"


class FamilyChoice(BaseModel):
    """Answer of the first call."""

    model_config = ConfigDict(extra="forbid")
    reason: str
    """Before the family, so that it is thought about first."""
    family: str


class PlannedAgent(BaseModel, Generic[RulesT]):
    """Answer of the second call, `RulesT` being the `Rules` of the chosen family."""

    model_config = ConfigDict(extra="forbid")
    rules: RulesT
    config_default: int | None = Field(
        description="Default of the configuration field; null when the user wants nothing to be configurable."
    )
    left_out: list[str] = Field(description="What the user asks for and the rules cannot say; empty when nothing.")
    package: str = Field(description="Python package: `nat_` and two or three lower-case words joined by `_`.")
    plan: Plan


def choice_schema(families: Iterable[str]) -> dict[str, Any]:
    """JSON schema of `FamilyChoice` with the families to choose from."""
    schema = to_gemini(FamilyChoice.model_json_schema())
    schema["properties"]["family"]["enum"] = [*families, NO_FAMILY]
    return schema


def plan_schema(rules: type[Rules]) -> dict[str, Any]:
    """JSON schema of `PlannedAgent` with these rules."""
    return to_gemini(PlannedAgent[rules].model_json_schema())


def to_gemini(schema: dict[str, Any]) -> dict[str, Any]:
    """The structure of a pydantic schema in the keywords that Gemini's `response_json_schema` knows.

    References are written out; one inside itself becomes a plain object. `const` becomes a one-element `enum` (Gemini
    ignores it otherwise) of a required property. A property that is null by default can be left out and so is never
    null. Bounds, lengths and patterns are left out: they make the service refuse a schema as too complex, the prompt
    states them, and pydantic checks them afterwards.
    """
    definitions = schema.get("$defs", {})

    def convert(node: dict[str, Any], inside: tuple[str, ...]) -> dict[str, Any]:
        if "$ref" in node:
            name = node["$ref"].removeprefix("#/$defs/")
            return {"type": "object"} if name in inside else convert(definitions[name], (*inside, name))
        choices = [each for key in ("anyOf", "oneOf") for each in node.get(key, [])]
        if node.get("default", "") is None:
            choices = [each for each in choices if each.get("type") != "null"]
        out = {key: node[key] for key in ("type", "description", "enum", "required") if key in node}
        if "const" in node:
            out["enum"] = [node["const"]]
        if "properties" in node:
            properties = node["properties"]
            out["properties"] = {name: convert(each, inside) for name, each in properties.items()}
            constant = {name for name, each in properties.items() if "const" in each}
            out["required"] = [name for name in properties if name in constant.union(node.get("required", []))]
            out["propertyOrdering"] = list(properties)
        for key in ("items", "additionalProperties"):
            if key in node:
                out[key] = convert(node[key], inside) if isinstance(node[key], dict) else node[key]
        if "prefixItems" in node:
            out["prefixItems"] = [convert(each, inside) for each in node["prefixItems"]]
        if choices:
            out["anyOf"] = [convert(each, inside) for each in choices]
        return out

    return convert(schema, ())
