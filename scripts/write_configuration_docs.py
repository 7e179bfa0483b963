"""Write the tables of docs/configuration.md, planning.md, create.md and service.md: every key, from its class.

    python scripts/write_configuration_docs.py

Only what stands between the two marks is replaced. A test compares, so a key that is added, renamed or explained anew
needs one run of this. Not here: the rest of the page, which is written by hand.
"""

import ast
import inspect
import math
import types
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agent_rl.config import Config
from agent_rl.endpoint.external import ExternalOptions
from agent_rl.envs.code.env import CodeExecEnvOptions
from agent_rl.envs.foreign.gymnasium import GymnasiumOptions
from agent_rl.envs.foreign.openenv import OpenEnvOptions
from agent_rl.envs.foreign.reasoning_gym import ReasoningGymOptions
from agent_rl.envs.foreign.skyrl_gym import SkyRLGymOptions
from agent_rl.envs.foreign.trl import TRLEnvironmentOptions
from agent_rl.envs.foreign.verifiers import VerifiersOptions
from agent_rl.envs.mixture import MixtureOptions
from agent_rl.envs.nat.create.settings import ServeConfig, ServiceConfig
from agent_rl.envs.nat.env import NATEnvOptions
from agent_rl.envs.prompt_env import PromptEnvOptions
from agent_rl.envs.qa_env import QAEnvOptions
from agent_rl.envs.search.env import SearchEnvOptions
from agent_rl.planning.machine import Machine

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
PLANNING_PAGE = PAGE.with_name("planning.md")
CREATE_PAGE = PAGE.with_name("create.md")
SERVICE_PAGE = PAGE.with_name("service.md")
BEGIN = "<!-- Tables by scripts/write_configuration_docs.py; edit the classes instead. -->\n"
END = "<!-- End of the tables. -->\n"
OPTIONS = {
    "nat_agent_creation": NATEnvOptions,
    "code_exec": CodeExecEnvOptions,
    "search_qa": SearchEnvOptions,
    "math_qa": QAEnvOptions,
    "external": ExternalOptions,
    "prompts": PromptEnvOptions,
    "mixture": MixtureOptions,
    "reasoning_gym": ReasoningGymOptions,
    "verifiers": VerifiersOptions,
    "gymnasium": GymnasiumOptions,
    "openenv": OpenEnvOptions,
    "trl_environment": TRLEnvironmentOptions,
    "skyrl_gym": SkyRLGymOptions,
}
"""Options of the environments that are built in."""
NAMES = {bool: "true, false", int: "whole number", float: "number", str: "text", Path: "path"}
BOUNDS = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}


def main() -> None:
    bodies = {PAGE: tables(), PLANNING_PAGE: machine_table()}
    bodies |= {CREATE_PAGE: create_tables(), SERVICE_PAGE: service_table()}
    for path, body in bodies.items():
        path.write_text(updated(path.read_text(encoding="utf-8"), body), encoding="utf-8")


def updated(page: str, body: str) -> str:
    """The page with fresh tables; ValueError where a mark is missing."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + "\n" + body + "\n" + END + after


def machine_table() -> str:
    """The keys of a machine file."""
    return _table("Keys of a machine file", Machine).partition("\n\n")[2].partition("\n\n")[2]


def create_tables() -> str:
    """The sections of configs/serve.yaml that runs do not have, but for the service's."""
    own = {name for name in ServeConfig.model_fields if name not in Config.model_fields} - {"service"}
    parts = [("top level", ServeConfig), *sections(ServeConfig)]
    return "\n".join(_table(name, section) for name, section in parts if name == "top level" or name in own)


def service_table() -> str:
    """The keys of the service."""
    return _table("service", ServiceConfig)


def tables() -> str:
    """A heading and a table for every section, in the order of the configuration."""
    parts = [_table(name, section) for name, section in [("top level", Config), *sections(Config)]]
    for name, options in OPTIONS.items():
        prefix = f"env.options of {name}"
        parts += [_table(title, section) for title, section in sections(options, prefix, with_root=True)]
    return "\n".join(parts)


