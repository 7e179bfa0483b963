"""Calls in messages of OpenAI's protocol: their arguments are read as strictly as those that a model wrote."""

import json
import math
from typing import Any

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


@pytest.mark.parametrize(
    "arguments",
    [
        *([], 0, False, 7, " ", "[]", "0", "null", "{"),
        *('{"x": NaN}', '{"x": 1e999}', '{"x": -Infinity}', {"x": math.nan}, {"x": math.inf}),
        *('{"x": "\\ud800"}', {"x": "\ud800"}, {"x": object()}),
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
