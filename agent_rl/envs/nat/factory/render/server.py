"""mcp_server.py of a reference project: every tool behind FastMCP on standard input and output."""

from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.render.names import arguments, import_logic, signature
from agent_rl.envs.nat.spec import Group, NATSpec, Tool


def mcp_server(spec: NATSpec) -> str:
    imports = sorted({line for tool in spec.tools for line in FAMILIES[tool.family].answer(tool, None).imports})
    packages = "".join(f"{line}\n" for line in imports)
    state = f"state = {spec.group.class_name}()\n" if spec.group else ""
    parts = [_tool(tool, spec.server.raises) for tool in spec.tools]
    if spec.group:
        parts += _methods(spec.group, spec.server.raises)
    return f'''"""MCP server of {spec.package} on standard input and output."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "src"))

{packages}from mcp.server.fastmcp import FastMCP

{import_logic(spec)}
server = FastMCP("{spec.server.name}")
{state}

{"".join(parts)}if __name__ == "__main__":
    server.run()
'''


def _tool(tool: Tool, raises: bool) -> str:
    family = FAMILIES[tool.family]
    statements = family.answer(tool, None).statements
    is_async = any(word in line for line in statements for word in ("await ", "async with "))
    lines = "".join(f"    {line}\n" for line in (_raising(statements) if raises else statements))
    return f'''@server.tool()
{"async " if is_async else ""}def {tool.instance}({signature(tool.inputs)}) -> str:
    """{family.summary}"""
{lines}

'''


def _raising(statements: tuple[str, ...]) -> list[str]:
    """The same statements, with an answer that is an error raised."""
    *before, last = statements
    return [
        *before,
        last.replace("return ", "answer = ", 1),
        'if answer.startswith("error"):',
        "    raise ValueError(answer)",
        "return answer",
    ]


def _methods(group: Group, raises: bool) -> list[str]:
    out = []
    for function in group.visible:
        statements = (f"return state.{function.name}({arguments(function.inputs)})",)
        lines = "".join(f"    {line}\n" for line in (_raising(statements) if raises else statements))
        out.append(f'''@server.tool()
def {function.name}({signature(function.inputs)}) -> str:
    """{function.description}"""
{lines}

''')
    return out
