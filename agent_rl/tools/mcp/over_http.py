"""Connects to MCP servers over HTTP, whose bodies and events are measured before a value is made of them.

Not here: the protocol, which is the SDK's, and when to connect again (`connection.py`).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from agent_rl.sandbox.guest.bounded_json import UnreadableJSON, check_size
from agent_rl.tools.mcp.budget import Budget
from agent_rl.tools.mcp.transport import MAX_LINE_BYTES, MAX_LINE_VALUES, TOO_LONG, Streams

_EVENT_BYTES = 1024
"""Of an event, around its data."""
_EVENT_ENDS, _LONGEST_END = (b"\n\n", b"\n\r\n", b"\r\r"), 3
"""A line without anything."""


@asynccontextmanager
async def over_http(url: str, *, budget: Budget) -> AsyncIterator[Streams]:
    """A server that speaks streamable HTTP. An answer over `MAX_LINE_BYTES`, or packed, ends its call."""
    async with create_mcp_http_client(headers={"accept-encoding": "identity"}) as client:
        client.event_hooks["response"].append(partial(_bound, budget))
        transport = streamable_http_client(url, http_client=client, max_sse_event_size=MAX_LINE_BYTES)
        async with transport as streams:
            yield streams


async def _bound(budget: Budget, response: httpx2.Response) -> None:
    await budget.take(0)  # a server may have us ask for its stream of news again and again
    is_packed = response.headers.get("content-encoding", "identity") != "identity"
    is_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
    kind = _BoundEvents if is_events and not is_packed else _BoundBody
    response.stream = kind(response.stream, budget, is_packed=is_packed)


class _BoundBody(httpx2.AsyncByteStream):
    """A body that fails, as a stream may, when it is too long, holds too many values, or is packed, which may unpack to
    any length. It comes in one piece, so that no reader makes a value before all were counted."""

    def __init__(self, body: Any, budget: Budget, *, is_packed: bool) -> None:
        self._body, self._budget, self._is_packed = body, budget, is_packed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._is_packed:
            raise httpx2.StreamError("the server packed its answer although it was asked not to")
        whole = bytearray()
        async for data in self._body:
            await self._budget.take(len(data), 0)
            whole += data
            if len(whole) > MAX_LINE_BYTES:
                raise httpx2.StreamError(TOO_LONG)
        _check(bytes(whole))
        yield bytes(whole)

    async def aclose(self) -> None:
        await self._body.aclose()


class _BoundEvents(_BoundBody):
    """A stream of events: the values of each are counted as a body's are, and the budget counts all together. The
    length of one is bounded by the SDK."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        event = bytearray()
        async for data in self._body:
            await self._budget.take(len(data), 0)
            looked_at = max(0, len(event) - _LONGEST_END)
            event += data
            while end := _end_of_event(event, looked_at):
                await self._budget.take(0)
                whole = bytes(memoryview(event)[:end])
                _check(whole)
                yield whole
                del event[:end]
                looked_at = 0
            if len(event) > MAX_LINE_BYTES + _EVENT_BYTES:  # the SDK refuses it unread, and only its call fails
                yield bytes(event)
                event.clear()
        yield bytes(event)


def _end_of_event(data: bytearray, start: int) -> int:
    """Behind the first end, or 0."""
    found = ((data.find(end, start), len(end)) for end in _EVENT_ENDS)
    return min((place + length for place, length in found if place >= 0), default=0)


def _check(data: bytes) -> None:
    try:
        check_size(data, max_values=MAX_LINE_VALUES)
    except UnreadableJSON as error:
        raise httpx2.StreamError(f"the server's answer cannot be read: {error}") from None
