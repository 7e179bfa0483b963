"""Creators on a scripted policy, scripted planners, and packages of reference projects, all on the real toolkit."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fakes import ScriptedPolicy

from agent_rl.envs.nat.create.creator import AgentCreator
from agent_rl.envs.nat.create.planning import RequestPlanner
from agent_rl.envs.nat.create.result import Creation
from agent_rl.envs.nat.create.settings import ServeConfig, as_serve_config
from agent_rl.envs.nat.factory.planner.client import CallError, Generate, Usage
from agent_rl.envs.nat.factory.planner.services import PlannerSettings
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.records import SamplingParams

Script = Callable[[int, SamplingParams], str]
MODEL = {"name": "scripted", "sha256": "0" * 64, "policy": "scripted"}
KILOMETRES = {
    "dimension": "length",
    "units": {"m": "1.0", "km": "1000.0", "cm": "0.01", "mm": "0.001"},
    "precision": 2,
    "nonnegative": True,
}
SHOUT = {"ops": ["strip", "upper", "squeeze"]}


def serve_config(**sections: Mapping[str, Any]) -> ServeConfig:
    """Room for a model that writes bytes; `sections` change keys."""
    raw: dict[str, Any] = {
        "model": {"path": "model/nat_minimind"},
        "policy": {"max_new_tokens": 30_000, "max_context": 90_000},
    }
    return as_serve_config({**raw, **{name: {**raw.get(name, {}), **keys} for name, keys in sections.items()}})


def creator(
    toolkit: NatToolkit,
    script: Script | Sequence[str],
    *,
    planner: RequestPlanner | None = None,
    max_context: int = 90_000,
    **sections: Mapping[str, Any],
) -> AgentCreator:
    """A creator whose model says what `script` has."""
    policy = ScriptedPolicy(script, max_context=max_context)
    return AgentCreator(serve_config(**sections), policy=policy, toolkit=toolkit, planner=planner, model=MODEL)


def submission(files: Mapping[str, str], *, submit: bool = True) -> str:
    """A reply that writes all the files, and submits them."""
    calls = [{"name": "file_write", "arguments": {"path": path, "content": text}} for path, text in files.items()]
    calls += [{"name": "submit", "arguments": {}}] if submit else []
    return "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)


def reference(spec: NATSpec, **changes: str) -> str:
    """The reply that writes the reference project, with texts replaced in all its files."""
    files = render_project(spec)
    for old, new in changes.items():
        files = {path: text.replace(old, new) for path, text in files.items()}
    return submission(files)


def accepted(toolkit: NatToolkit, spec: NATSpec, request: str = "") -> Creation:
    """The creation of a reference project."""
    return creator(toolkit, [reference(spec)], writes=ANY).create(request, spec=spec)


ANY: dict[str, Any] = {
    "families": (
        "unit_converter", "text_pipeline", "calculator", "code_validator", "table_processor", "note_search",
        "api_client", "date_tool", "mcp_served", "tool_workflow", "react_agent", "function_group",
    ),
    "levels": (1, 2, 3, 4, 5),
    "max_tools": 8,
}  # fmt: skip
"""A model that writes everything."""


def planned(rules: Mapping[str, Any], *, name: str = "length_tool", **changes: Any) -> dict[str, Any]:
    """What a planner's model answers for one tool."""
    return {
        "rules": rules,
        "config_default": None,
        "left_out": [],
        "package": "nat_length_helper",
        "plan": {
            "scaffold_type": "simple_tool",
            "mcp_servers": [{"name": "length-server", "transport": "stdio", "tools": [name]}],
            "custom_tools": [{"name": name, "description": "Converts.", "inputs": {}}],
            "test_cases": [],
        },
        **changes,
    }


def outline(structure: str, *families: str) -> dict[str, Any]:
    """What it answers to the first call."""
    parts = [{"family": family, "request": f"a tool of {family}"} for family in families]
    return {"reason": "because", "structure": structure, "parts": parts}


def scripted(*answers: Mapping[str, Any] | CallError | str) -> Generate:
    """A service that gives one answer after the other; an error is raised instead."""
    left = list(answers)

    def generate(prompt: str, schema: Mapping[str, Any]) -> tuple[str, Usage]:
        answer = left.pop(0)
        if isinstance(answer, CallError):
            raise answer
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return text, Usage(num_tokens_in=100, num_tokens_out=10)

    return generate


def planner(*answers: Mapping[str, Any] | CallError | str, max_tools: int = 4) -> RequestPlanner:
    """A planner on a scripted service."""
    settings = PlannerSettings(
        source="openai", model="m", base_url="http://x", requests_per_minute=1e9, max_attempts=1, max_tools=max_tools
    )
    return RequestPlanner(settings, generate=scripted(*answers))
