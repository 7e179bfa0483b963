"""Connects to MCP servers over stdio: child processes, and servers in the sandbox.

A transport is what the SDK's client takes: an async context manager that gives a stream of messages from the server and
one to it, and ends the server on leaving. Not the SDK's own for a child, which stores a line of any length. A server's
stderr reaches no terminal: the last of it goes into error sentences, the rest is dropped. Not here: servers over HTTP
(`over_http.py`), how much a server may write (`budget.py`), and when to connect again (`connection.py`).
"""

import os
import re
import signal
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp.types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter
from pydantic import ValidationError

from agent_rl.errors import ConfigError
from agent_rl.redacted import shown
from agent_rl.sandbox.guest.bounded_json import UnreadableJSON, check_size, read_json
from agent_rl.sandbox.limits import Limits, Status
from agent_rl.sandbox.sandbox import Sandbox
from agent_rl.sandbox.session import SessionEnded
from agent_rl.sandbox.workspace import MAX_FILES, MAX_TOTAL_BYTES, WorkspaceError, validate_files
from agent_rl.tools.mcp.budget import Budget, FloodError, LastWords

MAX_LINE_BYTES = 8 * 1024 * 1024
"""Of one line, and of the body of one answer over HTTP."""
MAX_LINE_VALUES = 50_000
"""JSON values of one line: as many take less than 0.1 s and 50 MB."""
LIMITS = Limits(wall_s=24 * 3600.0, cpu_s=4 * 3600, processes=64, output_kb=4, output_hard_kb=MAX_LINE_BYTES // 1024)
"""Of one server in the sandbox, for its whole life; after it the next call starts a new one. `output_hard_kb` holds for
all it writes to stderr, and for one line of its stdout."""
JOBS = ("agent_rl.tools.mcp.jobs",)
_WAIT_S = 0.25
"""After so long a thread that waits for a line looks whether it is still needed."""
_WRITE_S = 5.0
"""A server that reads no input for so long counts as dead."""
_GRACE_S = 2.0
"""Grace period after the input was closed, and again after SIGTERM."""
_PAUSE_S = 0.02
"""After a piece of stderr, which holds 64 KB at most."""
_REST_S = 0.1
"""For the last of its stderr after the end; what it started may hold the pipe open."""
_LIMIT_REACHED = (Status.TIMEOUT, Status.MEMORY, Status.PROCESS_LIMIT, Status.OUTPUT_LIMIT)
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_RUN_MODULE = "import runpy, sys\ndel sys.argv[0]\nrunpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"
_HEAD_BYTES = 200
_ANSWERED = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"[^"]*"\s*,\s*)?"id"\s*:\s*"?(\d{1,15})"?\s*,\s*"(?:result|error)"'
)
TOO_LONG = f"the server's answer is longer than {MAX_LINE_BYTES} bytes"

Streams = tuple[Any, Any]
"""From the server, to the server."""

# ---------------------------------------------------------------- lines


async def read_messages(source: ByteReceiveStream, budget: Budget, send: Callable[[Any], Awaitable[None]]) -> None:
    """Send the messages in a stream of bytes until it ends. A line that is too long is one as soon as that is known.

    FloodError beyond the budget.
    """
    lines, is_skipping = BufferedByteReceiveStream(source), False
    with suppress(anyio.IncompleteRead, anyio.EndOfStream):
        while True:
            try:
                line = await lines.receive_until(b"\n", MAX_LINE_BYTES + 1)
                is_whole = True
            except anyio.DelimiterNotFound:
                line = await lines.receive_exactly(len(lines.buffer))
                is_whole = False
            await budget.take(len(line), not is_skipping)
            if not is_skipping:
                await send(message_of(line))
            is_skipping = not is_whole


def message_of(line: bytes) -> SessionMessage | Exception:
    """The message in a line, the error answer to the call that it seems to answer, or why it is neither."""
    if len(line) > MAX_LINE_BYTES:
        return _no_message(line[:_HEAD_BYTES], ValueError(TOO_LONG))
    try:
        check_size(line, max_values=MAX_LINE_VALUES)
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return _no_message(line, error)


