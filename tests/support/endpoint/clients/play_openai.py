"""A loop over the bare `openai` client, plain and streamed."""

from typing import Any

from common import Episode, main
from openai import AsyncOpenAI


async def streamed(client: AsyncOpenAI, **request: Any) -> dict[str, Any]:
    content, calls = "", {}
    async for chunk in await client.chat.completions.create(stream=True, **request):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            for part in choice.delta.tool_calls or ():
                call = calls.setdefault(
                    part.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                )
                call["id"] += part.id or ""
                call["function"]["name"] += part.function.name or ""
                call["function"]["arguments"] += part.function.arguments or ""
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls.values())} if calls else {})}


async def play(episode: Episode) -> None:
    client = AsyncOpenAI(base_url=episode.base_url, api_key=episode.key, max_retries=0)
    rows = episode.messages
    while not episode.is_over:
        request = {"model": "policy", "messages": rows, "tools": episode.tools, "temperature": episode.temperature}
        if episode.stream:
            message = await streamed(client, **request)
        else:
            reply = await client.chat.completions.create(**request)
            message = reply.choices[0].message.model_dump(exclude_none=True)
        rows = [*rows, message, *await episode.step(message)]


main(play)
