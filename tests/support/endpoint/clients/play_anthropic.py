"""A loop over Anthropic's client, plain and streamed."""

import json
from typing import Any

from anthropic import AsyncAnthropic
from common import Episode, main


def to_chat(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    calls = [
        {"id": block["id"], "function": {"name": block["name"], "arguments": json.dumps(block["input"])}}
        for block in blocks
        if block["type"] == "tool_use"
    ]
    return {"role": "assistant", "content": "".join(texts), "tool_calls": calls}


def to_user(rows: list[dict[str, Any]]) -> dict[str, Any]:
    blocks = [
        {"type": "tool_result", "tool_use_id": row["tool_call_id"], "content": row["content"]}
        if row["role"] == "tool"
        else {"type": "text", "text": row["content"]}
        for row in rows
    ]
    return {"role": "user", "content": blocks}


async def play(episode: Episode) -> None:
    client = AsyncAnthropic(base_url=episode.base_url.removesuffix("/v1"), api_key=episode.key, max_retries=0)
    systems = [row["content"] for row in episode.messages if row["role"] == "system"]
    messages: list[Any] = [to_user([row for row in episode.messages if row["role"] != "system"])]
    tools = [
        {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
        for f in (tool["function"] for tool in episode.tools)
    ]
    while not episode.is_over:
        request: dict[str, Any] = {"model": "policy", "max_tokens": 4096, "messages": messages, "tools": tools}
        if systems:
            request["system"] = systems[0]
        if episode.stream:
            async with client.messages.stream(**request) as stream:
                reply = await stream.get_final_message()
        else:
            reply = await client.messages.create(**request)
        blocks = [block.model_dump(exclude_none=True) for block in reply.content]
        rows = await episode.step(to_chat(blocks))
        messages = [*messages, {"role": "assistant", "content": blocks}, to_user(rows)]


main(play)
