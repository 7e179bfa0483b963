"""Calls in messages of OpenAI's protocol: their arguments are read as strictly as those that a model wrote."""

import datetime
import json
import math
from collections import UserDict
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from agent_rl.agent.message_dicts import read_call, read_chat
from agent_rl.errors import DataError
from agent_rl.policies.api.numbered_messages import read_reply


def a_call(arguments: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def nested(depth: int) -> dict[str, Any]:
    return {"a": nested(depth - 1)} if depth > 1 else {}


@pytest.mark.parametrize("arguments", [None, "", {}, "{}"])
def test_missing_arguments_are_none_at_all(arguments: Any) -> None:
    assert read_call(a_call(arguments), "m")[1].arguments == {}


@pytest.mark.parametrize("arguments", [nested(64), {"a": [1, 2.5, None, True, "\U0001f600"]}])
def test_an_object_and_its_text_are_read_alike(arguments: dict[str, Any]) -> None:
    assert read_call(a_call(arguments), "m")[1].arguments == arguments
    assert read_call(a_call(json.dumps(arguments)), "m")[1].arguments == arguments


@pytest.mark.parametrize("made", [MappingProxyType, UserDict])
def test_any_mapping_is_an_object(made: Any) -> None:
    assert read_call(a_call(made({"a": [made({"b": 1})]})), "m")[1].arguments == {"a": [{"b": 1}]}


@pytest.mark.parametrize("value", [np.int64(3), datetime.date(2020, 1, 1), Decimal("1.5"), b"a"])
def test_a_value_that_JSON_does_not_have_is_named_by_its_type(value: Any) -> None:
    with pytest.raises(DataError) as refused:
        read_call(a_call({"x": value}), "m")
    assert type(value).__name__ in str(refused.value).split("; ")[-1]


@pytest.mark.parametrize("depth", [3000, 50_000])
def test_what_is_nested_too_deeply_to_be_shown_is_refused_all_the_same(depth: int) -> None:
    arguments: dict[str, Any] = {}
    for _ in range(depth):
        arguments = {"a": arguments}
    for call in (a_call(arguments), {"name": 3, "arguments": arguments}):
        with pytest.raises(DataError):
            read_call(call, "m")


@pytest.mark.parametrize(
    "arguments",
    [
        *([], 0, False, 7, " ", "[]", "0", "null", "{"),
        *('{"x": NaN}', '{"x": 1e999}', '{"x": -Infinity}', {"x": math.nan}, {"x": math.inf}),
        *('{"x": "\\ud800"}', {"x": "\ud800"}, {"x": object()}, {"x": 10**5000}, {(1, 2): 3}),
        *(nested(65), json.dumps(nested(65)), '{"a":' * 980 + "1" + "}" * 980),
    ],
)
def test_what_no_call_can_hold_is_refused_and_an_error_for_the_model(arguments: Any) -> None:
    with pytest.raises(DataError):
        read_call(a_call(arguments), "m")
    with pytest.raises(DataError):
        read_chat([{"role": "assistant", "tool_calls": [a_call(arguments)]}], "messages")
    if isinstance(arguments, str):
        reply = read_reply({"tool_calls": [a_call(arguments), a_call("{}")]})
        assert ([call.arguments for call in reply.tool_calls], len(reply.tool_errors)) == ([{}], 1)
