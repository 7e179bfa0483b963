"""What is wrong with a configuration, as one sentence: file, key, what was got, what was expected, what to do.

Not here: reading files (`load.py`), what the keys are.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agent_rl import renamed
from agent_rl.config.base import flatten_keys
from agent_rl.config.root import Config
from agent_rl.errors import SAME_MEANING, nearest
from agent_rl.redacted import redacted

_SLIP = 0.85
"""So close a name of ours is a slip of the pen, whatever other libraries call so."""
_UNSPACED = re.compile(r"([A-Za-z_]\w*):(\S.*)", re.DOTALL)
_WORDS = re.compile(r"[\w./:-]+(, ?[\w./:-]+)*")
_EXPECTED = {
    "path_type": "expected a path",
    "string_type": "expected a text",
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "float_parsing": "expected a number",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "tuple_type": "expected a list",
    "list_type": "expected a list",
    "dict_type": "expected a mapping, {NAME: value}",
    "model_type": "expected a section, {KEY: value}",
}
"""Pydantic's kinds of complaints whose own words are about Python."""


def sentence(detail: ErrorDetails, source: str, *, root: type[BaseModel] = Config, prefix: str = "") -> str:
    """Turn pydantic's first complaint into: file, key, what was got, what was expected."""
    location = [str(part) for part in detail["loc"] if "[" not in str(part)]  # a branch of a union
    key = ".".join([prefix, *location] if prefix else location)
    parent = _model_at(root, location[:-1])
    known = list(parent.model_fields) if parent else []
    if text := _unspaced(detail, location, known):
        return f"{source}: {key:.200}: {text}"
    if detail["type"] == "extra_forbidden":
        hint = _hint(key, detail["input"], known, _of_root(root, prefix))
        return f"{source}: unknown key {key!r:.200}{hint}"
    if detail["type"] == "missing":
        return f"{source}: {key!r} is missing; add it"
    message = detail["msg"].removeprefix("Value error, ")
    if not key:
        return f"{source}: {message}"
    name = location[-1] if location else key.rpartition(".")[2]
    shown = redacted({name: detail["input"]})[name]
    if detail["type"] in _EXPECTED:
        message = _EXPECTED[detail["type"]]
        if message == "expected a list":
            is_plain = isinstance(shown, int | float) or (isinstance(shown, str) and _WORDS.fullmatch(shown))
            message += f"; write [{shown}]" if is_plain and not isinstance(shown, bool) else "; write it in [ ]"
    if isinstance(shown, Mapping) and detail["type"] == "value_error":  # its keys do not go together
        return f"{source}: section {key:.200}: {message[0].lower()}{message[1:]}"
    return f"{source}: {key:.200} = {shown!r:.200}: {message[0].lower()}{message[1:]}"


def wrong_value(key: str, value: Any) -> str:
    """`"train.steps = 'many': ..."` for a value that a run's key does not take, whatever the others are; or empty."""
    raw, location = value, tuple(key.split("."))
    for part in reversed(location):
        raw = {part: raw}
    try:
        Config.model_validate(raw)
    except ValidationError as error:
        wrong = [each for each in error.errors() if each["loc"][: len(location)] == location]
        if wrong:
            return sentence(wrong[0], "").removeprefix(": ")
    return misplaced(Config, raw)


def _of_root(root: type[BaseModel], prefix: str) -> set[str] | None:
    """The keys that a hint may name: all of a run, None, but for files that are no run's."""
    if root is Config or prefix == "env.options":
        return None
    return {f"{prefix}.{key}" if prefix else key for key in flatten_keys(root)}


def _hint(key: str, given: Any, known: list[str], ours: set[str] | None) -> str:
    name = key.rpartition(".")[2]
    return (
        renamed.hint(key, given, is_whole=True, ours=ours)
        or nearest(name, known, _SLIP)
        or renamed.hint(key, given, ours=ours)
        or nearest(name, known, SAME_MEANING)
        or f"; known keys: {', '.join(known)}"
    )


def _unspaced(detail: ErrorDetails, location: list[str], known: list[str]) -> str:
    """The advice for `{weight:1}`, which YAML reads as one key without a value; empty where that is not the mistake."""
    given, kind = detail["input"], detail["type"]
    texts: list[Any] = []
    if kind == "missing" and isinstance(given, Mapping):
        texts = [name for name, value in given.items() if value is None and str(name).partition(":")[0] in known]
    elif given is None and location and (kind != "extra_forbidden" or location[-1].partition(":")[0] in known):
        texts = [location[-1]]
    elif kind in ("dict_type", "model_type"):
        texts = [given]
    for text in texts:
        if isinstance(text, str) and (found := _UNSPACED.fullmatch(text)):
            return f"no space is behind '{found[1]}:', so YAML reads it and its value as one; write {found[1]}: VALUE"
    return ""


def misplaced(model: type[BaseModel], raw: Any, prefix: str = "") -> str:
    """`"train.steps = true: expected a number..."` for what pydantic would take: true as 1, and no text as a folder."""
    found = _find([model], raw)
    if found is None:
        return ""
    *place, value = found
    key = ".".join([prefix, *place] if prefix else place)
    if value == "":
        return f"{key:.200} = '': expected a path, got an empty text; name one, or leave the key out"
    also = "yes and on" if value else "no and off"
    return f"{key:.200} = {str(value).lower()}: expected a number ({also} mean that too); write one"


def _find(kinds: Iterable[Any], value: Any) -> tuple[Any, ...] | None:
    """The keys that lead to a boolean in the place of a number, or an empty text in that of a path, and the value."""
    flat = [each for kind in kinds for each in _alternatives(kind)]
    if isinstance(value, bool):
        return (value,) if {int, float} & {*flat} and not {bool, Any, object} & {*flat} else None
    if isinstance(value, str) and not value:
        return (value,) if Path in flat else None
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    for name, inner in items:
        found = _find([below for kind in flat for below in _below(kind, name)], inner)
        if found is not None:
            return (str(name), *found)
    return None


def _alternatives(kind: Any) -> list[Any]:
    """The types that a value may have."""
    if get_origin(kind) is Annotated:
        return _alternatives(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [each for part in get_args(kind) for each in _alternatives(part)]
    return [kind]


def _below(kind: Any, name: Any) -> Sequence[Any]:
    """The types of what is at `name`, a key or an index, in a value of the type `kind`."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        field = kind.model_fields.get(name)
        return [field.annotation] if field else []
    args = get_args(kind)
    if get_origin(kind) is dict:
        return args[1:]
    if get_origin(kind) not in (tuple, list) or not isinstance(name, int):
        return []
    return args[:1] if len(args) == 1 or args[1] is Ellipsis else args[name : name + 1]


def _model_at(root: type[BaseModel], location: list[str]) -> type[BaseModel] | None:
    model: Any = root
    for part in location:
        if part.isdigit():  # an entry of a list of sections
            model = get_args(model)[0]
            continue
        if get_origin(model) is dict:  # sections by names of the user's
            model = get_args(model)[1]
            continue
        field = getattr(model, "model_fields", {}).get(part)
        model = field.annotation if field else None
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None
