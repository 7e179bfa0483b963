"""How messages get to a server of `tools.mcp` and back: into the sandbox, to a child process, over HTTP.

A transport is what the SDK's client takes: an async context manager that gives a stream of messages from the server and
one to it, and ends the server on leaving. A server's stderr reaches no terminal: the last of it is kept for error
sentences, the rest is dropped. Not here: the protocol, and when to connect again (`mcp_connection.py`).
"""

import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from agent_rl.errors import ConfigError
from agent_rl.sandbox.limits import Limits, Status
from agent_rl.sandbox.sandbox import Sandbox
from agent_rl.sandbox.session import Session, SessionEnded
from agent_rl.sandbox.workspace import MAX_FILES, MAX_TOTAL_BYTES, WorkspaceError, validate_files

LIMITS = Limits(wall_s=24 * 3600.0, cpu_s=4 * 3600, processes=64, output_kb=4, output_hard_kb=8 * 1024)
"""Of one server in the sandbox, for its whole life; after it the next call starts a new one. `output_hard_kb` holds for
all it writes to stderr, and for one line of its stdout."""
JOBS = ("agent_rl.tools.mcp_jobs",)
_LOOK_S = 0.25
"""A thread that waits for a line looks so often whether it is still wanted."""
_WRITE_S = 5.0
"""A server that reads no input for so long is taken for dead."""
_WORDS_CHARS = 600
_LIMIT_REACHED = (Status.TIMEOUT, Status.MEMORY, Status.PROCESS_LIMIT, Status.OUTPUT_LIMIT)
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_RUN_MODULE = "import runpy, sys\ndel sys.argv[0]\nrunpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"

Streams = tuple[Any, Any]
"""From the server, to the server."""


@dataclass(slots=True)
class LastWords:
    """The end of what a server wrote to stderr."""

    text: str = ""

    def add(self, text: str) -> None:
        self.text = (self.text + text)[-_WORDS_CHARS:]

    @property
    def last_line(self) -> str:
        """Of a traceback, the line that says what went wrong."""
        return self.text.strip().rpartition("\n")[2]


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
                    await to_client.send(_message(line))
    lost.set()


def _message(line: str) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


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


# ---------------------------------------------------------------- as a child process


@asynccontextmanager
async def as_child(command: tuple[str, ...], *, words: LastWords, lost: anyio.Event) -> AsyncIterator[Streams]:
    """A server that is a child process with few of our environment variables; `lost` is set when it has ended.

    Raises OSError when the program cannot be started.
    """
    parameters = StdioServerParameters(command=command[0], args=list(command[1:]))
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    to_client, inbox = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    async with AsyncExitStack() as held:
        held.callback(os.close, ours)
        held.callback(_take, ours, words)  # what it wrote last may not have been read yet
        tasks = await held.enter_async_context(anyio.create_task_group())
        held.callback(tasks.cancel_scope.cancel)
        with open(theirs, "w") as stderr:
            from_server, to_server = await held.enter_async_context(stdio_client(parameters, stderr))
        tasks.start_soon(_keep_last_words, ours, words)
        tasks.start_soon(_forward, from_server, to_client, lost)
        yield inbox, to_server


async def _forward(from_server: Any, to_client: Any, lost: anyio.Event) -> None:
    """Pass messages on, for the sake of noticing the end of them, which the SDK's client keeps to itself."""
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async with to_client:
            async for message in from_server:
                await to_client.send(message)
    lost.set()


async def _keep_last_words(pipe: int, words: LastWords) -> None:
    """Empty the pipe as it fills, else the server would wait at it."""
    is_open = True
    while is_open:
        await anyio.wait_readable(pipe)
        is_open = _take(pipe, words)


def _take(pipe: int, words: LastWords) -> bool:
    """Keep what the pipe holds; whether there may be more."""
    try:
        data = os.read(pipe, 1 << 16)
    except BlockingIOError:
        return True
    words.add(data.decode("utf-8", "replace"))
    return bool(data)
