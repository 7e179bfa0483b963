"""Refuse plans that cost the host more than those of the generator, or that say other things than their rules.

A plan may come from anybody, and hidden cases are made of it in this process: numbers, texts and settings are held to
what its families offer, before anything is computed with them. Not here: shapes (`judge/parse.py`), whether hidden
cases can be made (`create/scope.py`).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.families.base import unsafe_text
from agent_rl.envs.nat.factory.families.group.function_group import GroupRules
from agent_rl.envs.nat.spec import ConfigField, Group, InputField, Inputs, NATSpec, Tool, Value

MAX_RULE_CHARS = 8000
"""Of one tool's rules, as JSON."""
MAX_NUMBER = 1_000_000
MAX_TEXT_CHARS = 4000
"""Of one input in an example or among the telling inputs."""
_LEAST, _GREATEST = 1e-9, 1e12
"""Sizes of an input that is a number and not 0: exact fractions of others are long."""
_TYPES: dict[str, tuple[type, ...]] = {"float": (int, float), "int": (int,), "str": (str,)}


def check_rule_size(rules: Mapping[str, Any]) -> None:
    """ValueError for rules that are too long, hold too large a number, or a text that would not stay one in code."""
    if (num_chars := len(json.dumps(rules))) > MAX_RULE_CHARS:
        raise ValueError(f"the rules have {num_chars} characters, {MAX_RULE_CHARS} are the most")
    if large := [number for number in _numbers(rules) if abs(number) > MAX_NUMBER]:
        raise ValueError(f"the rules hold {large[0]!s:.20}, {MAX_NUMBER} is the most")
    if (text := unsafe_text(rules)) is not None:
        raise ValueError(f"rules may not hold quotes, backslashes, backticks or unprintable characters: {text[:80]!r}")


def check_tool(tool: Tool) -> None:
    """ValueError for a tool that its rules do not make, and for inputs that are none of it."""
    try:
        draft = FAMILIES[tool.family].remade(tool)
    except (ArithmeticError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"the rules do not hold together ({type(error).__name__}: {error!s:.100})") from None
    # Of inputs in another order, as other names of variables bring, the tool is the same.
    if len(tool.inputs) != len(draft.inputs) or {*tool.inputs} != {*draft.inputs} or tool.errors != draft.errors:
        takes = {field.name: field.type for field in draft.inputs}
        raise ValueError(f"these rules make a tool of the inputs {takes} and the errors {list(draft.errors)}")
    _check_field(tool.config_field, draft.config_field)
    _check_telling_config(tool.telling.config, tool.config_field)
    for inputs in (*tool.telling.inputs, *tool.telling.configured, tool.example.inputs):
        _check_inputs(inputs, tool.inputs)


def check_group(group: Group) -> None:
    """The same for a function group."""
    state = GroupRules.model_validate(group.rules).root
    if group.functions != tuple(map(state.function, state.names)) or group.errors != tuple(state.errors.values()):
        raise ValueError(f"these rules make a group of other functions or errors: {', '.join(state.names.values())}")
    offered = None
    if group.config_field and state.PARAMETERS.get(group.config_field.name):
        low, high = state.bounds(group.config_field.name)
        offered = group.config_field.model_copy(update={"low": low, "high": high})
    _check_field(group.config_field, offered)
    _check_telling_config(group.telling.config, group.config_field)
    fields = {each.name: each.inputs for each in group.functions}
    told = [call for calls in (*group.telling.sequences, *group.telling.configured) for call in calls]
    for call in (*told, *group.example):
        if call.function not in fields:
            raise ValueError(f"{call.function!r} is none of the functions {', '.join(fields)}")
        _check_inputs(call.inputs, fields[call.function])


def check_workflow(spec: NATSpec) -> None:
    """ValueError for an example of a router or a pipeline that is too long."""
    flow = spec.workflow
    given = flow.example.inputs if flow.kind in ("router", "pipeline") else {}
    if long := [name for name, value in given.items() if not _is_bounded(value)]:
        raise ValueError(f"the input {long[0]!r} is too long for an example")


def _check_field(field: ConfigField | None, offered: ConfigField | None) -> None:
    """A setting is one that the rules offer, within the bounds that they give it."""
    if field is None:
        return
    if offered is None or offered.name != field.name:
        raise ValueError(f"these rules have no setting {field.name!r}")
    if not offered.low <= field.low <= field.default <= field.high <= offered.high:
        raise ValueError(
            f"the setting {field.name!r} goes from {field.low!s:.20} to {field.high!s:.20} with the default "
            f"{field.default!s:.20}; {offered.low} to {offered.high} are the bounds"
        )


def _check_telling_config(config: Mapping[str, int], field: ConfigField | None) -> None:
    for name, value in config.items():
        if field is None or name != field.name or not field.low <= value <= field.high:
            raise ValueError(f"telling inputs under the setting {name!r}: {value!s:.20} are not possible")


def _check_inputs(inputs: Inputs, fields: Iterable[InputField]) -> None:
    types = {field.name: field.type for field in fields}
    if inputs.keys() != types.keys():
        raise ValueError(f"inputs must be {', '.join(types)}, got {', '.join(inputs)}")
    for name, value in inputs.items():
        if type(value) not in _TYPES[types[name]] or not _is_bounded(value):
            raise ValueError(
                f"the input {name!r} is not of the type {types[name]}, or too long for an example ({value!r:.40})"
            )


def _is_bounded(value: Value) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_TEXT_CHARS
    return value == 0 or _LEAST <= abs(value) <= _GREATEST


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(each)