def _no_message(line: bytes, error: ValueError) -> SessionMessage | Exception:
    request_id = _answered_by(line)
    if request_id is None:
        return error
    why = str(error) if not isinstance(error, ValidationError) else _summary(error)
    data = ErrorData(code=PARSE_ERROR, message=why if why == TOO_LONG else f"the server's answer is no message: {why}")
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=data))


def _summary(error: ValidationError) -> str:
    """The first line of its text; for the whole of it pydantic writes out the line that it could not read."""
    count = error.error_count()
    return f"{count} validation error{'s' if count > 1 else ''} for {error.title}"


def _answered_by(line: bytes) -> int | None:
    """The id of the request that a line answers, as far as it shows; an `id` within a result counts for nothing."""
    if match := _ANSWERED.match(line):
        return int(match[1])
    try:
        # Python's reader would take a line with such bytes for UTF-16, whose values were not counted.
        value = None if b"\0" in line else read_json(line, max_values=MAX_LINE_VALUES)
    except UnreadableJSON:
        return None
    request_id = value.get("id") if isinstance(value, dict) and {"result", "error"} & value.keys() else None
    return request_id if type(request_id) is int else None


@asynccontextmanager
async def _streams(
    read: Callable[[Callable[[Any], Awaitable[None]]], Awaitable[None]], write: Callable[[str], Awaitable[None]]
) -> AsyncIterator[Streams]:
    """The streams of a server: `read` sends its messages until its output ends, `write` takes the lines for it.

    The one from the server ends with its output, and when the server takes no more lines.
    """
    to_client, inbox = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outbox, from_client = anyio.create_memory_object_stream[SessionMessage](0)

    async def read_lines() -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, FloodError):
            async with to_client:
                await read(to_client.send)

    async def write_lines() -> None:
        async with from_client:
            async for message in from_client:
                try:
                    await write(message.message.model_dump_json(by_alias=True, exclude_unset=True))
                except (OSError, anyio.BrokenResourceError, SessionEnded):
                    to_client.close()
                    return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read_lines)
        tasks.start_soon(write_lines)
        yield inbox, outbox
        tasks.cancel_scope.cancel()


# ---------------------------------------------------------------- child processes


@asynccontextmanager
async def as_child(command: tuple[str, ...], *, words: LastWords, budget: Budget) -> AsyncIterator[Streams]:
    """A server in a process group of its own. Raises OSError when the program cannot be started."""
    process = await anyio.open_process(command, env=get_default_environment(), start_new_session=True)

    async def write(line: str) -> None:
        with anyio.fail_after(_WRITE_S):
            await process.stdin.send(f"{line}\n".encode())

    try:
        async with (
            anyio.create_task_group() as tasks,
            _streams(partial(read_messages, process.stdout, budget), write) as streams,
        ):
            tasks.start_soon(_empty, process.stderr, words)
            yield streams
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process, words)


async def _empty(pipe: ByteReceiveStream, words: LastWords) -> None:
    """Read to the end, else the server would wait when the pipe is full; one that never stops waits all the same."""
    async for data in pipe:
        words.add(data.decode("utf-8", "replace"))
        await anyio.sleep(_PAUSE_S)


async def _end(process: Process, words: LastWords) -> None:
    """Close the server's input, and end it and what it started when it is still there after a while."""
    await process.stdin.aclose()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_empty, process.stdout, LastWords())
        tasks.start_soon(_empty, process.stderr, words)
        for ending in (None, signal.SIGTERM, signal.SIGKILL):
            if ending is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, ending)
            with anyio.move_on_after(_GRACE_S):
                await process.wait()
                break
        tasks.cancel_scope.cancel()
    with anyio.move_on_after(_REST_S):
        await _empty(process.stderr, words)
    await process.aclose()


