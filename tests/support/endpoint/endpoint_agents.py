"""An agent of anybody's: an environment of the library on one side, HTTP requests to an endpoint on the other."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import httpx

from agent_rl.agent.messages import Message, ToolCall, ToolSpec
from agent_rl.agent.tool_parser import parse_tool_calls
from agent_rl.envs.base import AgentEnv

Ask = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], Mapping[str, Any]]
"""(messages, tools) -> the assistant's message, all as OpenAI's protocol has them."""


def to_rows(messages: Sequence[Message], calls: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Messages of an environment as a client sends them; results answer the calls with these ids in order."""
    rows, ids = [], iter(calls)
    for message in messages:
        row: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.role == "tool":
            row["tool_call_id"] = next(ids, "none")
        rows.append(row)
    return rows


def to_tools(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    return [tool.to_openai() for tool in tools]


def to_message(row: Mapping[str, Any]) -> Message:
    """What the environment gets: broken calls, which the protocol has no place for, are read from the text again."""
    calls = tuple(
        ToolCall(name=call["function"]["name"], arguments=json.loads(call["function"]["arguments"]))
        for call in row.get("tool_calls") or ()
    )
    reply = parse_tool_calls(row.get("content") or "")
    return Message(role="assistant", content=reply.content, tool_calls=calls, tool_errors=reply.errors)


def play(env: AgentEnv, task: Mapping[str, Any], ask: Ask) -> tuple[float, dict[str, float]]:
    """Play an episode of `env`; its reward and parts. An environment that rewrites its conversation is not for this."""
    with closing(env):
        rows, reward, parts = to_rows(env.reset(dict(task))), 0.0, {}
        while True:
            row = ask(rows, to_tools(env.tools))
            result = env.step(to_message(row))
            reward += result.reward or 0.0
            parts |= result.reward_parts
            if result.terminated:
                return reward, parts
            broken = len(to_message(row).tool_errors)
            ids = [*["none"] * broken, *(call["id"] for call in row.get("tool_calls") or ())]
            rows = [*rows, dict(row), *to_rows(result.messages, ids)]


def ask_by_http(base_url: str, key: str, *, stream: bool = False, **more: Any) -> Ask:
    """Requests without any SDK."""

    def ask(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        body = {"model": "policy", "messages": messages, "tools": tools, "stream": stream, **more}
        headers = {"Authorization": f"Bearer {key}"}
        answer = httpx.post(f"{base_url}/chat/completions", json=body, headers=headers, timeout=60.0, trust_env=False)
        answer.raise_for_status()
        if not stream:
            return answer.json()["choices"][0]["message"]
        events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        return json.loads(events[0])["choices"][0]["delta"]

    return ask
