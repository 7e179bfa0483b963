"""Checks a call's arguments against a tool's JSON schema with `jsonschema` and says what is wrong with them.

Any schema will do, also one from a stranger's server: remote references are not fetched, malformed keywords ignored,
and a check ends after `_MAX_VISITS` schemas. Does not: ranges, formats, and patterns, which may take years; the tool
itself refuses those. `not` and `if` would be wrong without them; `oneOf` is checked as `anyOf`.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from jsonschema import Draft4Validator, Draft202012Validator, ValidationError
from jsonschema.validators import create
from referencing import Registry, Resource, Specification

from agent_rl.errors import nearest

_MAX_VISITS, _MAX_CHOICES = 5_000, 20
_OPENING = {"patternProperties", "allOf", "anyOf", "oneOf", "$ref"}
"""Keywords that may bring further properties."""
_LIBRARY = Draft202012Validator.VALIDATORS
_visits = threading.local()
Errors = Iterator[ValidationError]


def check_arguments(arguments: dict[str, Any], schema: dict[str, Any]) -> str | None:
    """Return what is wrong with `arguments` under a JSON schema, or None.

    An argument that the schema does not list is refused unless `additionalProperties` or a keyword that may bring
    further properties allows it. Very deep or large values are checked in part.
    """
    root = schema if isinstance(schema, dict) else {}
    resolver = Registry().resolver_with_root(Resource(root, Specification.OPAQUE))
    with suppress(Exception):  # no reference, or one that leads nowhere
        root = {**resolver.lookup(root["$ref"]).contents, **{key: root[key] for key in root if key != "$ref"}}
    _visits.left = _MAX_VISITS
    try:
        checker = _Checker({"additionalProperties": False, **root}, _resolver=resolver)
        error = next(checker.iter_errors(arguments), None)
    except RecursionError:
        return None
    if error is None:
        return None
    is_own = error.message.startswith((" ", ";"))
    message = error.message if is_own else " is not allowed"  # the library's own text shows the whole value
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.path).removeprefix(".")
    if not path:
        return f"the object of arguments{message}"
    return f"{'unknown ' * (error.validator == 'additionalProperties')}argument {path!r}{message}"


def _type(checker: Any, kinds: Any, value: Any, schema: Any) -> Errors:
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if not any(checker.is_type(value, kind) for kind in kinds):
        text = f" must be a JSON {' or '.join(kinds)}, got {type(value).__name__}"
        yield ValidationError(text, validator_value=kinds)


def _enum(checker: Any, choices: Any, value: Any, schema: Any) -> Errors:
    if choices and not any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in choices):
        texts = [_json(choice) for choice in choices[:_MAX_CHOICES]] + ["..."] * (len(choices) > _MAX_CHOICES)
        listed = texts[0] if len(texts) == 1 else f"one of {', '.join(texts)}"
        yield ValidationError(f" must be {listed}, got {_json(value)}")


def _any_of(checker: Any, branches: Any, value: Any, schema: Any) -> Errors:
    errors = [next(checker.descend(value, branch), None) for branch in branches]
    if not errors or None in errors:
        return
    fitting = [error for error in errors if error.validator != "type" or error.path]
    if not fitting:
        kinds = dict.fromkeys(kind for error in errors for kind in error.validator_value)
        yield from _type(checker, list(kinds), value, schema)
    else:
        yield fitting[0] if len(fitting) == 1 else ValidationError(" fits none of the forms that it may take")


def _required(checker: Any, names: Any, value: Any, schema: Any) -> Errors:
    for name in names if isinstance(value, dict) else ():
        if name not in value:
            yield ValidationError(f" is missing; expected {', '.join(schema.get('properties', {}))}", path=[name])


def _others(checker: Any, others: Any, value: Any, schema: Any) -> Errors:
    listed = schema.get("properties", {})
    for name in value if isinstance(value, dict) and not _OPENING & schema.keys() else ():
        if name not in listed and others is False:
            text = f"{nearest(name, listed)}; expected: {', '.join(listed) or 'none'}"
            yield ValidationError(text, path=[name])
        elif name not in listed:
            yield from checker.descend(value[name], others, path=name)


def _guarded(keyword: Callable[..., Any]) -> Callable[..., Errors]:
    def check(*given: Any) -> Errors:
        try:
            yield from keyword(*given)
        except RecursionError:
            raise
        except Exception:  # the boundary to a stranger's schema: a malformed keyword is none
            return

    return check


_KEYWORDS = {
    "type": _type,
    "enum": _enum,
    "const": lambda checker, expected, *rest: _enum(checker, [expected], *rest),
    "allOf": _LIBRARY["allOf"],
    "anyOf": _any_of,
    "oneOf": _any_of,
    "required": _required,
    "additionalProperties": _others,
    **{key: _LIBRARY[key] for key in ("properties", "prefixItems", "items", "$ref")},
}


def _applicable(schema: Any) -> list[tuple[str, Any]]:
    """The keywords of a schema in the order of `_KEYWORDS`; each call counts as a visit."""
    _visits.left -= 1
    if _visits.left < 0:
        raise RecursionError("too many schemas")
    return [(key, schema[key]) for key in _KEYWORDS if isinstance(schema, dict) and key in schema]


_Checker = create(
    meta_schema={},
    validators={key: _guarded(keyword) for key, keyword in _KEYWORDS.items()},
    type_checker=Draft4Validator.TYPE_CHECKER,  # later drafts take 3.0 for an integer
    applicable_validators=_applicable,
)
_Checker.evolve = lambda self, **given: _Checker(**given)  # else a nested `$schema` chooses the library's own checkers


def _json(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (RecursionError, ValueError):  # nested too deeply, or a number with thousands of digits
        return type(value).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."
