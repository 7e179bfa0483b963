"""Close the ways by which a project could tell pydantic, by texts, which attributes of an object to read or to set.

A reader does not see them: the names come about while the code runs. `hold` closes them for a process with a confined
project, `let_go` opens them again.
"""

import builtins
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from types import ModuleType
from typing import Any

from pydantic import BaseModel
from pydantic._internal import _generate_schema

CORE_SCHEMA = "__pydantic_core_schema__"
_HOOKS = {"__get_pydantic_core_schema__", "__get_pydantic_json_schema__", "__get_validators__", "__modify_schema__"}
"""By these attributes an object says how values are checked and shown: a core schema can read what any object has."""
_undo: list[Callable[[], object]] = []


def hold(is_of_project: Callable[[str], bool]) -> None:
    """From now on models are made of data alone, a copy of one gets values of fields alone, and what values are checked
    by is said by others than the project, whose modules `is_of_project` tells by their names."""
    if _undo:
        return
    schemas = _generate_schema.GenerateSchema
    _replace(schemas, "_dataclass_schema", _of_dataclass(schemas._dataclass_schema, is_of_project))
    vars(_generate_schema)["getattr"] = _getattr_of(is_of_project)
    _undo.append(lambda: vars(_generate_schema).pop("getattr"))
    _replace(BaseModel, "model_validate", classmethod(_validate_of(BaseModel.model_validate.__func__)))  # type: ignore[attr-defined]
    _replace(BaseModel, "model_copy", _copy_of(BaseModel.model_copy))
    _replace(BaseModel, "copy", _copy_of(BaseModel.copy))


def let_go() -> None:
    """Undo `hold`; nothing where nothing is held."""
    while _undo:
        _undo.pop()()


def _replace(kind: type, name: str, other: Any) -> None:
    before = vars(kind)[name]
    setattr(kind, name, other)
    _undo.append(lambda: setattr(kind, name, before))


def _getattr_of(is_of_project: Callable[[str], bool]) -> Callable[..., Any]:
    def held(target: Any, name: str, *default: Any) -> Any:
        """Raises TypeError for a hook that is not one of a class of an installed module."""
        found = builtins.getattr(target, name, *default)
        if name in _HOOKS and found is not None and not _is_given_by_others(target, name, is_of_project):
            raise TypeError(f"a project has no say over how values are checked: {name} of a {type(target).__name__}")
        return found

    return held


def _of_dataclass(generate: Callable[..., Any], is_of_project: Callable[[str], bool]) -> Callable[..., Any]:
    @wraps(generate)
    def dataclass_schema(self: Any, dataclass: Any, *more: Any) -> Any:
        if CORE_SCHEMA in vars(dataclass) and not _is_of_others(dataclass, is_of_project):
            raise TypeError(f"a project has no say over how values are checked: {CORE_SCHEMA} of {dataclass.__name__}")
        return generate(self, dataclass, *more)

    return dataclass_schema


def _is_given_by_others(target: Any, name: str, is_of_project: Callable[[str], bool]) -> bool:
    """Whether a class of others has the attribute that the target has; what an object holds itself is nobody's."""
    kind = type(target)
    if issubclass(kind, type):
        kind = target
    else:
        try:
            if name in object.__getattribute__(target, "__dict__"):
                return False
        except AttributeError:
            pass
    givers = [each for each in type.__dict__["__mro__"].__get__(kind) if name in vars(each)]
    return bool(givers) and _is_of_others(givers[0], is_of_project)


def _is_of_others(kind: type, is_of_project: Callable[[str], bool]) -> bool:
    """Whether a class stands where its names say, in a module that is not the project's: names alone are chosen."""
    module = vars(kind).get("__module__")
    found: Any = sys.modules.get(module) if type(module) is str and not is_of_project(module) else None
    for part in kind.__qualname__.split("."):
        found = vars(found).get(part) if isinstance(found, type | ModuleType) else None
    return found is kind


def _validate_of(validate: Callable[..., Any]) -> Callable[..., Any]:
    """Without `from_attributes`: the names of the attributes would be aliases, which are texts."""

    @wraps(validate)
    def model_validate(kind: Any, obj: Any, **how: Any) -> Any:
        if how.get("from_attributes"):
            raise TypeError("a project may not make a model of an object's attributes")
        return validate(kind, obj, **how)

    return model_validate


def _copy_of(copy: Callable[..., Any]) -> Callable[..., Any]:
    """With updates of fields alone; pydantic would set any attribute."""

    @wraps(copy)
    def copied(self: BaseModel, *, update: Mapping[str, Any] | None = None, **how: Any) -> Any:
        given = dict(update or {})
        for name in given:
            if type(name) is not str or name.startswith("_") or not _has(self, name):
                raise TypeError(f"a copy of a model may only have other values of its fields, not {str(name)[:40]!r}")
        return copy(self, update=given, **how)

    return copied


def _has(model: BaseModel, name: str) -> bool:
    return name in type(model).__pydantic_fields__ or model.__pydantic_extra__ is not None
