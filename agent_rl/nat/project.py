"""Reference projects: the complete set of files that a spec asks for, rendered from the family's logic.

They are the teacher's text for supervised warm starts and the yardstick for tests the model writes. They are never
shown to the policy in an episode, and correctness is decided by the oracle and the toolkit, not by likeness to them.
"""

from agent_rl.nat.families import FAMILIES
from agent_rl.nat.spec import NATSpec, Value


def render_project(spec: NATSpec, *, body: list[str] | None = None, test_error: bool = True) -> dict[str, str]:
    """Path -> text of a complete project; `body` replaces the logic, without `test_error` one test is left out."""
    texts = (
        "",
        render_logic(spec, body),
        _register(spec),
        _config(spec),
        _mcp_server(spec),
        _tests(spec, test_error),
        _pyproject(spec),
    )
    return dict(zip(spec.files, texts, strict=True))


def render_logic(spec: NATSpec, body: list[str] | None = None) -> str:
    """Text of logic.py; `body` replaces the lines of the function (a mutant, a faulty demonstration)."""
    family = FAMILIES[spec.family]
    head, lines = family.body(spec)
    lines = lines if body is None else body
    table = "".join(f"{line}\n" for line in head) + "\n\n" if head else "\n"
    code = "".join(f"    {line}\n" for line in lines)
    extra = f", {spec.config_field.name}: int = {spec.config_field.default}" if spec.config_field else ""
    return (
        f'"""Logic of {spec.package}."""\n\n{table}'
        f"def {spec.function}({_signature(spec)}{extra}) -> str:\n"
        f'    """{family.summary}"""\n{code}'
    )


def _signature(spec: NATSpec) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in spec.inputs)


def _names(spec: NATSpec) -> str:
    return ", ".join(field.name for field in spec.inputs)


def _register(spec: NATSpec) -> str:
    field = spec.config_field
    imports, lines, extra = "", "", ""
    if field:
        imports = "from pydantic import Field\n"
        bounds = f"ge={field.low}, le={field.high}"
        lines = (
            f'\n    {field.name}: int = Field(default={field.default}, {bounds}, description="{field.description}")\n'
        )
        extra = f", config.{field.name}"
    summary = FAMILIES[spec.family].summary
    return f'''"""Components of {spec.package}."""

from collections.abc import AsyncGenerator

from nat.plugin_api import Builder, FunctionBaseConfig, FunctionInfo, register_function
{imports}
from {spec.package}.logic import {spec.function}


class ToolConfig(FunctionBaseConfig, name="{spec.type_name}"):
    """Configuration of {spec.type_name}."""
{lines}

@register_function(config_type=ToolConfig)
async def tool(config: ToolConfig, _builder: Builder) -> AsyncGenerator[FunctionInfo, None]:
    """Register {spec.type_name}."""

    async def run({_signature(spec)}) -> str:
        """{summary}"""
        return {spec.function}({_names(spec)}{extra})

    yield FunctionInfo.from_fn(run, description=run.__doc__)
'''


def _config(spec: NATSpec) -> str:
    return f"""functions:
  {spec.instance}:
    _type: {spec.type_name}
workflow:
  _type: {spec.type_name}
"""


def _mcp_server(spec: NATSpec) -> str:
    return f'''"""MCP server of {spec.package} on standard input and output."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "src"))

from mcp.server.fastmcp import FastMCP

from {spec.package}.logic import {spec.function}

server = FastMCP("{spec.package}")


@server.tool()
def {spec.instance}({_signature(spec)}) -> str:
    """{FAMILIES[spec.family].summary}"""
    return {spec.function}({_names(spec)})


if __name__ == "__main__":
    server.run()
'''


def _tests(spec: NATSpec, test_error: bool) -> str:
    example = spec.example
    bad = _plain_error_inputs(spec)
    text = f'''"""Tests of {spec.package}."""

from {spec.package}.logic import {spec.function}


def test_example() -> None:
    assert {spec.function}({_literals(spec, example.inputs)}) == {_quote(example.output)}
'''
    if test_error:
        text += f"""

def test_error() -> None:
    assert {spec.function}({_literals(spec, bad)}) == {_quote(spec.errors[0])}
"""
    return text


def _plain_error_inputs(spec: NATSpec) -> dict[str, Value]:
    """Inputs of the example, changed so that the first error is the answer."""
    inputs = dict(spec.example.inputs)
    if spec.family == "unit_converter":
        inputs["from_unit"] = "parsec"
    elif spec.family == "calculator":
        inputs[spec.rules["divisors"][0]] = 0.0
    else:
        inputs[spec.inputs[0].name] = " "
    return inputs


def _literals(spec: NATSpec, inputs: dict[str, Value]) -> str:
    values = (inputs[field.name] for field in spec.inputs)
    return ", ".join(_quote(value) if isinstance(value, str) else repr(value) for value in values)


def _quote(text: str) -> str:
    """A Python literal in double quotes. Specs hold no quotes or backslashes (the generator sees to it)."""
    return f'"{text}"'


def _pyproject(spec: NATSpec) -> str:
    return f"""[project]
name = "{spec.package}"
version = "1"
dependencies = ["nvidia-nat-core", "nvidia-nat-mcp"]

[project.entry-points.'nat.components']
{spec.package} = "{spec.package}.register"
"""
