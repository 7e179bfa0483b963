"""Close the ways by which a project could tell pydantic, by texts, which attributes of an object to read or to set.

A reader does not see them: the names come about while the code runs. `hold` closes them for a process with a confined
project, `let_go` opens them again.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from pydantic import BaseModel

_undo: list[Callable[[], None]] = []


def hold() -> None:
    """From now on models are made of data alone, and a copy of one gets values of fields alone."""
    if _undo:
        return
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
