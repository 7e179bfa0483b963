"""Every value of a good request exchanged for odd ones, in all protocols: a reply or a refusal, never a failure."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from agent_rl.endpoint.endpoint import Endpoint
from agent_rl.endpoint.session import SessionSpec
from agent_rl.policies.minimind_policy import MiniMindPolicy
from agent_rl.rollout.turns import EpisodeLimits

ROOT = Path(__file__).resolve().parents[2]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
GOOD: dict[str, dict[str, Any]] = {
    "chat/completions": {
        "model": "policy",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "u"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "r"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}],
        "max_tokens": 4,
        "logprobs": True,
        "stream": False,
        "stream_options": {"include_usage": True},
        "temperature": 1.0,
    },
    "responses": {
        "model": "policy",
        "instructions": "s",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "r"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
        "max_output_tokens": 4,
        "include": ["message.output_text.logprobs"],
        "text": {"format": {"type": "text"}},
    },
    "messages": {
        "model": "policy",
        "max_tokens": 4,
        "system": [{"type": "text", "text": "s"}],
        "messages": [
            {"role": "user", "content": "u"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "t"},
                    {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "r"}]},
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto"},
    },
}


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"type": "object", "properties": {"a": value}}
    return value


MISSING = object()
ODD: list[Any] = [
    *(
        MISSING,
        None,
        True,
        0,
        -1,
        1e308,
        10**300,
        "",
        "\x00",
        "<|im_end|>",
        "😀" * 50,
        "x" * 3000,
        "null",
        "[]",
        '{"a": 1}',
    ),
    *([], {}, [[]], [{}], {"a": 1}, ["text"], [{"type": "text"}], [{"type": "text", "text": "hi"}], deep(5), deep(300)),
]


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if before:
        yield before
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*before, key))


def changed(body: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    body = copy.deepcopy(body)
    node: Any = body
    for key in place[:-1]:
        node = node[key]
    if value is MISSING:
        del node[place[-1]]
    else:
        node[place[-1]] = value
    return body


@pytest.fixture(scope="module")
def policy() -> Iterator[MiniMindPolicy]:
    made = MiniMindPolicy.from_pretrained(
        ROOT / "model/math_minimind", dtype="float32", device=torch.device("cpu"), max_batch_size=4, max_context=640
    )
    yield made
    made.close()


@pytest.mark.parametrize("path", GOOD)
def test_odd_values_are_answered_or_refused(policy: MiniMindPolicy, path: str) -> None:
    cases = [(place, value) for place in places(GOOD[path]) for value in ODD]
    spec = SessionSpec(seed=1, group=1, temperature=1.0, limits=EpisodeLimits(max_new_tokens=4))
    statuses = set()
    with Endpoint(policy) as endpoint, httpx.Client(trust_env=False, timeout=400) as client:
        for place, value in cases:
            key, session = endpoint.sessions.open(spec)
            content = json.dumps(changed(GOOD[path], place, value)).encode()
            answer = client.post(f"{endpoint.base_url(key)}/{path}", content=content)
            assert answer.status_code in (200, 400), (place, value, answer.text)
            assert session.failure is None
            assert session.num_turns == (answer.status_code == 200)
            statuses.add(answer.status_code)
            endpoint.sessions.conclude(key)
    assert statuses == {200, 400}
