"""How messages get to a server of `tools.mcp` and back: into the sandbox and over HTTP; to a child: `mcp_child.py`.

A transport is what the SDK's client takes: an async context manager that gives a stream of messages from the server and
one to it, and ends the server on leaving. A server's stderr reaches no terminal: the last of it is kept for error
sentences, the rest is dropped. Not here: lines (`mcp_lines.py`), the protocol, and when to connect again
(`mcp_connection.py`).
"""

import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.message import SessionMessage

from agent_rl.errors import ConfigError
from agent_rl.sandbox.limits import Limits, Status
from agent_rl.sandbox.sandbox import Sandbox
from agent_rl.sandbox.session import Session, SessionEnded
from agent_rl.sandbox.workspace import MAX_FILES, MAX_TOTAL_BYTES, WorkspaceError, validate_files
from agent_rl.tools.mcp.lines import MAX_LINE_BYTES, TOO_LONG, LastWords, Streams, message_of

LIMITS = Limits(wall_s=24 * 3600.0, cpu_s=4 * 3600, processes=64, output_kb=4, output_hard_kb=MAX_LINE_BYTES // 1024)
"""Of one server in the sandbox, for its whole life; after it the next call starts a new one. `output_hard_kb` holds for
all it writes to stderr, and for one line of its stdout."""
JOBS = ("agent_rl.tools.mcp.jobs",)
_LOOK_S = 0.25
"""A thread that waits for a line looks so often whether it is still wanted."""
_WRITE_S = 5.0
"""A server that reads no input for so long is taken for dead."""
_LIMIT_REACHED = (Status.TIMEOUT, Status.MEMORY, Status.PROCESS_LIMIT, Status.OUTPUT_LIMIT)
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_RUN_MODULE = "import runpy, sys\ndel sys.argv[0]\nrunpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"

# ---------------------------------------------------------------- in the sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What runs in the sandbox: `Program(path="server.py", files={"server.py": "..."}, argv=("--fast",))`."""

    path: str
    files: Mapping[str, str | bytes]
    argv: tuple[str, ...] = field(default=())


def read_program(command: tuple[str, ...], where: str) -> Program:
    """What `python FILE ARGUMENTS` or `python -m MODULE ARGUMENTS` runs, with the files beside FILE.

    Hidden files and `__pycache__` are left out. Raises ConfigError, opened by `where`, for another command, a missing
    file, and a folder with more or larger files than the sandbox takes.
    """
    program, *arguments = command
    if not _PYTHON.fullmatch(Path(program).name) or not arguments:
        raise ConfigError(
            f"{where}: {' '.join(command)!r} cannot run in the sandbox, which takes `python FILE.py` and "
            "`python -m MODULE`; use one of them, or set sandbox: false"
        )
    if arguments[0] == "-m":
        return Program(path="run_module.py", files={"run_module.py": _RUN_MODULE}, argv=tuple(arguments[1:]))
    script = Path(arguments[0])
    if not script.is_file():
        raise ConfigError(f"{where}: there is no file {arguments[0]!r} in {Path.cwd()}; give the path of the server")
    try:
        files = _files_beside(script)
    except (OSError, WorkspaceError) as error:
        raise ConfigError(
            f"{where}: the folder of {arguments[0]!r} does not fit into the sandbox: {error}; "
            "give the server a folder of its own, or set sandbox: false"
        ) from error
    return Program(path=script.name, files=files, argv=tuple(arguments[1:]))


def _files_beside(script: Path) -> Mapping[str, str | bytes]:
    files: dict[str, str | bytes] = {}
    total = 0
    for folder, folders, names in os.walk(script.parent):
        folders[:] = sorted(name for name in folders if _is_wanted(name))
        for path in (Path(folder, name) for name in sorted(names) if _is_wanted(name)):
            total += path.stat().st_size
            if len(files) == MAX_FILES or total > MAX_TOTAL_BYTES:
                raise WorkspaceError(f"it holds more than {MAX_FILES} files or {MAX_TOTAL_BYTES} bytes")
            files[path.relative_to(script.parent).as_posix()] = path.read_bytes()
    return validate_files(files)


def _is_wanted(name: str) -> bool:
    return not name.startswith(".") and name != "__pycache__"


@asynccontextmanager
async def in_sandbox(
    sandbox: Sandbox, program: Program, *, words: LastWords, lost: anyio.Event
) -> AsyncIterator[Streams]:
    """A server that runs in `sandbox`; `lost` is set when it has ended. Raises SandboxError."""
    start = partial(sandbox.session, program.path, program.files, argv=program.argv, limits=LIMITS)
    session = await anyio.to_thread.run_sync(start)
    to_client, inbox = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outbox, from_client = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read_lines, session, to_client, lost)
            tasks.start_soon(_write_lines, session, from_client, lost)
            yield inbox, outbox
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            end = await anyio.to_thread.run_sync(session.close)
        words.add(f"{end.stderr}\n{end.error}" if end.status in _LIMIT_REACHED else end.stderr)


async def _read_lines(session: Session, to_client: Any, lost: anyio.Event) -> None:
    """A line that is no message goes to the client as the exception that says so."""
    one_thread = anyio.CapacityLimiter(1)
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async with to_client:
            while True:
                try:
                    line = await anyio.to_thread.run_sync(session.read_line, _LOOK_S, limiter=one_thread)
                except SessionEnded as end:
                    if end.reason != "silent":
                        break
                else:
                    await to_client.send(message_of(line.encode()))
    lost.set()


async def _write_lines(session: Session, from_client: Any, lost: anyio.Event) -> None:
    one_thread = anyio.CapacityLimiter(1)
    async with from_client:
        async for message in from_client:
            line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                await anyio.to_thread.run_sync(session.write_line, line, _WRITE_S, limiter=one_thread)
            except SessionEnded:
                lost.set()
                return


# ---------------------------------------------------------------- over HTTP


@asynccontextmanager
async def over_http(url: str) -> AsyncIterator[Streams]:
    """A server that speaks streamable HTTP. An answer over `MAX_LINE_BYTES`, or packed, ends its call."""
    async with create_mcp_http_client(headers={"accept-encoding": "identity"}) as client:
        client.event_hooks["response"].append(_bound)
        transport = streamable_http_client(url, http_client=client, max_sse_event_size=MAX_LINE_BYTES)
        async with transport as streams:
            yield streams


async def _bound(response: httpx2.Response) -> None:
    """Events are bounded one by one, by the SDK."""
    is_packed = response.headers.get("content-encoding", "identity") != "identity"
    if is_packed or not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        response.stream = _BoundBody(response.stream, is_packed=is_packed)


class _BoundBody(httpx2.AsyncByteStream):
    """A body that fails, as a stream may, when it is too long or packed: unpacked it might be of any length."""

    def __init__(self, body: Any, *, is_packed: bool) -> None:
        self._body, self._is_packed = body, is_packed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._is_packed:
            raise httpx2.StreamError("the server packed its answer although it was asked not to")
        num_left = MAX_LINE_BYTES
        async for data in self._body:
            num_left -= len(data)
            if num_left < 0:
                raise httpx2.StreamError(TOO_LONG)
            yield data

    async def aclose(self) -> None:
        await self._body.aclose()
