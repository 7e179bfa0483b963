"""Anthropic's and the Responses protocol: the same conversation, sampled as the same turns."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fakes import ScriptedPolicy

from agent_rl.endpoint.dialects.anthropic import AnthropicDialect
from agent_rl.endpoint.dialects.responses import ResponsesDialect
from agent_rl.endpoint.endpoint import Endpoint
from agent_rl.endpoint.errors import EndpointError
from agent_rl.endpoint.requests import parse_chat
from agent_rl.endpoint.session import EpisodeSession, SessionSpec
from agent_rl.rollout.turns import EpisodeLimits

CALL = 'Look: <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
CHAT_TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds", "parameters": SCHEMA}}]
CHAT = {
    "messages": [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "Look:",
            "tool_calls": [{"id": "c", "function": {"name": "add", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "2"},
        {"role": "user", "content": "Well?"},
    ],
    "tools": CHAT_TOOLS,
    "max_tokens": 90,
}
ANTHROPIC = {
    "model": "policy",
    "max_tokens": 90,
    "system": [{"type": "text", "text": "Be brief", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "text", "text": "Look:"},
                {"type": "tool_use", "id": "c", "name": "add", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "2"}]},
                {"type": "text", "text": "Well?"},
            ],
        },
    ],
    "tools": [{"name": "add", "description": "Adds", "input_schema": SCHEMA}],
}
RESPONSES = {
    "model": "policy",
    "instructions": "Be brief",
    "max_output_tokens": 90,
    "input": [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Look:"}]},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c", "output": "2"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Well?"}]},
    ],
    "tools": [{"type": "function", "name": "add", "description": "Adds", "parameters": SCHEMA, "strict": True}],
}


def test_one_conversation_is_read_alike_in_all_three() -> None:
    chat = parse_chat(CHAT)
    for other in (AnthropicDialect().parse(ANTHROPIC), ResponsesDialect().parse(RESPONSES)):
        assert (other.messages, other.tools, other.max_tokens) == (chat.messages, chat.tools, chat.max_tokens)
        assert other.call_ids == chat.call_ids


@pytest.mark.parametrize(
    "change",
    [
        {"messages": None},
        {"messages": [{"role": "system", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}]},
        {"messages": [{"role": "user", "content": [5]}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [5]},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "prefilled"}]},
        {"system": [{"type": "image"}]},
        {"stop_sequences": ["END"]},
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "tool", "name": "add"}},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"tools": 5},
        {"top_k": 5},
        {"tool_choice": "any"},
        {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
        {"output_format": {"type": "json_schema"}},
        {"min_tokens": 3},
    ],
)
def test_what_anthropics_protocol_may_not_ask_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(EndpointError) as caught:
        AnthropicDialect().parse(ANTHROPIC | change)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "change",
    [
        {"input": None},
        {"input": [5]},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        {
            "input": [
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"},
                {"role": "user", "content": "a"},
            ]
        },
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"text": {"format": {"type": "json_schema", "schema": {}}}},
        {"tools": [{"type": "web_search"}]},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "name": "add"}},
        {"top_p": 0.5},
        {"n": 3},
        {"stop": ["x"]},
        {"top_k": 3},
        {"presence_penalty": 1.0},
        {"frequency_penalty": 1.0},
        {"logit_bias": {"1": 3}},
        {"max_tool_calls": 1},
    ],
)
def test_what_the_responses_protocol_may_not_ask_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(EndpointError) as caught:
        ResponsesDialect().parse(RESPONSES | change)
    assert caught.value.status == 400


@pytest.mark.parametrize("is_parallel", [True, False])
def test_what_clients_send_and_changes_nothing_is_taken(is_parallel: bool) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": not is_parallel}
    assert AnthropicDialect().parse(ANTHROPIC | {"tool_choice": choice, "output_config": {"effort": "high"}}).tools
    more = {"tool_choice": "auto", "parallel_tool_calls": is_parallel, "text": {"format": {"type": "text"}}}
    more |= {"store": False}
    assert ResponsesDialect().parse(RESPONSES | more | {"truncation": "disabled", "top_p": 1.0}).tools


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(ScriptedPolicy([CALL, "done"])) as running:
        yield running


def open_one(endpoint: Endpoint) -> tuple[str, EpisodeSession]:
    limits = EpisodeLimits(max_new_tokens=200)
    return endpoint.sessions.open(SessionSpec(seed=1, group=1, temperature=1.0, limits=limits))


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    lines = answer.text.splitlines()
    rows = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert [row["type"] for row in rows] == [
        line.removeprefix("event: ") for line in lines if line.startswith("event: ")
    ]
    return rows


def test_a_conversation_in_anthropics_protocol_is_one_sample(endpoint: Endpoint) -> None:
    key, session = open_one(endpoint)
    url, headers = f"{endpoint.base_url(key)}/messages", {"x-api-key": key}
    first = {"model": "policy", "max_tokens": 90, "messages": [{"role": "user", "content": "a"}]}
    said = httpx.post(url, json=first, headers=headers, trust_env=False).json()
    assert [block["type"] for block in said["content"]] == ["text", "tool_use"]
    assert (said["stop_reason"], said["content"][1]["input"]) == ("tool_use", {"a": 1})
    result = {"type": "tool_result", "tool_use_id": said["content"][1]["id"], "content": "2"}
    rows = [
        *first["messages"],
        {"role": "assistant", "content": said["content"]},
        {"role": "user", "content": [result]},
    ]
    answer = httpx.post(url, json=first | {"messages": rows, "stream": True}, headers=headers, trust_env=False)
    events = events_of(answer)
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert (events[2]["delta"]["text"], events[4]["delta"]["stop_reason"]) == ("done", "end_turn")
    assert [turn.new_context for turn in session.turns] == [False, False]
    refused = httpx.post(url, json=first | {"top_p": 0.5}, headers=headers, trust_env=False)
    assert (refused.status_code, refused.json()["type"]) == (400, "error")


def test_a_conversation_in_the_responses_protocol_is_one_sample(endpoint: Endpoint) -> None:
    key, session = open_one(endpoint)
    url = f"{endpoint.base_url(key)}/responses"
    first = {"model": "policy", "input": "a", "include": ["message.output_text.logprobs"]}
    said = httpx.post(url, json=first, trust_env=False).json()
    assert [item["type"] for item in said["output"]] == ["message", "function_call"]
    sampled = [entry["token_id"] for entry in said["output"][0]["content"][0]["logprobs"]]
    assert sampled == list(session.turns[0].completion.token_ids)
    result = {"type": "function_call_output", "call_id": said["output"][1]["call_id"], "output": "2"}
    items = [{"role": "user", "content": "a"}, *said["output"], result]
    answer = httpx.post(url, json=first | {"input": items, "stream": True}, trust_env=False)
    events = events_of(answer)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "done"
    assert [turn.new_context for turn in session.turns] == [False, False]
    refused = httpx.post(url, json=first | {"top_p": 0.5}, trust_env=False)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "top_p")
