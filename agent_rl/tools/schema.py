"""Checks a call's arguments against a tool's JSON schema and says in words what is wrong with them.

Any schema will do, also one that a stranger's server sends. Checked are required and unknown names, and of each value
basic types, `enum`, `const`, `anyOf`, `oneOf`, `allOf`, `items`, nested properties, with `$ref` inside the schema.
Not here: formats, patterns, ranges and the rest, which a tool has to refuse itself.
"""

import json
from dataclasses import dataclass
from typing import Any

from agent_rl.errors import nearest

_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}
_MAX_DEPTH = 32
_MAX_VISITS = 5_000
_MAX_REFS = 16
_MAX_CHOICES = 20


def check_arguments(arguments: dict[str, Any], schema: dict[str, Any]) -> str | None:
    """Return what is wrong with `arguments` under a JSON schema, or None.

    A name that the schema does not list is refused unless `additionalProperties` or a keyword that may bring further
    properties allows it. Very deep or large values are checked in part.
    """
    check = _Check(root=schema)
    return check.object(arguments, check.resolved(schema), "", is_closed=True)


@dataclass(slots=True)
class _Check:
    """One check; `path` names the place in the arguments, such as `points[0].x`."""

    root: Any
    visits_left: int = _MAX_VISITS

    def value(self, value: Any, schema: Any, path: str, depth: int = 0) -> str | None:
        self.visits_left -= 1
        if depth > _MAX_DEPTH or self.visits_left < 0:
            return None
        schema = self.resolved(schema)
        kinds = _kinds(schema)
        if kinds and not any(_is_a(value, kind) for kind in kinds):
            return _wrong_type(path, kinds, value)
        choices = [schema["const"]] if "const" in schema else _list(schema, "enum")
        if choices and not any(_equal(value, choice) for choice in choices):
            return f"argument {path!r} must be {_listed(choices)}, got {_json(value)}"
        for branch in _list(schema, "allOf"):
            if complaint := self.value(value, branch, path, depth + 1):
                return complaint
        for key in ("anyOf", "oneOf"):
            if complaint := self.any_of(value, _list(schema, key), path, depth):
                return complaint
        if isinstance(value, dict):
            return self.object(value, schema, path, depth=depth)
        return self.array(value, schema, path, depth) if isinstance(value, list) else None

    def any_of(self, value: Any, branches: list[Any], path: str, depth: int) -> str | None:
        complaints = [self.value(value, branch, path, depth + 1) for branch in branches]
        if not complaints or None in complaints:
            return None
        kinds = [_kinds(self.resolved(branch)) for branch in branches]
        fitting = [
            complaint
            for complaint, of_branch in zip(complaints, kinds, strict=True)
            if not of_branch or any(_is_a(value, kind) for kind in of_branch)
        ]
        if not fitting:
            return _wrong_type(path, list(dict.fromkeys(kind for of_branch in kinds for kind in of_branch)), value)
        return fitting[0] if len(fitting) == 1 else f"argument {path!r} fits none of the forms that it may take"

    def object(
        self, value: dict[str, Any], schema: dict[str, Any], path: str, *, depth: int = 0, is_closed: bool = False
    ) -> str | None:
        """`is_closed`: unknown names are refused where the schema is silent about them."""
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        for name in _list(schema, "required"):
            if isinstance(name, str) and name not in value:
                return f"argument {_joined(path, name)!r} is missing; expected {', '.join(properties)}"
        others = schema.get("additionalProperties", not is_closed)
        if any(key in schema for key in ("patternProperties", "allOf", "anyOf", "oneOf", "$ref")):
            others = True
        for name, item in value.items():
            where = _joined(path, name)
            if name not in properties and others is False:
                expected = ", ".join(properties) or "none"
                return f"unknown argument {where!r}{nearest(name, properties)}; expected: {expected}"
            if complaint := self.value(item, properties.get(name, others), where, depth + 1):
                return complaint
        return None

    def array(self, value: list[Any], schema: dict[str, Any], path: str, depth: int) -> str | None:
        first = _list(schema, "prefixItems")
        for index, item in enumerate(value):
            item_schema = first[index] if index < len(first) else schema.get("items")
            if complaint := self.value(item, item_schema, f"{path}[{index}]", depth + 1):
                return complaint
        return None

    def resolved(self, schema: Any) -> dict[str, Any]:
        """The schema with its `$ref` followed; one that leads nowhere stays in it, and what is no object is empty."""
        for _ in range(_MAX_REFS):
            if not isinstance(schema, dict):
                return {}
            target = self._at(schema.get("$ref"))
            if not isinstance(target, dict):
                return schema
            schema = {**target, **{key: schema[key] for key in schema if key != "$ref"}}
        return {}

    def _at(self, pointer: Any) -> Any:
        """What a JSON pointer into the schema, such as `#/$defs/Point`, leads to, or None."""
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            return None
        found = self.root
        for part in pointer[1:].split("/")[1:]:
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        return found


def _kinds(schema: dict[str, Any]) -> list[str]:
    """The JSON types that `type` names; empty where it does not say, or says something unheard of."""
    named = schema.get("type")
    kinds = named if isinstance(named, list) else [named]
    return kinds if all(isinstance(kind, str) and kind in _JSON_TYPES for kind in kinds) else []


def _is_a(value: Any, kind: str) -> bool:
    is_bool_for_number = isinstance(value, bool) and kind in ("integer", "number")
    return isinstance(value, _JSON_TYPES[kind]) and not is_bool_for_number


def _equal(value: Any, choice: Any) -> bool:
    return value == choice and isinstance(value, bool) == isinstance(choice, bool)


def _wrong_type(path: str, kinds: list[str], value: Any) -> str:
    return f"argument {path!r} must be a JSON {' or '.join(kinds)}, got {type(value).__name__}"


def _listed(choices: list[Any]) -> str:
    texts = [_json(choice) for choice in choices[:_MAX_CHOICES]] + ["..."] * (len(choices) > _MAX_CHOICES)
    return texts[0] if len(texts) == 1 else f"one of {', '.join(texts)}"


def _json(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (RecursionError, ValueError):  # nested too deeply, or a number with thousands of digits
        return type(value).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."


def _list(schema: dict[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
