"""Mocks of the world around a candidate's agent: tools, the network, MCP servers, the LLM.

Loaded into the toolkit's interpreter before the forks, so that a candidate finds them there. They answer what the host
configures for one run. They know no right answer of a tool; a workflow must pass on what a mock answers. The scripted
LLM itself is in `react.py`, because it needs nvidia-nat-langchain.
"""

import asyncio
import inspect
import io
import json
import os
import runpy
import signal
import ssl
import sys
import time
import traceback
from collections.abc import AsyncGenerator, Callable
from typing import Any

import anyio
import httpx
import mcp.client.stdio
import mcp.server.fastmcp
from nat.plugin_api import (
    Builder,
    FunctionBaseConfig,
    FunctionGroup,
    FunctionGroupBaseConfig,
    FunctionInfo,
    register_function,
    register_function_group,
)

GRACE_S = 0.25
"""How long a forked MCP server may take to end after its input was closed."""
_PYTHON_TYPES = {"float": float, "int": int, "str": str}


def mock_answer(answer: str, inputs: dict[str, str]) -> Callable[..., Any]:
    """A coroutine function with these inputs (name -> type) that always gives `answer`."""

    async def run(*_: Any, **__: Any) -> str:
        return answer

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=_PYTHON_TYPES[kind])
        for name, kind in inputs.items()
    ]
    run.__signature__ = inspect.Signature(parameters, return_annotation=str)  # type: ignore[attr-defined]
    run.__annotations__ = {**{name: _PYTHON_TYPES[kind] for name, kind in inputs.items()}, "return": str}
    return run


# ---------------------------------------------------------------- tools


class MockConfig(FunctionBaseConfig, name="checker_stand_in"):
    answer: str
    inputs: dict[str, str]


@register_function(config_type=MockConfig)
async def _mock_function(config: MockConfig, _builder: Builder) -> AsyncGenerator[FunctionInfo, None]:
    yield FunctionInfo.from_fn(mock_answer(config.answer, config.inputs), description="A tool.")


class MockGroupConfig(FunctionGroupBaseConfig, name="checker_stand_in_group"):
    functions: dict[str, dict[str, Any]]


@register_function_group(config_type=MockGroupConfig)
async def _mock_group(config: MockGroupConfig, _builder: Builder) -> AsyncGenerator[FunctionGroup, None]:
    group = FunctionGroup(config=config)
    for name, each in config.functions.items():
        group.add_function(name, mock_answer(each["answer"], each["inputs"]), description="A tool.")
    yield group


def swap(raw: dict[str, Any], swapped: dict[str, dict[str, Any]]) -> None:
    """Replace tools (by instance) and functions of groups (`INSTANCE__NAME`) in a configuration by mocks."""
    groups: dict[str, dict[str, Any]] = {}
    for name, each in swapped.items():
        instance, is_grouped, function = name.partition("__")
        if is_grouped:
            groups.setdefault(instance, {})[function] = each
        else:
            raw["functions"][name] = {"_type": "checker_stand_in", **each}
    for instance, functions in groups.items():
        raw["function_groups"][instance] = {
            "_type": "checker_stand_in_group",
            "functions": functions,
            "include": list(functions),
        }


# ---------------------------------------------------------------- the network

_exchanges: dict[str, dict[str, Any]] = {}
UNKNOWN_REQUEST = 599


def set_exchanges(table: dict[str, dict[str, Any]]) -> None:
    """What `METHOD URL` is answered with from now on in this process."""
    _exchanges.clear()
    _exchanges.update(table)


def _respond(request: httpx.Request) -> httpx.Response:
    known = _exchanges.get(f"{request.method} {request.url}")
    if known is None or any(request.headers.get(name) != text for name, text in known["headers"].items()):
        return httpx.Response(UNKNOWN_REQUEST, text="unknown request", request=request)
    if known["failure"] == "timeout":
        raise httpx.ReadTimeout("timed out", request=request)
    if known["failure"] == "connection":
        raise httpx.ConnectError("connection refused", request=request)
    return httpx.Response(known["status"], text=known["body"], request=request)


