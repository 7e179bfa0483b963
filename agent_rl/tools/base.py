"""What a tool is, and the registry that runs one call safely.

A tool returns text for the model and typed facts for the environment. Whatever goes wrong in a call (unknown name,
wrong arguments, an exception inside the tool) becomes a message the model can act on; nothing here decides rewards.
"""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

from agent_rl.agent.messages import ToolCall, ToolSpec
from agent_rl.errors import SandboxError, nearest

_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What one call gave: `ToolResult(text="2 passed", facts={"passed": 2})`."""

    text: str
    """What the model reads."""
    ok: bool = True
    """False when the call failed; counted in the metrics."""
    terminal: bool = False
    """True ends the episode (for example `submit`)."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the environment may use; the model does not see it."""


class BaseTool(ABC):
    """A tool: a name, a description, a JSON schema of its arguments, and `__call__`."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of the arguments object (`type: object`, `properties`, `required`)."""

    @property
    def spec(self) -> ToolSpec:
        return spec_of(self)

    @abstractmethod
    def __call__(self, **arguments: Any) -> ToolResult:
        """Run the tool. Arguments were checked against `parameters`; an exception becomes an error message."""


_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def readable(text: str) -> str:
    """The text without ANSI escape sequences and control characters; newlines and tabs stay, CR LF becomes LF."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text.replace("\r\n", "\n")))


def spec_of(tool: BaseTool | type[BaseTool]) -> ToolSpec:
    """What the model is told about a tool; a class will do where its attributes say it all."""
    return ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters)


class ToolRegistry:
    """The tools of one episode, by name."""

    def __init__(self, tools: list[BaseTool] | tuple[BaseTool, ...] = ()) -> None:
        self._tools: dict[str, BaseTool] = {}
        for tool in tools:
            self.register(tool)

    def register(self, tool: BaseTool) -> None:
        """Add a tool; a name already taken raises ValueError."""
        if tool.name in self._tools:
            raise ValueError(f"a tool named {tool.name!r} is already registered; give one of them another name")
        self._tools[tool.name] = tool

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._tools.values())

    def run(self, call: ToolCall) -> ToolResult:
        """Run one call. Only `SandboxError` (infrastructure) leaves this method; every other failure is text.

        The text comes back without terminal escapes and control characters, which programs print and models do not
        need.
        """
        result = self._run(call)
        return replace(result, text=readable(result.text))

    def _run(self, call: ToolCall) -> ToolResult:
        tool = self._tools.get(call.name)
        if tool is None:
            hint = nearest(call.name, self._tools) or f"; available: {', '.join(self._tools)}"
            return ToolResult(text=f"error: there is no tool {call.name!r}{hint}", ok=False)
        complaint = check_arguments(call.arguments, tool.parameters)
        if complaint:
            return ToolResult(text=f"error: {call.name}: {complaint}", ok=False)
        try:
            return tool(**call.arguments)
        except SandboxError:
            raise
        except Exception as error:  # the tool boundary: a tool's bug must not end the rollout
            return ToolResult(text=f"error: {call.name}: {type(error).__name__}: {error}", ok=False)


def check_arguments(arguments: dict[str, Any], schema: dict[str, Any]) -> str | None:
    """Return what is wrong with `arguments` under a flat JSON schema, or None.

    Checks required names, unknown names and the basic JSON types of properties, which is what the tools here use.
    """
    properties: dict[str, Any] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in arguments:
            return f"argument {name!r} is missing; expected {', '.join(properties)}"
    for name, value in arguments.items():
        if name not in properties:
            expected = ", ".join(properties) or "none"
            return f"unknown argument {name!r}{nearest(name, properties)}; expected: {expected}"
        kind = properties[name].get("type")
        expected_type = _JSON_TYPES.get(kind)
        is_bool_for_number = isinstance(value, bool) and kind in ("integer", "number")
        if expected_type and (not isinstance(value, expected_type) or is_bool_for_number):
            return f"argument {name!r} must be a JSON {kind}, got {type(value).__name__}"
    return None
