"""Names that the files of a reference project share."""

from collections.abc import Iterable

from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.spec import InputField, NATSpec, Tool

MAX_LINE = 120


def signature(inputs: tuple[InputField, ...]) -> str:
    """`value: float, unit: str`"""
    return ", ".join(f"{field.name}: {field.type}" for field in inputs)


def arguments(inputs: tuple[InputField, ...]) -> str:
    """`value, unit`"""
    return ", ".join(field.name for field in inputs)


def class_name(spec: NATSpec, tool: Tool) -> str:
    """The config class of a tool: `ToolConfig` when it is the only one."""
    if len(spec.tools) == 1 and spec.workflow.kind == "direct":
        return "ToolConfig"
    return "".join(word.capitalize() for word in tool.instance.split("_")) + "Config"


def builder_name(spec: NATSpec, tool: Tool) -> str:
    return "tool" if class_name(spec, tool) == "ToolConfig" else tool.instance


def exports(spec: NATSpec) -> list[str]:
    """What logic.py offers to the other files, in the order of the tools."""
    names = [name for tool in spec.tools for name in FAMILIES[tool.family].exports(tool)]
    return [*names, spec.group.class_name] if spec.group else names


def import_logic(spec: NATSpec) -> str:
    """The import of all that logic.py offers."""
    return f"{import_line(f'{spec.package}.logic', exports(spec))}\n"


def import_line(module: str, names: Iterable[str]) -> str:
    """Sorted, and over several lines when it is long, as formatters have it."""
    ordered = sorted(names, key=_import_order)
    line = f"from {module} import {', '.join(ordered)}"
    if len(line) <= MAX_LINE:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in ordered) + ")"


def _import_order(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)