def sections(
    model: type[BaseModel], prefix: str = "", *, with_root: bool = False
) -> Iterator[tuple[str, type[BaseModel]]]:
    """Dotted names and classes of the sections below `model`; of list entries `name[]`, of mappings `name.NAME`."""
    if with_root:
        yield prefix, model
    for name, field in model.model_fields.items():
        dotted = f"{prefix}.{name}" if prefix else name
        inner = section_of(field.annotation)
        if inner is not None:
            yield from sections(inner, dotted, with_root=True)
        elif (entry := entry_of(field.annotation)) is not None:
            yield f"{dotted}{'.NAME' if get_origin(field.annotation) is dict else '[]'}", entry


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The class of a section within a section."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def entry_of(annotation: Any) -> type[BaseModel] | None:
    """The class of the entries of a list or a mapping of sections."""
    place = {tuple: 0, dict: 1}.get(get_origin(annotation))
    return None if place is None else section_of(get_args(annotation)[place])


def _table(name: str, section: type[BaseModel]) -> str:
    bases = [base for base in reversed(section.__mro__) if issubclass(base, BaseModel) and base.model_fields]
    help_of = {key: text for base in bases for key, text in _help(base).items()}
    defaults = _defaults(section)
    rows = []
    for key, field in section.model_fields.items():
        if section_of(field.annotation) is None:
            rows.append(f"| `{key}` | {defaults[key]} | {_accepted(field)} | {help_of[key]} |")
        elif name.endswith(".NAME"):  # it has no table of its own here
            rows.append(f"| `{key}` | as in section `{key}` | keys of section `{key}`, list | {help_of[key]} |")
    about = f"{_one_line(section.__doc__)}\n\n" if section.__doc__ else ""
    return (
        f"### {name}\n\n{about}| key | default | takes | what |\n| --- | --- | --- | --- |\n" + "\n".join(rows) + "\n"
    )


def _help(section: type[BaseModel]) -> dict[str, str]:
    """The line of help below each field, which Python itself drops."""
    (definition,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: _one_line(after.value.value)
        for field, after in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
    }


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _defaults(section: type[BaseModel]) -> dict[str, str]:
    """Of every key; a default may depend on those of the keys above it."""
    values: dict[str, Any] = {}
    shown = {}
    for key, field in section.model_fields.items():
        if field.is_required():
            shown[key] = "must be given"
        else:
            values[key] = field.get_default(call_default_factory=True, validated_data=values)
            shown[key] = f"`{yaml_of(values[key])}`"
    return shown


def yaml_of(value: Any) -> str:
    """The value as a configuration file has it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        mantissa, exponent, power = f"{value:g}".partition("e")
        # YAML takes a number with an exponent for text unless it has a point too.
        return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}e{int(power)}" if exponent else mantissa
    if isinstance(value, tuple):
        return f"[{', '.join(yaml_of(entry) for entry in value)}]"
    if isinstance(value, BaseModel):
        return f"{{{', '.join(f'{key}: {yaml_of(part)}' for key, part in value)}}}"
    return str(value)


def _accepted(field: FieldInfo) -> str:
    bounds = _bounds(field.metadata)
    return f"{_kind(field.annotation)}{f' {bounds}' if bounds else ''}"


def _kind(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in inner)
    if origin is tuple:
        is_open = inner[-1] is Ellipsis
        return f"list of {_kind(inner[0])}" if is_open else f"[{', '.join(_kind(entry) for entry in inner)}]"
    if origin is dict:
        return f"mapping to {_kind(inner[1])}"
    if origin in (Union, types.UnionType):
        return ", ".join(_kind(choice) for choice in inner)
    if hasattr(annotation, "__metadata__"):  # Annotated within another type
        bounds = _bounds(annotation.__metadata__)
        return f"{_kind(inner[0])}{f' {bounds}' if bounds else ''}"
    if section_of(annotation) is not None:
        return "sections, below"
    return {type(None): "null", Any: "anything"}.get(annotation) or NAMES[annotation]


def _bounds(metadata: Any) -> str:
    """`from 0 to 1` and the like."""
    found = []
    for constraint in metadata:
        for each in getattr(constraint, "metadata", [constraint]):
            limits = {word: getattr(each, name, None) for name, word in BOUNDS.items()}
            found += [
                f"{word} {limit:g}" for word, limit in limits.items() if limit is not None and math.isfinite(limit)
            ]
    return " ".join(dict.fromkeys(found))


if __name__ == "__main__":
    main()
