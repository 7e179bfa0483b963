"""One server of `tools.mcp`: connected, its tools asked for, called, and connected again when it was lost.

Everything here runs in the event loop of `tools.py`. Whatever a server does (ends, keeps silent, breaks the
protocol) ends a connection and nothing else. Not here: how bytes travel (`transport.py`).
"""

import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from typing import Any

import anyio
from anyio.abc import TaskGroup
from mcp import Client, MCPError
from mcp.shared.message import SessionMessage
from mcp.types import CONNECTION_CLOSED, CallToolResult, Implementation, JSONRPCError, JSONRPCResponse, Tool

from agent_rl.errors import AgentRLError
from agent_rl.tools.mcp.budget import Budget, LastWords
from agent_rl.tools.mcp.transport import MAX_LINE_BYTES, Streams

OpenTransport = Callable[[LastWords, Budget], AbstractAsyncContextManager[Streams]]
"""Opens a transport, keeps what the server writes to stderr, and takes what else it writes from the budget."""
MAX_IN_FLIGHT = 8
"""Calls that one server is given at a time; further ones wait here, where no clock runs for them."""
MAX_PAGES = 100
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0
_ONE_CALL_FAILED = "SSE stream"
"""The SDK says "connection closed" of a single answer too, one with an event that is too long."""
_ANSWERS = (JSONRPCResponse, JSONRPCError)
_FAILURE_CHARS = 500
_LAST_ANSWER_S = 0.2
"""For an answer that came just before the connection ended."""
_WHO_WE_ARE = Implementation(name="agent_rl", version="1")


class ServerDownError(AgentRLError):
    """A call that the server did not answer: late, or there is no connection any more; the message says which."""


class McpLink:
    """One connection, from its start to its end."""

    def __init__(self) -> None:
        self.client: Client | None = None
        self.tools: tuple[Tool, ...] = ()
        self.failure = ""
        self.words = LastWords()
        self.settled = anyio.Event()
        """The handshake is over, well or not."""
        self.lost = anyio.Event()
        self.num_answers = 0
        """Of all kinds, those that no call waits for any more included: signs of life."""
        self.is_suspected = False
        self.scope = anyio.CancelScope()
        self.budget = Budget(self._end)

    def _end(self) -> None:
        self.lost.set()
        self.scope.cancel()


class _Asked:
    """A call on its way: `done` is set when there is a result or an error, or when the connection is left."""

    def __init__(self) -> None:
        self.done, self.scope = anyio.Event(), anyio.CancelScope()
        self.result: CallToolResult | None = None
        self.error: Exception | None = None


