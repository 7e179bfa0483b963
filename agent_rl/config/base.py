"""What all sections have in common: strict keys, frozen values, and no key without effect.

Not here: any section, reading files.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from agent_rl.errors import ConfigError
from agent_rl.registry import Registry

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Seconds = Annotated[float, Field(gt=0.0)]


def known_to(registry: Registry[Any]) -> AfterValidator:
    """Validator of a field that names a value of the registry, or holds an import path; imports nothing."""

    def check(name: str) -> str:
        try:
            registry.check(name)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return name

    return AfterValidator(check)


def written_as(pattern: str, words: str) -> AfterValidator:
    """Validator of a text that all of `pattern` fits; `words` say what it may hold."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"expected {words}")
        return text

    return AfterValidator(check)


class Section(BaseModel):
    """Unknown keys are refused, values are frozen once read, and a key that would have no effect is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def keys_without_effect(self) -> Mapping[str, str]:
        """Keys (dotted, from here) that do nothing with the other values, each with where they would do something."""
        return {}

    def keys_to_omit(self) -> Iterable[str]:
        """Keys left out of the resolved configuration besides, because `load_config` would refuse them."""
        return ()

    @model_validator(mode="after")
    def _refuse_keys_without_effect(self) -> "Section":
        for key, reason in self.keys_without_effect().items():
            if self._is_given(key):
                raise ValueError(f"{key} has no effect {reason}; remove it")
        return self

    @model_serializer(mode="wrap")
    def _only_keys_with_effect(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The resolved configuration must read back, so it holds no key that would be refused."""
        raw = serialize(self)
        for key in (*self.keys_without_effect(), *self.keys_to_omit()):
            *parents, name = key.split(".")
            node = raw
            for parent in parents:
                node = node[parent]
            node.pop(name, None)
        return raw

    def _is_given(self, key: str) -> bool:
        *parents, name = key.split(".")
        node: Section = self
        for parent in parents:
            node = getattr(node, parent)
        return name in node.model_fields_set


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"train": {"steps": 80}}` as `{"train.steps": 80}`; an empty section stays a value."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat |= flatten(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return flat


def keys_called(name: str, model: type[BaseModel]) -> list[str]:
    """The keys of that name or last part: `steps` is `train.steps`; the critic's last, as few trainings have one."""
    keys = [key for key in flatten_keys(model) if name and name in (key, key.rpartition(".")[2])]
    return sorted(keys, key=lambda key: key.startswith("critic."))


def flatten_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """All keys of a model and of the sections in it, dotted: `train.steps`."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from flatten_keys(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