# ---------------------------------------------------------------- in the sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What runs in the sandbox: `Program(path="server.py", files={"server.py": "..."}, argv=("--fast",))`."""

    path: str
    files: Mapping[str, str | bytes]
    argv: tuple[str, ...] = ()


def read_program(command: tuple[str, ...], where: str) -> Program:
    """What `python FILE ARGUMENTS` or `python -m MODULE ARGUMENTS` runs, with the files beside FILE.

    Hidden files and `__pycache__` are left out. Raises ConfigError, opened by `where`, for another command, a missing
    file, and a folder with more or larger files than the sandbox takes.
    """
    program, *arguments = command
    if not _PYTHON.fullmatch(Path(program).name) or not arguments:
        raise ConfigError(
            f"{where}: {shown(command)!r:.500} cannot run in the sandbox, which takes `python FILE.py` and "
            "`python -m MODULE`; use one of them, or set sandbox: false"
        )
    if arguments[0] == "-m":
        return Program(path="run_module.py", files={"run_module.py": _RUN_MODULE}, argv=tuple(arguments[1:]))
    script, named = Path(arguments[0]), shown(arguments[:1])
    if not script.is_file():
        raise ConfigError(f"{where}: there is no file {named!r:.300} in {Path.cwd()}; give the path of the server")
    try:
        files = _files_beside(script)
    except (OSError, WorkspaceError) as error:
        raise ConfigError(
            f"{where}: the folder of {named!r:.300} does not fit into the sandbox: {error}; "
            "give the server a folder of its own, or set sandbox: false"
        ) from error
    return Program(path=script.name, files=files, argv=tuple(arguments[1:]))


def _files_beside(script: Path) -> Mapping[str, str | bytes]:
    files: dict[str, str | bytes] = {}
    total = 0
    for folder, folders, names in os.walk(script.parent):
        folders[:] = sorted(name for name in folders if _is_wanted(name))
        for path in (Path(folder, name) for name in sorted(names) if _is_wanted(name)):
            about = path.stat()
            if not stat.S_ISREG(about.st_mode) or (path != script and not _is_below(path, script.parent)):
                raise WorkspaceError(f"{path.name!r} is no file of that folder")
            total += about.st_size
            if len(files) == MAX_FILES or total > MAX_TOTAL_BYTES:
                raise WorkspaceError(f"it holds more than {MAX_FILES} files or {MAX_TOTAL_BYTES} bytes")
            files[path.relative_to(script.parent).as_posix()] = path.read_bytes()
    return validate_files(files)


def _is_below(path: Path, folder: Path) -> bool:
    """False for a link to something elsewhere, which a server in the sandbox must not read."""
    return path.resolve().is_relative_to(folder.resolve())


def _is_wanted(name: str) -> bool:
    return not name.startswith(".") and name != "__pycache__"


@asynccontextmanager
async def in_sandbox(sandbox: Sandbox, program: Program, *, words: LastWords, budget: Budget) -> AsyncIterator[Streams]:
    """A server that runs in `sandbox`. Raises SandboxError."""
    start = partial(sandbox.session, program.path, program.files, argv=program.argv, limits=LIMITS)
    session = await anyio.to_thread.run_sync(start)
    reads, writes = anyio.CapacityLimiter(1), anyio.CapacityLimiter(1)

    async def read(send: Callable[[Any], Awaitable[None]]) -> None:
        while True:
            try:
                line = await anyio.to_thread.run_sync(session.read_line, _WAIT_S, limiter=reads)
            except SessionEnded as end:
                if end.reason != "silent":
                    return
            else:
                data = line.encode()
                await budget.take(len(data))
                await send(message_of(data))

    async def write(line: str) -> None:
        await anyio.to_thread.run_sync(session.write_line, line, _WRITE_S, limiter=writes)

    try:
        async with _streams(read, write) as streams:
            yield streams
    finally:
        with anyio.CancelScope(shield=True):
            end = await anyio.to_thread.run_sync(session.close)
        words.add(f"{end.stderr}\n{end.error}" if end.status in _LIMIT_REACHED else end.stderr)
