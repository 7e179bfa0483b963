"""Lines of a server of `tools.mcp` as messages: cut out of what comes, bounded, and what of those that are none.

A line that is no message but whose beginning says which call it answers ends that call with an error at once; any other
goes on as the exception that says what is wrong with it. Not here: where lines come from (`mcp_transport.py`,
`mcp_child.py`).
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mcp.shared.message import SessionMessage
from mcp.types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

MAX_LINE_BYTES = 8 * 1024 * 1024
"""Of one line, and of the body of one answer over HTTP."""
_HEAD_BYTES = 200
_WORDS_CHARS = 600
_ANSWERED = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"[^"]*"\s*,\s*)?"id"\s*:\s*"?(\d{1,15})"?\s*,\s*"(?:result|error)"'
)
TOO_LONG = f"the server's answer is longer than {MAX_LINE_BYTES} bytes"

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


class LineReader:
    """Messages out of a stream of bytes. Of a line that is too long no more than its beginning is kept."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._is_skipping = False

    def feed(self, data: bytes) -> Iterator[SessionMessage | Exception]:
        """The messages that `data` completes; a line that is too long is one as soon as that is known."""
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._line += part
            if not self._is_skipping:
                yield self._message()
            self._line.clear()
            self._is_skipping = False
        self._line += rest
        if len(self._line) > MAX_LINE_BYTES:
            if not self._is_skipping:
                yield self._message()
            self._line.clear()
            self._is_skipping = True

    def _message(self) -> SessionMessage | Exception:
        if len(self._line) > MAX_LINE_BYTES:
            return _no_message(bytes(self._line[:_HEAD_BYTES]), ValueError(TOO_LONG))
        return message_of(bytes(self._line))


def message_of(line: bytes) -> SessionMessage | Exception:
    """The message in a line, the error answer to the call that it seems to answer, or why it is neither."""
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return _no_message(line, error)


def _no_message(line: bytes, error: ValueError) -> SessionMessage | Exception:
    request_id = _answered_by(line)
    if request_id is None:
        return error
    why = str(error).partition("\n")[0]
    data = ErrorData(code=PARSE_ERROR, message=why if why == TOO_LONG else f"the server's answer is no message: {why}")
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=data))


def _answered_by(line: bytes) -> int | None:
    """The id of the request that a line answers, as far as it shows; an `id` within a result counts for nothing."""
    if match := _ANSWERED.match(line):
        return int(match[1])
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    request_id = value.get("id") if isinstance(value, dict) and {"result", "error"} & value.keys() else None
    return request_id if type(request_id) is int else None
