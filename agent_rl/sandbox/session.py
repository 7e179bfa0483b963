"""A session with a program in the sandbox, line by line while it runs: an MCP server, a stateful tool.

Lines are untrusted. Deadlines hold for each line, a cap for its length, and the wall-clock limit for the whole
session. Not thread-safe.
"""

import os
import select
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from agent_rl.errors import SandboxError
from agent_rl.sandbox.limits import JobResult, Limits
from agent_rl.sandbox.run_files import Call, RunFiles, SandboxFailed
from agent_rl.sandbox.server_process import Channel


class SessionEnded(Exception):
    """The program gave no line. `reason`: silent, closed (its output), or flood (a line without end)."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Session:
    """Made by `Sandbox.session`; use it as a context manager."""

    def __init__(
        self,
        channel: Channel,
        call: Call,
        limits: Limits,
        read: Callable[[RunFiles, dict[str, Any]], JobResult],
        *,
        keep_channel: bool,
    ) -> None:
        self._channel, self._read = channel, read
        self._line_cap = limits.output_hard_kb * 1024
        self._buffer = bytearray()
        self._result: JobResult | None = None
        self.closed = False
        with ExitStack() as held:
            if not keep_channel:
                held.callback(channel.close)
            self._stdin, self._stdout, self._files = _open_files(call, limits, held)
            try:
                channel.send_runs([self._files])
            except OSError as error:
                raise SandboxError(f"the server of this session is gone: {error!r}") from error
            self._files.close_theirs()
            self._held = held.pop_all()

    def write_line(self, text: str, timeout_s: float = 2.0) -> None:
        """Send one line. Raises SessionEnded when the program does not take it within `timeout_s`."""
        if "\n" in text:
            raise ValueError("a line holds no newline; send the lines one by one")
        data, deadline = memoryview(text.encode() + b"\n"), time.monotonic() + timeout_s
        while data:
            try:
                data = data[os.write(self._stdin, data) :]
            except BlockingIOError:
                # A program can open its pipes once more and fill this one after each look.
                if time.monotonic() >= deadline or not _is_ready(self._stdin, select.POLLOUT, deadline):
                    raise SessionEnded("silent", f"the program read no input within {timeout_s:g} s") from None
            except BrokenPipeError:
                raise SessionEnded("closed", "the program ended or closed its input") from None

    def read_line(self, timeout_s: float) -> str:
        """The next line of the program's output, without its newline. Raises SessionEnded when none comes."""
        deadline, num_searched, is_late = time.monotonic() + timeout_s, 0, False
        while (end := self._buffer.find(b"\n", num_searched)) < 0:
            num_searched = len(self._buffer)
            if num_searched > self._line_cap:
                raise SessionEnded("flood", f"the program wrote a line longer than {self._line_cap} bytes")
            if is_late or not _is_ready(self._stdout, select.POLLIN, deadline):
                raise SessionEnded("silent", f"no line within {timeout_s:g} s")
            is_late = time.monotonic() >= deadline  # what has come by then is read once, however it drips on
            try:
                chunk = os.read(self._stdout, 65536)
            except BlockingIOError:  # a program can take back what it wrote, between the look and this
                continue
            if not chunk:
                raise SessionEnded("closed", "the program ended or closed its output")
            self._buffer += chunk
        line = self._buffer[:end].decode("utf-8", "replace")
        del self._buffer[: end + 1]
        return line

    def request(self, line: str, timeout_s: float) -> str:
        """`write_line` and `read_line`."""
        self.write_line(line, timeout_s)
        return self.read_line(timeout_s)

    def close(self) -> JobResult:
        """Kill the program if it still runs, and return how it ended. Raises SandboxError when the sandbox failed."""
        if self._result is not None:
            return self._result
        if self.closed:
            raise SandboxError("the session was closed by an error before")
        self.closed = True
        try:
            (header,) = self._channel.stop()
            self._result = self._read(self._files, header)
            return self._result
        except (OSError, EOFError, ValueError, SandboxFailed) as error:
            raise SandboxError(f"the server of this session failed: {error!r}") from error
        finally:
            self._release()

    def _release(self) -> None:
        self.closed = True
        self._held.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        if not self.closed:
            self.close()


def _open_files(call: Call, limits: Limits, held: ExitStack) -> tuple[int, int, RunFiles]:
    """Our ends of the standard streams and the files of the run, which `held` closes."""
    with ExitStack() as theirs:
        try:
            their_stdin, stdin = os.pipe()
            held.callback(os.close, stdin)
            theirs.callback(os.close, their_stdin)
            stdout, their_stdout = os.pipe()
            held.callback(os.close, stdout)
            theirs.callback(os.close, their_stdout)
        except OSError as error:
            raise SandboxError(f"the pipes of a session cannot be opened: {error!r}; see `ulimit -n`") from error
        theirs.pop_all()  # the files close them, also where they fail
    for fd in (stdin, stdout):
        os.set_blocking(fd, False)
    files = RunFiles(call, limits, pipes={"stdin": their_stdin, "stdout": their_stdout})
    held.callback(files.close)
    return stdin, stdout, files


def _is_ready(fd: int, event: int, deadline: float) -> bool:
    """Wait until `deadline` at most. By `poll`, because `select` takes no descriptor above 1023."""
    poller = select.poll()
    poller.register(fd, event)
    return bool(poller.poll(max(0.0, deadline - time.monotonic()) * 1000))
