"""OpenAI's Agents SDK, by chat completions or, with `responses`, its own protocol; plain and streamed."""

import asyncio
import sys
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    ToolsToFinalOutputResult,
    set_tracing_disabled,
)
from common import Episode, main
from openai import AsyncOpenAI

set_tracing_disabled(True)
MODEL = OpenAIResponsesModel if "responses" in sys.argv else OpenAIChatCompletionsModel


def tool_of(episode: Episode, row: dict[str, Any], order: asyncio.Lock) -> FunctionTool:
    function = row["function"]

    async def invoke(context: Any, arguments: str) -> str:
        call = {"id": context.tool_call_id, "function": {"name": function["name"], "arguments": arguments}}
        async with order:  # the SDK starts the calls of a message in order, side by side
            if episode.is_over:
                return ""
            rows = await episode.step({"role": "assistant", "content": "", "tool_calls": [call]})
        return rows[0]["content"] if rows else ""

    return FunctionTool(
        name=function["name"],
        description=function["description"],
        params_json_schema=function["parameters"],
        on_invoke_tool=invoke,
        strict_json_schema=False,
    )


async def play(episode: Episode) -> None:
    order = asyncio.Lock()

    def end(_context: Any, _results: Any) -> ToolsToFinalOutputResult:
        return ToolsToFinalOutputResult(is_final_output=episode.is_over, final_output="")

    systems = [row["content"] for row in episode.messages if row["role"] == "system"]
    client = AsyncOpenAI(base_url=episode.base_url, api_key=episode.key, max_retries=0)
    agent = Agent(
        name="agent",
        instructions=systems[0] if systems else None,
        model=MODEL(model="policy", openai_client=client),
        model_settings=ModelSettings(temperature=episode.temperature),
        tools=[tool_of(episode, row, order) for row in episode.tools],
        tool_use_behavior=end,
    )
    items: list[Any] = [row for row in episode.messages if row["role"] != "system"]
    while not episode.is_over:
        if episode.stream:
            result = Runner.run_streamed(agent, items, max_turns=64)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, items, max_turns=64)
        if not episode.is_over:
            rows = await episode.step({"role": "assistant", "content": result.final_output})
            items = [*result.to_input_list(), *({"role": "user", "content": row["content"]} for row in rows)]


main(play)