class ServerConnection:
    """Holds a connection to one server, and opens the next when it was lost."""

    def __init__(self, open_transport: OpenTransport, *, timeout_s: float, tasks: TaskGroup) -> None:
        self._open_transport, self._timeout_s, self._tasks = open_transport, timeout_s, tasks
        self._link: McpLink | None = None
        self._num_attempts = 0
        """Connections since the last answer to a call."""
        self._next_attempt = 0.0
        self._turns = anyio.Semaphore(MAX_IN_FLIGHT)

    async def link(self) -> McpLink:
        """The connection, or a new one where it was lost; a server that stays away is not asked at every call.

        A connection that failed has no `client`, and `failure` says why.
        """
        if self._link is None or (self._link.lost.is_set() and time.monotonic() >= self._next_attempt):
            self._num_attempts += 1
            if self._num_attempts > 1:
                wait_s = min(_FIRST_WAIT_S * 2 ** min(self._num_attempts - 2, 10), _LONGEST_WAIT_S)
                self._next_attempt = time.monotonic() + wait_s
            self._link = McpLink()
            self._tasks.start_soon(self._hold, self._link)
        link = self._link
        await link.settled.wait()
        return link

    async def call(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        """The server's answer, within `timeout_s` of being sent. Never asked twice, because a call that was lost may
        have had effects. A turn comes in time, because each call in front is over in `timeout_s`.

        Raises ServerDownError, MCPError when the server refuses the request or its answer cannot be read, and
        ValueError or RuntimeError when its answer is no result of this tool.
        """
        async with self._turns:
            link = await self.link()
            if link.client is None or link.lost.is_set():
                wait_s = self._next_attempt - time.monotonic()
                until = f" and is not asked again for {wait_s:.1f} s" if wait_s > 0 else ""
                raise ServerDownError(f"the server is down ({link.failure}){until}")
            with link.budget.call():
                result = await self._ask(link, link.client, name, arguments)
            self._num_attempts = 0
            return result

    async def _ask(self, link: McpLink, client: Client, name: str, arguments: dict[str, Any]) -> CallToolResult:
        """In a task of its own, because the SDK may take seconds to tell a server that a call was given up."""
        asked = _Asked()
        self._tasks.start_soon(_call_tool, client, name, arguments, asked)
        with anyio.move_on_after(self._timeout_s) as scope:
            await _either(asked.done, link.lost)
        asked.scope.cancel()
        if asked.result is not None:
            return asked.result
        error = asked.error
        is_over = isinstance(error, MCPError) and error.code == CONNECTION_CLOSED
        if link.lost.is_set() or (is_over and not error.message.startswith(_ONE_CALL_FAILED)):
            link.lost.set()
            why = f"was ended: {link.budget.failure}" if link.budget.failure else "ended before it answered"
            raise ServerDownError(f"the server {why}; the next call starts anew") from error
        if scope.cancelled_caught or isinstance(error, MCPError):
            self.suspect()
        raise error or ServerDownError(f"the server gave no answer within {self._timeout_s:g} s")

    def suspect(self) -> None:
        """After a call without an answer: see whether the server answers anything, else take it for lost."""
        link = self._link
        if link and link.client and not link.is_suspected and not link.lost.is_set():
            link.is_suspected = True
            self._tasks.start_soon(self._probe, link, link.client)

    async def _probe(self, link: McpLink, client: Client) -> None:
        is_asking = True
        while is_asking:
            num_answers = link.num_answers
            with anyio.move_on_after(self._timeout_s) as scope:
                try:
                    with link.budget.call():
                        await client.list_tools()
                except (MCPError, ValueError, RuntimeError):
                    link.lost.set()
            # One that works through a queue of calls answers those first.
            is_asking = scope.cancelled_caught and link.num_answers > num_answers
        if scope.cancelled_caught:
            link.lost.set()
        link.is_suspected = False

    async def _hold(self, link: McpLink) -> None:
        """Connect, and stay until the connection is lost; a transport wants to be left by the task that entered it."""

        async def ignore(message: object) -> None:
            """What a server says unasked."""

        try:
            link.failure = f"no answer to the handshake within {self._timeout_s:g} s"
            link.scope.deadline = anyio.current_time() + self._timeout_s
            with link.scope, ExitStack() as handshake:
                handshake.enter_context(link.budget.call())
                transport = _counted(self._open_transport(link.words, link.budget), link)
                async with Client(transport, cache=None, message_handler=ignore, client_info=_WHO_WE_ARE) as client:
                    # The SDK would search with the patterns and follow the references of the server's schema here, in
                    # the event loop of all servers, for as long as the server likes.
                    setattr(client.session, "validate_tool_result", _take_any_result)  # noqa: B010
                    try:
                        link.tools = await _all_tools(client)
                        handshake.close()
                        link.scope.deadline = math.inf
                        link.client, link.failure = client, "the connection ended"
                        link.settled.set()
                        await link.lost.wait()
                    finally:
                        link.lost.set()  # before the client is left, which may take seconds
        except Exception as error:  # the boundary to the SDK and the server: whatever breaks ends this connection only
            link.failure = _innermost(error)
        finally:
            link.failure = link.budget.failure or link.failure
            link.lost.set()
            link.settled.set()


async def _take_any_result(name: str, result: CallToolResult) -> None:
    """In place of the SDK's check of a result against the schema that its server gave."""


async def _call_tool(client: Client, name: str, arguments: dict[str, Any], asked: _Asked) -> None:
    try:
        with asked.scope:
            asked.result = await client.call_tool(name, arguments)
    except (MCPError, ValueError, RuntimeError) as error:
        asked.error = error
    finally:
        asked.done.set()


async def _either(done: anyio.Event, lost: anyio.Event) -> None:
    """Wait for an answer, or until none can come any more."""

    async def end_when_lost() -> None:
        await lost.wait()
        with anyio.move_on_after(_LAST_ANSWER_S):
            await done.wait()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end_when_lost)
        await done.wait()
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def _counted(transport: AbstractAsyncContextManager[Streams], link: McpLink) -> AsyncIterator[Streams]:
    """The transport, its answers counted and its end noticed, which the SDK's client keeps to itself."""
    to_client, inbox = anyio.create_memory_object_stream[SessionMessage | Exception](0)

    async def forward(from_server: Any) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with to_client:
                async for item in from_server:
                    is_answer = isinstance(item, SessionMessage) and isinstance(item.message, _ANSWERS)
                    has_id = is_answer and type(item.message.id) is int  # the SDK would take "7" for 7
                    link.num_answers += has_id
                    await to_client.send(item if has_id or not is_answer else ValueError("an answer to no request"))
        link.lost.set()

    async with transport as (from_server, to_server), anyio.create_task_group() as tasks:
        tasks.start_soon(forward, from_server)
        yield inbox, to_server
        tasks.cancel_scope.cancel()


async def _all_tools(client: Client) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    num_bytes = 0
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        num_bytes += sum(len(tool.model_dump_json()) for tool in page.tools)
        if num_bytes > MAX_LINE_BYTES:
            raise ValueError(f"its list of tools has more than {MAX_LINE_BYTES} bytes")
        cursor = page.next_cursor
        if cursor is None:
            return tuple(tools)
    raise ValueError(f"its list of tools has more than {MAX_PAGES} pages")


def _innermost(error: BaseException) -> str:
    """The first cause in the groups that task groups make."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {str(error)[:_FAILURE_CHARS]}"
