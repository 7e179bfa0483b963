"""Mocks of the world around a candidate's agent: tools, MCP servers, the LLM. Not here: the network (`exchanges.py`).

Loaded into the toolkit's interpreter before the forks, so that a candidate finds them there. They answer what the host
configures for one run. They know no right answer of a tool; a workflow must pass on what a mock answers. The scripted
LLM itself is in `react.py`, because it needs nvidia-nat-langchain.
"""

import asyncio
import contextlib
import io
import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import mcp.client.stdio
from nat.builder import workflow_builder
from pydantic import BaseModel

from agent_rl.envs.nat.judge.worker import confined, exchanges

GRACE_S = 0.25
"""How long a forked MCP server may take to end after its input was closed."""
# ---------------------------------------------------------------- tools

_swapped: dict[str, str] = {}
_leads: list[tuple[str, dict[str, Any]]] = []


def set_swapped(answers: dict[str, str]) -> None:
    """Tools (by instance) and functions of groups (`INSTANCE__NAME`) that may give these answers in builds from now on.

    They are built as the project says, and only what they answer is replaced: a workflow cannot tell them from its own.
    """
    _swapped.clear()
    _swapped.update(answers)


def forget_leads() -> None:
    """For a new build."""
    _leads.clear()


def add_leads(calls: list[tuple[str, dict[str, Any]]]) -> None:
    """The calls that the next question leads to: (tool, inputs), of which no other inputs matter. From now on they are
    answered otherwise, and they alone: a workflow that asks a tool something of its own choice gets what the tool says.
    """
    _leads.extend(calls)


def _is_led_to(name: str, inputs: dict[str, Any]) -> bool:
    return any(
        tool == name and all(key in inputs and _is_same(inputs[key], value) for key, value in wanted.items())
        for tool, wanted in _leads
    )


def _is_same(given: Any, wanted: Any) -> bool:
    are_texts = isinstance(given, str) + isinstance(wanted, str)
    return bool(str(given) == str(wanted) if are_texts == 1 else given == wanted)


def _inputs_of(function: Any, value: Any) -> dict[str, Any]:
    """Argument name -> value, of what the toolkit hands to a function."""
    if isinstance(value, BaseModel):
        return dict(value)
    return value if isinstance(value, dict) else dict.fromkeys(list(function.input_schema.model_fields)[:1], value)


def _stand_in(function: Any, name: str) -> None:
    answer, real, real_stream = _swapped[name], function._ainvoke, function._astream

    async def invoke(value: Any) -> Any:
        return answer if _is_led_to(name, _inputs_of(function, value)) else await real(value)

    async def stream(value: Any) -> AsyncGenerator[Any, None]:
        if _is_led_to(name, _inputs_of(function, value)):
            yield answer
            return
        async for each in real_stream(value):
            yield each

    function._ainvoke, function._astream = invoke, stream


_build_function = workflow_builder._build_function_impl
_build_group = workflow_builder._build_function_group_impl


async def _built_function(*, name: str, **how: Any) -> Any:
    built = await _build_function(name=name, **how)
    if name in _swapped:
        _stand_in(built.instance, name)
    return built


async def _built_group(*, name: str, **how: Any) -> Any:
    built = await _build_group(name=name, **how)
    for each, function in built.instance._functions.items():
        if f"{name}__{each}" in _swapped:
            _stand_in(function, f"{name}__{each}")
    return built


workflow_builder._build_function_impl = _built_function  # type: ignore[assignment]
workflow_builder._build_function_group_impl = _built_group  # type: ignore[assignment]


# ---------------------------------------------------------------- the LLM

script: list[str] = []
"""The scripted LLM's next replies; when it is empty the LLM repeats the last message it got."""


def set_script(tool: str, inputs: dict[str, Any]) -> None:
    """Make the LLM call `tool` once and then answer with what came back."""
    script[:] = [f"Thought: I need {tool}.\nAction: {tool}\nAction Input: {json.dumps(inputs)}\n"]


# ---------------------------------------------------------------- MCP servers

_served_instead: dict[str, str] = {}


def set_served(answers: dict[str, str]) -> None:
    """Tools whose answers to what a question leads to are replaced on the way from MCP servers."""
    _served_instead.clear()
    _served_instead.update(answers)


class _Answers:
    """Replaces the answers of tools in what a server sends, which runs as it is."""

    def __init__(self) -> None:
        self._calls: dict[Any, str] = {}
        self._rest = b""

    def note(self, data: bytes) -> None:
        """What the client sends: one message or more, each whole."""
        for line in data.splitlines():
            with contextlib.suppress(ValueError, AttributeError, KeyError, TypeError):
                message = json.loads(line)
                params = message.get("params") or {}
                if message.get("method") == "tools/call" and _is_led_to(params["name"], params.get("arguments") or {}):
                    self._calls[message["id"]] = str(params["name"])

    def replaced(self, data: bytes) -> bytes:
        """Whole lines of what the server has sent so far, with other answers."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return b"".join(self._line(line) + b"\n" for line in lines)

    def _line(self, line: bytes) -> bytes:
        with contextlib.suppress(ValueError, AttributeError, TypeError, RecursionError):
            message = json.loads(line)
            name = self._calls.get(message.get("id")) if "method" not in message else None
            if name in _served_instead and "result" in message:
                text = _served_instead[name]
                content = [{"type": "text", "text": text}]
                message["result"] = {"content": content, "structuredContent": {"result": text}, "isError": False}
                return json.dumps(message).encode()
        return line


_roots: list[str] = []


def let_servers_import(roots: list[str]) -> None:
    """From these folders, at the end, so that no project file can shadow an installed module."""
    _roots[:] = roots


def serve_file(path: str) -> None:
    """Be `python PATH` until it ends; what ended it is the last thing on stderr."""
    sys.argv = [path]
    sys.path += [*_roots, os.path.dirname(path)]
    try:
        runpy.run_path(path, run_name="__main__")
        sys.stdout.flush()
        os.write(2, b"the file ran to its end without serving\n")
    except BaseException:  # as the interpreter would: print it and end
        os.write(2, traceback.format_exc(limit=-3).encode())


def line_buffered_stdout() -> io.TextIOWrapper:
    """So that a stray print shows between the messages and not after the last one."""
    return io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), line_buffering=True)


class ForkedServer:
    """A process of the shape that the MCP client wants, forked from this warm one instead of started cold."""

    def __init__(self, path: str) -> None:
        (child_in, self._to), (self._from, child_out) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.dup2(child_in, 0)
            os.dup2(child_out, 1)
            kept = exchanges.keeper_descriptor() or 3
            os.closerange(3, kept)
            os.closerange(kept + 1, 256)
            sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
            sys.stdout = line_buffered_stdout()
            try:
                confined.let_go()  # a server is a program of its own, as `python PATH` would be
                serve_file(path)
            finally:
                os._exit(0)
        os.close(child_in)
        os.close(child_out)
        for fd in (self._to, self._from):  # the child can open both once more: take back, or fill up
            os.set_blocking(fd, False)
        self.stdin = self.stdout = self
        self._answers = _Answers()
        self.returncode: int | None = None

    async def send(self, data: bytes) -> None:
        self._answers.note(data)
        while data:
            await anyio.wait_writable(self._to)
            try:
                data = data[os.write(self._to, data) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise anyio.BrokenResourceError from None

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while True:
            await anyio.wait_readable(self._from)
            try:
                data = os.read(self._from, max_bytes)
            except BlockingIOError:
                continue
            if not data:
                raise anyio.EndOfStream
            if lines := self._answers.replaced(data):
                return lines

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