async def _handle_async(self: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
    return _respond(request)


def _handle(self: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
    return _respond(request)


_SSL_CONTEXT = ssl.create_default_context()
# Every new client would read the certificates again, which takes longer than all the rest of a call.
httpx._transports.default.create_ssl_context = lambda *_, **__: _SSL_CONTEXT  # type: ignore[attr-defined]
httpx.AsyncHTTPTransport.handle_async_request = _handle_async  # type: ignore[method-assign]
httpx.HTTPTransport.handle_request = _handle  # type: ignore[method-assign]


# ---------------------------------------------------------------- the LLM

script: list[str] = []
"""The scripted LLM's next replies; when it is empty the LLM repeats the last message it got."""


def set_script(tool: str, inputs: dict[str, Any]) -> None:
    """Make the LLM call `tool` once and then answer with what came back."""
    script[:] = [f"Thought: I need {tool}.\nAction: {tool}\nAction Input: {json.dumps(inputs)}\n"]


# ---------------------------------------------------------------- MCP servers

_served_instead: dict[str, dict[str, Any]] = {}


def set_served(tools: dict[str, dict[str, Any]]) -> None:
    """Tools that MCP servers started from now on offer instead of running their file; none: they run it."""
    _served_instead.clear()
    _served_instead.update(tools)


def serve_file(path: str) -> None:
    """Be `python PATH` until it ends; what ended it is the last thing on stderr."""
    sys.argv = [path]
    sys.path.append(os.path.dirname(path))
    try:
        runpy.run_path(path, run_name="__main__")
        sys.stdout.flush()
        os.write(2, b"the file ran to its end without serving\n")
    except BaseException:  # as the interpreter would: print it and end
        os.write(2, traceback.format_exc(limit=-3).encode())


def line_buffered_stdout() -> io.TextIOWrapper:
    """So that a stray print shows between the messages and not after the last one."""
    return io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), line_buffering=True)


def _serve_mocks() -> None:
    server = mcp.server.fastmcp.FastMCP("tools")
    for name, each in _served_instead.items():
        server.add_tool(mock_answer(each["answer"], each["inputs"]), name=name, description="A tool.")
    server.run()


class ForkedServer:
    """A process of the shape that the MCP client wants, forked from this warm one instead of started cold."""

    def __init__(self, path: str) -> None:
        (child_in, self._to), (self._from, child_out) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.dup2(child_in, 0)
            os.dup2(child_out, 1)
            os.closerange(3, 256)
            sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
            sys.stdout = line_buffered_stdout()
            try:
                _serve_mocks() if _served_instead else serve_file(path)
            finally:
                os._exit(0)
        os.close(child_in)
        os.close(child_out)
        os.set_blocking(self._to, False)
        self.stdin = self.stdout = self
        self.returncode: int | None = None

    async def send(self, data: bytes) -> None:
        while data:
            await anyio.wait_writable(self._to)
            try:
                data = data[os.write(self._to, data) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise anyio.BrokenResourceError from None

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.wait_readable(self._from)
        data = os.read(self._from, max_bytes)
        if not data:
            raise anyio.EndOfStream
        return data

    async def aclose(self) -> None:
        """Close the server's input; MCP servers end on it."""
        if self._to >= 0:
            os.close(self._to)
            self._to = -1

    async def wait(self) -> int:
        """Until it has ended; by then it was killed if need be."""
        deadline = time.monotonic() + GRACE_S
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = status
            elif time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
            await asyncio.sleep(0.002)
        return self.returncode

    async def __aenter__(self) -> "ForkedServer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
        await self.wait()
        os.close(self._from)


async def _fork_server(
    command: str, args: list[str], env: Any = None, errlog: Any = None, cwd: Any = None
) -> ForkedServer:
    """In place of starting `command`: only `python FILE.py` with a file of the project is allowed."""
    path = os.path.realpath(os.path.join(os.getcwd(), args[0])) if len(args) == 1 else ""
    inside = path.startswith(os.path.realpath(os.getcwd()) + os.sep)
    if command != "python" or not inside or not path.endswith(".py"):
        raise OSError(f"{[command, *args]} may not be started; only `python FILE.py` with a file of the project")
    return ForkedServer(path)


mcp.client.stdio._create_platform_compatible_process = _fork_server
