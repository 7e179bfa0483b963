"""The test file of a reference project: examples and errors on the logic, without the toolkit."""

from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.families.base import literal
from agent_rl.envs.nat.factory.render.names import import_logic
from agent_rl.envs.nat.spec import Group, NATSpec


def tests(spec: NATSpec, untested: str = "") -> str:
    """Text of the test file; tests of what is `untested` (example, error) are left out."""
    parts = []
    for tool in spec.tools:
        prefix = "" if len(spec.tools) == 1 else f"{tool.function}_"
        for name, lines in FAMILIES[tool.family].assertions(tool).items():
            if not untested or untested not in name:
                parts.append(_test(f"{prefix}{name}", lines))
    if spec.group:
        parts.append(_test("sequence", _sequence(spec.group)))
    return f'"""Tests of {spec.package}."""\n\n{import_logic(spec)}' + "".join(parts)


def _test(name: str, lines: list[str]) -> str:
    return f"\n\ndef test_{name}() -> None:\n" + "".join(f"    {line}\n" for line in lines)


def _sequence(group: Group) -> list[str]:
    lines = [f"group = {group.class_name}()"]
    for call in group.example:
        given = ", ".join(f"{name}={literal(value)}" for name, value in call.inputs.items())
        lines.append(f"assert group.{call.function}({given}) == {literal(call.output)}")
    return lines
