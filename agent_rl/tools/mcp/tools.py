"""The tools of MCP servers (`tools.mcp`), offered like any other: calls go to the server, its text comes back.

One thread with one event loop serves all servers; calls come from any number of threads, and each waits for its turn
and then for its server's `timeout_s` at most. A server that is late, dead or breaks the protocol gives the model an
error to read. Not here: connecting, turns and deadlines (`connection.py`), how bytes travel (`transport.py`).
"""

import json
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from agent_rl.closing import Closing
from agent_rl.config import MCPServerConfig
from agent_rl.errors import ConfigError, SandboxError, UserError, nearest
from agent_rl.redacted import HIDDEN, Secrets, secrets_in, shown
from agent_rl.resources import install_command
from agent_rl.sandbox.sandbox import Sandbox
from agent_rl.tools.base import TOOL_NAME, BaseTool, ToolResult, shortened

try:
    import anyio
    from anyio.abc import TaskStatus
    from anyio.from_thread import BlockingPortal, start_blocking_portal
    from mcp import MCPError
    from mcp.types import CallToolResult, ContentBlock, TextContent, Tool

    from agent_rl.tools.mcp.connection import McpLink, OpenTransport, ServerConnection, ServerDownError
    from agent_rl.tools.mcp.over_http import over_http
    from agent_rl.tools.mcp.transport import JOBS, as_child, in_sandbox, read_program
except ImportError as error:
    raise ConfigError(
        f"tools.mcp needs the protocol's SDK ({error}); install it with {install_command('mcp')}"
    ) from error

MAX_RESULT_CHARS = 16_000
"""Of one answer that the model reads; the middle of a longer one is left out."""
MAX_ERROR_CHARS = 1000
MAX_TOOLS = 128
MAX_TOOL_BYTES = 65_536
"""Of the names, descriptions and schemas of one server: they stand in every prompt."""
for _name in ("mcp", "client"):  # else Python prints the SDK's warnings to stderr, into the progress display
    logging.getLogger(_name).addHandler(logging.NullHandler())


class MCPTool(BaseTool):
    """A tool of a server, with the server's own name, description and schema."""

    def __init__(self, tool: Tool, server: ServerConnection, portal: BlockingPortal, secrets: Secrets) -> None:
        self._secrets = secrets
        self.name, self.description, self.parameters = tool.name, tool.description or "", tool.input_schema
        self._server, self._portal = server, portal

    def __call__(self, /, **arguments: Any) -> ToolResult:
        try:
            future = self._portal.start_task_soon(self._server.call, self.name, arguments)
        except RuntimeError:
            return self._failed("the connection to the server was closed")
        try:
            result = future.result()
        except CancelledError:
            return self._failed("the connection to the server was closed")
        except (ServerDownError, MCPError, ValueError, RuntimeError) as error:
            return self._failed(str(error).partition("\n")[0])  # pydantic's go on with its types and addresses
        answer = read_result(result)
        return replace(answer, text=self._secrets.hide(answer.text))

    def _failed(self, why: str) -> ToolResult:
        why = self._secrets.hide(shortened(why, MAX_ERROR_CHARS))
        return ToolResult(text=f"error: {self.name}: {why}", ok=False)


def read_result(result: CallToolResult) -> ToolResult:
    """The text of an answer, other contents named in brackets; its structured content where there is no text."""
    parts = [_shown(block) for block in result.content]
    if result.structured_content is not None and not any(isinstance(block, TextContent) for block in result.content):
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    text = shortened("\n".join(parts), MAX_RESULT_CHARS)
    return ToolResult(text=f"error: {text}" if result.is_error else text, ok=not result.is_error)


def _shown(block: ContentBlock) -> str:
    if isinstance(block, TextContent):
        return block.text
    if block.type == "resource":
        return f"[resource {block.resource.uri}]"
    return f"[resource_link {block.uri}]" if block.type == "resource_link" else f"[{block.type} {block.mime_type}]"


