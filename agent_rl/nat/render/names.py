"""Names that the files of a reference project share."""

from agent_rl.nat.families import FAMILIES
from agent_rl.nat.spec import Group, InputField, NATSpec, Tool


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
    """The import line; sorted, as import sorters have it."""
    return f"from {spec.package}.logic import {', '.join(sorted(exports(spec), key=_import_order))}\n"


def _import_order(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def qualified(group: Group, instance: str, function: str) -> str:
    """What NAT calls a function of a group."""
    assert instance in group.instances
    return f"{instance}__{function}"
