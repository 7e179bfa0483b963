"""One small project written by hand, and how to run it through the toolkit."""

from typing import Any

from agent_rl.envs.nat.judge.evidence import AgentEvidence, McpEvidence
from agent_rl.envs.nat.judge.toolkit import NatToolkit

LOGIC = '''"""Logic."""


def scale(value: float, unit: str, digits: int = 2) -> str:
    if unit not in ("m", "km"):
        return f"error: unknown unit {unit}"
    return f"{value * (1000.0 if unit == 'km' else 1.0):.{digits}f} m"
'''
REGISTER = '''"""Components."""

from collections.abc import AsyncGenerator

from pydantic import Field

from nat.plugin_api import Builder, FunctionBaseConfig, FunctionInfo, register_function

from nat_demo.logic import scale


class ToolConfig(FunctionBaseConfig, name="demo_scale"):
    """Configuration."""

    digits: int = Field(default=2, ge=0, le=6, description="Digits kept.")


@register_function(config_type=ToolConfig)
async def tool(config: ToolConfig, _builder: Builder) -> AsyncGenerator[FunctionInfo, None]:
    """Register the tool."""

    async def run(value: float, unit: str) -> str:
        """Convert a length to metres."""
        return scale(value, unit, config.digits)

    yield FunctionInfo.from_fn(run, description=run.__doc__)
'''
CONFIG = """functions:
  scaler:
    _type: demo_scale
workflow:
  _type: demo_scale
"""
REMOTE = """function_groups:
  remote:
    _type: mcp_client
    server:
      transport: stdio
      command: python
      args: [mcp_server.py]
"""
"""What a configuration has for tools of the project's own server."""
SERVER = '''"""MCP server."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "src"))

from mcp.server.fastmcp import FastMCP

from nat_demo.logic import scale

server = FastMCP("nat_demo")


@server.tool()
def scaler(value: float, unit: str) -> str:
    """Convert a length to metres."""
    return scale(value, unit)


if __name__ == "__main__":
    server.run()
'''
TESTS = """from nat_demo.logic import scale


def test_kilometres() -> None:
    assert scale(2.0, "km") == "2000.00 m"


def test_unknown_unit() -> None:
    assert scale(2.0, "x") == "error: unknown unit x"
"""
TEST_FILE = "tests/test_nat_demo.py"
FILES = {
    "src/nat_demo/__init__.py": "",
    "src/nat_demo/logic.py": LOGIC,
    "src/nat_demo/register.py": REGISTER,
    "src/nat_demo/configs/config.yml": CONFIG,
    "mcp_server.py": SERVER,
    TEST_FILE: TESTS,
}
INPUTS = [{"value": 2.0, "unit": "km"}, {"value": 1.5, "unit": "m"}, {"value": 1.0, "unit": "mile"}]
ANSWERS = ("2000.00 m", "1.50 m", "error: unknown unit mile")


SCHEMA = {"unit": "string", "value": "number"}


def run_of(questions: list[tuple[str, dict[str, Any]]], **more: Any) -> dict[str, Any]:
    """One build as the toolkit takes it: (target, inputs) in order, "" for the workflow."""
    defaults = {"overrides": [], "swapped": {}, "through_client": False, "exchanges": {}, "scripted": []}
    rows = [[target, inputs, more.get("via", "")] for target, inputs in questions]
    run = {**defaults, "config": "src/nat_demo/configs/config.yml", **more, "questions": rows}
    run.pop("via", None)
    return run


def both_ways(**more: Any) -> dict[str, Any]:
    """All inputs through the function, then all through the workflow."""
    return run_of([(target, inputs) for target in ("scaler", "") for inputs in INPUTS], **more)


def run_demo(toolkit: NatToolkit, changes: dict[str, str] | None = None, *runs: dict[str, Any]) -> AgentEvidence:
    files = {**FILES, **(changes or {})}
    return toolkit.run_agent(files, package="nat_demo", schemas=["scaler"], runs=runs or [both_ways()])


def serve_demo(toolkit: NatToolkit, server: str) -> McpEvidence:
    calls = [("scaler", inputs) for inputs in INPUTS]
    return toolkit.run_mcp({**FILES, "mcp_server.py": server}, server_path="mcp_server.py", calls=calls)
