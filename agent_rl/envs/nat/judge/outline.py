"""Validate the outline of a Python source that `worker/read_python.py` sends, and hold it as records.

The sender read hostile text, so nothing about the shape is taken for granted; what does not fit is no outline. Says
nothing about whether the code is good.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Kind = Literal["function", "group"]
BASES: dict[str, Kind] = {"FunctionBaseConfig": "function", "FunctionGroupBaseConfig": "group"}
_MAX_ENTRIES = 2500
"""No list of an honest outline is longer (`MAX_DETAILS` there)."""

Names = Annotated[list[str | None], Field(max_length=_MAX_ENTRIES)]


class _Sent(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class Parameter(_Sent):
    name: str
    hint: str | None
    vague: Literal["no", "part", "whole"]


class ConfigClassField(Parameter):
    line: int
    is_required: bool
    described: Literal["no", "text", "docstring", "expression"]
    description: str


class Registration(_Sent):
    decorator: str | None
    config_type: str | None


class HandedOver(_Sent):
    """A coroutine given to `FunctionInfo.from_fn`, `FunctionInfo.create` or `group.add_function`."""

    function: str | None
    described: Literal["no", "text", "docstring", "expression"]
    description: str
    line: int


class Function(_Sent):
    name: str
    line: int
    path: Names
    """Names of the definitions around it."""
    is_async: bool
    is_method: bool
    parameters: Annotated[list[Parameter], Field(max_length=_MAX_ENTRIES)]
    num_positional: int
    returned: Parameter
    docstring: str | None
    registers: Annotated[list[Registration], Field(max_length=_MAX_ENTRIES)]
    num_yields: int
    num_value_returns: int
    yields: Names
    hands_over: Annotated[list[HandedOver], Field(max_length=_MAX_ENTRIES)]
    stub: str | None

    @property
    def inputs(self) -> list[Parameter]:
        """The parameters without `self`."""
        return self.parameters[1:] if self.is_method else self.parameters

    @property
    def hints(self) -> list[Parameter]:
        """Everything that should have a type hint: the inputs, and what is returned unless it is `__init__`."""
        return self.inputs if self.name == "__init__" else [*self.inputs, self.returned]


class Class(_Sent):
    name: str
    line: int
    path: Names
    bases: Names
    keywords: dict[str, str]
    docstring: str | None
    fields: Annotated[list[ConfigClassField], Field(max_length=_MAX_ENTRIES)]


class Handler(_Sent):
    line: int
    catches: Annotated[list[str | None], Field(max_length=_MAX_ENTRIES)] | None
    """None: everything."""
    does: str


class ModuleOutline(_Sent):
    functions: Annotated[list[Function], Field(max_length=_MAX_ENTRIES)]
    classes: Annotated[list[Class], Field(max_length=_MAX_ENTRIES)]
    handlers: Annotated[list[Handler], Field(max_length=_MAX_ENTRIES)]

    def lineage(self, each: Class) -> list[Class]:
        """The class and its bases in this module, nearest first."""
        by_name = {known.name: known for known in self.classes}
        found = {each.name: each}
        waiting = [each]
        while waiting:
            for base in waiting.pop(0).bases:
                if base in by_name and base not in found:
                    found[base] = by_name[base]
                    waiting.append(by_name[base])
        return list(found.values())

    def kind(self, each: Class) -> Kind | None:
        """What the class configures, by the toolkit's base classes; None when it is no configuration."""
        bases = (base for member in self.lineage(each) for base in member.bases)
        return next((BASES[base] for base in bases if base in BASES), None)

    def configs(self) -> list[tuple[Class, Kind]]:
        """The configuration classes."""
        return [(each, kind) for each in self.classes if (kind := self.kind(each))]


def read_outline(value: Any) -> ModuleOutline | None:
    """The outline, or None when the value is something else."""
    try:
        return ModuleOutline.model_validate(value)
    except ValidationError:
        return None
