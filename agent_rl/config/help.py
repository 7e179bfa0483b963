"""What every key of a configuration means: `keys_of(Config)["train.steps"].about` is the line below the field.

Read from the classes and their source files, which an installed package has too: `agent-rl config` and the tables of
the docs are made of it. Not here: values (`load.py`), names of other libraries (`renamed.py`).
"""

import ast
import inspect
import math
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_NAMES = {bool: "true, false", int: "whole number", float: "number", str: "text", Path: "path"}
_BOUNDS = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyHelp:
    """One key that holds a value; sections are not keys."""

    about: str
    takes: str
    """`whole number from 1`"""
    default: str | None
    """As YAML; None where the key must be given."""


def keys_of(model: type[BaseModel], prefix: str = "") -> dict[str, KeyHelp]:
    """All keys of a model and of the sections in it, dotted; of entries of a list `log.alarms[].metric`, of a mapping
    `environments.NAME.weight`."""
    found: dict[str, KeyHelp] = {}
    for name, section in sections(model, prefix, with_root=True):
        found |= {f"{name}.{key}" if name else key: about for key, about in own_keys(section).items()}
    return found


def own_keys(section: type[BaseModel]) -> dict[str, KeyHelp]:
    """The keys of one section without those of the sections in it."""
    about, defaults = help_of(section), defaults_of(section)
    return {
        key: KeyHelp(about=about[key], takes=_accepted(field), default=defaults[key])
        for key, field in section.model_fields.items()
        if section_of(field.annotation) is None
    }


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
        elif (entry := _entry_of(field.annotation)) is not None:
            yield f"{dotted}{'.NAME' if get_origin(field.annotation) is dict else '[]'}", entry


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The class of a section within a section."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _entry_of(annotation: Any) -> type[BaseModel] | None:
    """The class of the entries of a list or a mapping of sections."""
    place = {tuple: 0, dict: 1}.get(get_origin(annotation))
    return None if place is None else section_of(get_args(annotation)[place])


@cache
def help_of(section: type[BaseModel]) -> dict[str, str]:
    """The line of help below each field, which Python itself drops; those of bases too."""
    bases = [base for base in reversed(section.__mro__) if issubclass(base, BaseModel) and base.model_fields]
    return {key: text for base in bases for key, text in _own_help(base).items()}


def _own_help(section: type[BaseModel]) -> dict[str, str]:
    (definition,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: one_line(after.value.value)
        for field, after in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }


def one_line(text: str | None) -> str:
    """A docstring without its line breaks; empty for none."""
    return " ".join((text or "").split())


def defaults_of(section: type[BaseModel]) -> dict[str, str | None]:
    """Of every key, as YAML; a default may depend on those of the keys above it."""
    values: dict[str, Any] = {}
    shown: dict[str, str | None] = {}
    for key, field in section.model_fields.items():
        if field.is_required():
            shown[key] = None
        else:
            values[key] = field.get_default(call_default_factory=True, validated_data=values)
            shown[key] = yaml_of(values[key])
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
    return {type(None): "null", Any: "anything"}.get(annotation) or _NAMES[annotation]


def _bounds(metadata: Any) -> str:
    """`from 0 to 1` and the like."""
    found = []
    for constraint in metadata:
        for each in getattr(constraint, "metadata", [constraint]):
            limits = {word: getattr(each, name, None) for name, word in _BOUNDS.items()}
            found += [
                f"{word} {limit:g}" for word, limit in limits.items() if limit is not None and math.isfinite(limit)
            ]
    return " ".join(dict.fromkeys(found))
