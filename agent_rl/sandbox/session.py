"""A long-lived program in the sandbox, spoken to line by line: an MCP server, a stateful tool.

It runs in a fork of its own of a warm server, so it blocks nobody. Lines are the program's word. Not thread-safe.
"""

import json
import time
from typing import Any

from agent_rl.errors import SandboxError
from agent_rl.sandbox.server_process import Channel

_GRACE_S = 10.0


class SessionEnded(Exception):
    """The program can give no more lines: it ended, closed its output, was killed at a limit, or stayed silent."""


class Session:
    """Made by `Sandbox.session`; use it as a context manager."""

    def __init__(self, channel: Channel, run: dict[str, Any]) -> None:
        self._channel, self._closed = channel, False
        self._unsent: list[str] = []
        self._channel.set_timeout(_GRACE_S)
        self._guarded(lambda: self._channel.send(json.dumps({"op": "session", "run": run}).encode()))

    def write_line(self, text: str) -> None:
        """Send one line; it goes out with the next `read_line`."""
        if "\n" in text:
            raise ValueError("a line holds no newline; send the lines one by one")
        self._unsent.append(text + "\n")

    def read_line(self, timeout_s: float) -> str:
        """The next line of the program's output, without its newline.

        Raises SessionEnded when none comes within `timeout_s` or can come, SandboxError when the sandbox failed.
        """
        answer = self._ask(timeout_s)
        if "end" in answer:
            reason = answer["end"]
            raise SessionEnded(f"no line within {timeout_s:g} s" if reason == "silent" else f"the program: {reason}")
        return str(answer["line"])

    def request(self, line: str, timeout_s: float) -> str:
        """`write_line` and `read_line`."""
        self.write_line(line)
        return self.read_line(timeout_s)

    def _ask(self, read_s: float | None) -> dict[str, Any]:
        if self._closed:
            raise SandboxError("the session is closed")
        payload = json.dumps({"op": "line", "write": "".join(self._unsent), "read_s": read_s}).encode()
        self._unsent.clear()

        def exchange() -> dict[str, Any]:
            deadline = time.monotonic() + (read_s or 0.0) + _GRACE_S
            self._channel.set_timeout(_GRACE_S)
            self._channel.send(payload)
            return dict(json.loads(self._channel.receive(deadline)))

        return self._guarded(exchange)

    def _guarded(self, action: Any) -> Any:
        try:
            return action()
        except (OSError, EOFError, ValueError) as error:
            self._closed = True
            self._channel.close()
            raise SandboxError(f"the server of this session is gone: {error!r}") from error

    def close(self) -> dict[str, Any]:
        """Kill the program and return the raw header of its run (empty when it was closed before)."""
        if self._closed:
            return {}
        if self._unsent:
            self._ask(None)

        def end() -> dict[str, Any]:
            self._channel.send(b'{"op": "close"}')
            return dict(json.loads(self._channel.receive(time.monotonic() + _GRACE_S)))

        header: dict[str, Any] = self._guarded(end)
        self._closed = True
        self._channel.close()
        return header

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
