"""A server of `tools.mcp` that is a child process: started with few of our environment variables, spoken to, ended.

Not the SDK's own transport, which keeps a line however long it is. Not here: servers in the sandbox and over HTTP
(`mcp_transport.py`), what lines hold (`mcp_lines.py`).
"""

import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from agent_rl.tools.mcp.lines import LastWords, LineReader, Streams

_WRITE_S = 5.0
"""A server that reads no input for so long is taken for dead."""
_GRACE_S = 2.0
"""Grace period after the input was closed, and again after SIGTERM."""
_LOOK_S = 0.01
_CHUNK_BYTES = 1 << 16


@asynccontextmanager
async def as_child(command: tuple[str, ...], *, words: LastWords, lost: anyio.Event) -> AsyncIterator[Streams]:
    """A server in a process group of its own; `lost` is set when it has ended.

    Raises OSError when the program cannot be started.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env=get_default_environment(),
        start_new_session=True,
    )
    for pipe in (process.stdin, process.stdout, process.stderr):
        os.set_blocking(pipe.fileno(), False)
    to_client, inbox = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outbox, from_client = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read_lines, process.stdout.fileno(), to_client, lost)
            tasks.start_soon(_write_lines, process.stdin.fileno(), from_client, lost)
            tasks.start_soon(_keep_last_words, process.stderr.fileno(), words)
            yield inbox, outbox
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process, words)


async def _read_lines(pipe: int, to_client: Any, lost: anyio.Event) -> None:
    reader = LineReader()
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async with to_client:
            while data := await _next(pipe):
                for message in reader.feed(data):
                    await to_client.send(message)
    lost.set()


async def _write_lines(pipe: int, from_client: Any, lost: anyio.Event) -> None:
    async with from_client:
        async for message in from_client:
            line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                with anyio.fail_after(_WRITE_S):
                    await _write(pipe, memoryview(f"{line}\n".encode()))
            except (TimeoutError, BrokenPipeError):
                lost.set()
                return


async def _write(pipe: int, data: memoryview) -> None:
    while data:
        try:
            data = data[os.write(pipe, data) :]
        except BlockingIOError:
            await anyio.wait_writable(pipe)


async def _keep_last_words(pipe: int, words: LastWords) -> None:
    """Empty the pipe as it fills, else the server would wait at it."""
    while data := await _next(pipe):
        words.add(data.decode("utf-8", "replace"))


async def _next(pipe: int) -> bytes:
    """What comes next; empty at the end."""
    while True:
        await anyio.wait_readable(pipe)
        with suppress(BlockingIOError):
            return os.read(pipe, _CHUNK_BYTES)


async def _end(process: subprocess.Popen[bytes], words: LastWords) -> None:
    """Close the server's input, and end it and what it started when it is still there after a while."""
    process.stdin.close()
    if not await _has_ended(process, words):
        for ending in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, ending)
            if await _has_ended(process, words):
                break
    process.stdout.close()
    process.stderr.close()


async def _has_ended(process: subprocess.Popen[bytes], words: LastWords) -> bool:
    """Whether it ends within the grace; what it still writes is taken, else it would wait for that."""
    with anyio.move_on_after(_GRACE_S):
        while True:
            is_over = process.poll() is not None
            _take(process.stdout.fileno())
            words.add(_take(process.stderr.fileno()).decode("utf-8", "replace"))
            if is_over:
                return True
            await anyio.sleep(_LOOK_S)
    return False


def _take(pipe: int) -> bytes:
    try:
        return os.read(pipe, _CHUNK_BYTES)
    except BlockingIOError:
        return b""