class MCPConnections(Closing):
    """Connections to all servers of a configuration. A context manager; `tools` is there once it was entered."""

    def __init__(self, configs: Sequence[MCPServerConfig], *, sandbox: Sandbox | None = None) -> None:
        """`sandbox`, with the jobs of `transport.JOBS`, is one that others use too; None: one of its own.

        Raises ConfigError for a command that cannot run in the sandbox.
        """
        self.tools: tuple[BaseTool, ...] = ()
        self._configs, self._lent, self._sandbox = tuple(configs), sandbox, sandbox
        self._wheres = [f"tools.mcp[{i}] ({_label(config)})" for i, config in enumerate(configs)]
        self._programs = {
            where: read_program(config.command, where)
            for where, config in zip(self._wheres, configs, strict=True)
            if config.command and config.sandbox
        }
        self._held = ExitStack()

    def __enter__(self) -> "MCPConnections":
        """Connect to all servers at once.

        Raises UserError for a server that does not come up, and ConfigError for names of tools: offered twice, asked
        for in `include` and not there, or none that a tool may have.
        """
        with ExitStack() as held:
            if self._programs and self._lent is None:
                self._sandbox = held.enter_context(_open_sandbox())
            portal = held.enter_context(start_blocking_portal("asyncio", name="mcp"))
            end, (servers, stop) = portal.start_task(self._serve)
            held.callback(end.result)
            held.callback(portal.call, stop.set)
            attempts = [portal.start_task_soon(server.link) for server in servers]
            links = [attempt.result() for attempt in attempts]
            offered = [
                (where, MCPTool(tool, server, portal, _secrets_of(config)))
                for where, config, server, link in zip(self._wheres, self._configs, servers, links, strict=True)
                for tool in _included(config, _came_up(link, where, _secrets_of(config)), where)
            ]
            _refuse_twice(offered)
            self.tools = tuple(tool for _, tool in offered)
            self._held = held.pop_all()
        return self

    def close(self) -> None:
        """End all connections, and the servers that were started here. Running calls get an error to read."""
        self._held.close()

    async def _serve(self, *, task_status: TaskStatus[tuple[list[ServerConnection], anyio.Event]]) -> None:
        """Hold the connections until the event that is handed out is set."""
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            servers = [
                ServerConnection(self._transport(config, where), timeout_s=config.timeout_s, tasks=tasks)
                for config, where in zip(self._configs, self._wheres, strict=True)
            ]
            task_status.started((servers, stop))
            await stop.wait()
            tasks.cancel_scope.cancel()

    def _transport(self, config: MCPServerConfig, where: str) -> OpenTransport:
        if config.url:
            return lambda words, budget: over_http(config.url, budget=budget)
        if not config.sandbox:
            return lambda words, budget: as_child(config.command, words=words, budget=budget)
        return lambda words, budget: in_sandbox(self._sandbox, self._programs[where], words=words, budget=budget)


def _open_sandbox() -> Sandbox:
    try:
        return Sandbox.open(python=sys.executable, jobs=JOBS)
    except SandboxError as error:
        raise UserError(
            f"tools.mcp: the sandbox for servers cannot be opened: {error}; set sandbox: false for those you trust"
        ) from error


def _label(config: MCPServerConfig) -> str:
    """Without what may be secret, and without further arguments."""
    return shown(config.command[:2]) if config.command else shown(config.url or "").removesuffix(f"?{HIDDEN}")


def _secrets_of(config: MCPServerConfig) -> Secrets:
    return Secrets([*secrets_in(config.command), *secrets_in(config.url or "")])


def _came_up(link: McpLink, where: str, secrets: Secrets) -> tuple[Tool, ...]:
    if link.client is None:
        words = f"; its last words: {secrets.hide(link.words.last_line)!r}" if link.words.last_line else ""
        raise UserError(
            f"{where} did not come up: {secrets.hide(link.failure)}{words}; start it by hand to see whether it runs"
        )
    return link.tools


def _included(config: MCPServerConfig, tools: Sequence[Tool], where: str) -> list[Tool]:
    names = [tool.name for tool in tools]
    for name in config.include:
        if name not in names:
            hint = nearest(name, names) or f"; it has {', '.join(names) or 'none':.500}"
            raise ConfigError(f"{where}: include names {name!r}: the server has no such tool{hint}")
    included = [tool for tool in tools if not config.include or tool.name in config.include]
    num_bytes = sum(len(tool.model_dump_json(by_alias=True, exclude_none=True)) for tool in included)
    if len(included) > MAX_TOOLS or num_bytes > MAX_TOOL_BYTES:
        raise ConfigError(
            f"{where}: the server offers {len(included)} tools of {num_bytes} bytes, all of which would stand in every "
            f"prompt; expected at most {MAX_TOOLS} tools of {MAX_TOOL_BYTES} bytes; name those you need in include"
        )
    for tool in included:
        if not TOOL_NAME.fullmatch(tool.name):
            raise ConfigError(
                f"{where}: the server has a tool named {tool.name!r:.80}; expected letters, digits, _ and -, at most "
                "64 in all; leave it out by naming the others in include"
            )
    return included


def _refuse_twice(offered: Sequence[tuple[str, MCPTool]]) -> None:
    counts = Counter(tool.name for _, tool in offered)
    for name, count in counts.items():
        if count > 1:
            where = " and ".join(where for where, tool in offered if tool.name == name)
            raise ConfigError(
                f"the tool name {name!r} is offered twice, by {where}; use include to leave one of them out"
            )
