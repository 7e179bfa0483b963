"""Convert hidden cases to the toolkit's jobs: settings, mocks, and questions without answers."""

from dataclasses import asdict
from typing import Any

from agent_rl.envs.nat.factory.cases import CaseRun
from agent_rl.envs.nat.spec import UNUSED, InputField, Inputs, NATSpec, React

JSON_TYPES = {"float": "number", "int": "integer", "str": "string"}
NUM_MCP_VALID = 4
"""Valid calls to each tool of the MCP server; every error comes on top."""


def schema_of(inputs: tuple[InputField, ...]) -> dict[str, str]:
    """Argument name -> JSON type."""
    return {field.name: JSON_TYPES[field.type] for field in inputs}


def wanted_schemas(spec: NATSpec) -> dict[str, dict[str, str]]:
    """Every function that can be reached in the built agent, with its arguments."""
    out = {tool.instance: schema_of(tool.inputs) for tool in spec.tools}
    if spec.group:
        for instance in spec.group.instances:
            out |= {f"{instance}__{each.name}": schema_of(each.nat_inputs) for each in spec.group.visible}
    return out


def served_schemas(spec: NATSpec) -> dict[str, dict[str, str]]:
    """Every tool of the MCP server, with its arguments."""
    out = {tool.instance: schema_of(tool.inputs) for tool in spec.tools}
    return out | {each.name: schema_of(each.inputs) for each in spec.group.visible} if spec.group else out


def workflow_type(spec: NATSpec) -> str:
    """The `_type` of the workflow section."""
    flow = spec.workflow
    if isinstance(flow, React):
        return "react_agent"
    return spec.tools[0].type_name if flow.kind == "direct" else flow.type_name


def agent_runs(spec: NATSpec, cases: tuple[CaseRun, ...]) -> list[dict[str, Any]]:
    """The builds, as `NatToolkit.run_agent` takes them."""
    return [
        {
            "config": spec.client_config_path if run.through_client else spec.config_path,
            "overrides": _overrides(spec, run),
            "swapped": dict(run.swapped),
            "through_client": run.through_client,
            "exchanges": {request: asdict(each) for request, each in run.exchanges.items()},
            "scripted": [spec.workflow.llm] if isinstance(spec.workflow, React) else [],
            "questions": [
                [question.target, dict(question.inputs) or {UNUSED.name: ""}, _via(spec, question.target, question.via)]
                for question in run.questions
            ],
        }
        for run in cases
    ]


def _via(spec: NATSpec, target: str, via: str) -> str:
    return via if isinstance(spec.workflow, React) and not target else ""


def _overrides(spec: NATSpec, run: CaseRun) -> list[list[Any]]:
    section = "function_groups" if spec.group else "functions"
    out: list[list[Any]] = [[section, name, values] for name, values in run.overrides.items()]
    if spec.workflow.kind == "direct":
        out += [["workflow", None, values] for values in run.overrides.values()]
    return out


def mcp_calls(spec: NATSpec, run: CaseRun) -> list[tuple[str, Inputs, str]]:
    """(tool, inputs, expected) of calls to the server, in order: a few valid ones and every error of each tool, or one
    instance's sequence."""
    if spec.group:
        prefix = f"{spec.group.instances[0]}__"
        questions = [
            question
            for question in run.questions
            if question.target.startswith(prefix) and question.expected is not None
        ]
        return [
            (question.target.removeprefix(prefix), question.inputs, str(question.expected)) for question in questions
        ]
    out: list[tuple[str, Inputs, str]] = []
    for tool in spec.tools:
        questions = [
            (question.inputs, str(question.expected)) for question in run.questions if question.target == tool.instance
        ]
        valid = [each for each in questions if not each[1].startswith("error")][:NUM_MCP_VALID]
        bad = [each for each in questions if each[1].startswith("error")]
        out += [(tool.instance, inputs, expected) for inputs, expected in [*valid, *bad]]
    return out
