"""A server on the SDK's lower level: its list of tools comes in pages of one, its answers hold no text."""

import anyio
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.types import CallToolResult, ListToolsResult, Tool

NAMES = ("first", "second", "third")


async def list_tools(ctx, params):
    page = int(params.cursor) if params and params.cursor else 0
    tool = Tool(name=NAMES[page], input_schema={"type": "object", "properties": {}})
    return ListToolsResult(tools=[tool], next_cursor=str(page + 1) if page + 1 < len(NAMES) else None)


async def call_tool(ctx, params):
    return CallToolResult(content=[], structured_content={"called": params.name})


async def main():
    server = Server("paged", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


anyio.run(main)
