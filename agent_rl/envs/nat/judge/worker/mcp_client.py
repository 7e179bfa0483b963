"""The client side of a conversation with a candidate's MCP server: newline-delimited JSON-RPC over a sandbox session.

Every request has a deadline, every line a cap (the session's). What does not answer one of our requests is dropped and
counted; nothing the server sends is believed beyond being the answer to the request it names.
"""

import json
import time
from dataclasses import dataclass, field
from typing import Any

from agent_rl.sandbox.guest.bounded_json import UnreadableJSON, read_json
from agent_rl.sandbox.session import Session, SessionEnded

ERROR_CHARS = 300
_MAX_VALUES = 20_000
"""JSON values of one message."""
MAX_UNSOLICITED = 1000
"""Messages that answer nothing, after which the server is not listened to any more."""


class ProtocolError(Exception):
    """The server broke the protocol, was silent, or ended; the message says which."""


@dataclass(slots=True)
class McpConversation:
    """What came of it: handshake, list of tools, one answer for each call."""

    stage: str = "start"
    error: str | None = None
    has_ended: bool = False
    """The program ended or closed its output before the conversation was over."""
    server_name: str | None = None
    tools: dict[str, dict[str, str]] = field(default_factory=dict)
    answers: list[str] = field(default_factory=list)
    is_error: list[bool] = field(default_factory=list)
    unknown_tool_refused: bool | None = None
    num_unsolicited: int = 0
    """Messages that answered no request of ours."""


def converse(
    session: Session, calls: list[tuple[str, dict[str, Any]]], timeout_s: float, *, before: str = ""
) -> McpConversation:
    """Send what comes `before` the protocol, shake hands, list the tools, make every call (tool, arguments), and one to
    a tool that does not exist.

    Raises SandboxError only; what the server does wrong is in the result.
    """
    conversation = McpConversation()
    try:
        if before:
            session.write_line(before, timeout_s)
        _converse(_Peer(session, conversation, timeout_s), calls)
    except ProtocolError as error:
        conversation.error = str(error)[:ERROR_CHARS]
    except SessionEnded as end:
        conversation.error, conversation.has_ended = f"{end}, at {conversation.stage}", end.reason == "closed"
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        conversation.error = f"malformed answer to {conversation.stage}: {error!r}"[:ERROR_CHARS]
    else:
        conversation.stage = "done"
    return conversation


def _converse(peer: "_Peer", calls: list[tuple[str, dict[str, Any]]]) -> None:
    conversation = peer.conversation
    conversation.stage = "initialize"
    client = {"name": "agent_rl", "version": "1"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    conversation.server_name = str(_result(peer.request("initialize", hello)[0])["serverInfo"]["name"])[:200]
    peer.notify("notifications/initialized")
    conversation.stage = "tools/list"
    tools = _result(peer.request("tools/list", {})[0])["tools"]
    conversation.tools = {str(entry["name"])[:200]: _types(entry["inputSchema"]) for entry in tools[:64]}
    conversation.stage = "tools/call"
    params = [{"name": name, "arguments": given} for name, given in [*calls, ("no_such_tool", {})]]
    *answers, unknown = map(_tool_answer, peer.request("tools/call", *params))
    conversation.answers = [text for text, _ in answers]
    conversation.is_error = [is_error for _, is_error in answers]
    conversation.unknown_tool_refused = unknown[1]


class _Peer:
    def __init__(self, session: Session, conversation: McpConversation, timeout_s: float) -> None:
        self.conversation = conversation
        self._session, self._timeout_s = session, timeout_s
        self._last_id = 0

    def notify(self, method: str) -> None:
        self._session.write_line(json.dumps({"jsonrpc": "2.0", "method": method}))

    def request(self, method: str, *params: dict[str, Any]) -> list[dict[str, Any]]:
        """Send one request for each of `params` together and return the responses in that order.

        Together because most of a call's time is the way to the server and back.
        """
        ids = range(self._last_id + 1, self._last_id + 1 + len(params))
        self._last_id += len(params)
        for number, given in zip(ids, params, strict=True):
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": given}
            self._session.write_line(json.dumps(message))
        responses: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + self._timeout_s
        while len(responses) < len(params):
            message = _parse(self._line(deadline))
            number = message.get("id")
            if type(number) is int and number in ids and number not in responses and "method" not in message:
                responses[number] = message
            else:
                self.conversation.num_unsolicited += 1
                if self.conversation.num_unsolicited > MAX_UNSOLICITED:
                    raise ProtocolError(f"more than {MAX_UNSOLICITED} messages that answer no request")
        return [responses[number] for number in ids]

    def _line(self, deadline: float) -> str:
        """The next line, where there is time left for it: a line that came already is no reason to go on for ever."""
        silence = ProtocolError(f"no answer to {self.conversation.stage} within {self._timeout_s:g} s")
        if (left := deadline - time.monotonic()) <= 0:
            raise silence
        try:
            return self._session.read_line(left)
        except SessionEnded as end:
            if end.reason == "silent":
                raise silence from None
            raise


def _parse(line: str) -> dict[str, Any]:
    try:
        message = read_json(line, max_values=_MAX_VALUES)
    except UnreadableJSON:
        message = None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise ProtocolError(f"stdout is for JSON-RPC only, but the server wrote {line[:80]!r}")
    return message


def _result(message: dict[str, Any]) -> dict[str, Any]:
    if "error" in message:
        raise ProtocolError(f"the server refused: {str(message['error'])[:ERROR_CHARS]}")
    result = message["result"]
    if not isinstance(result, dict):
        raise TypeError(f"the result is a {type(result).__name__}, not an object")
    return result


def _tool_answer(message: dict[str, Any]) -> tuple[str, bool]:
    """(text, isError) of the response to tools/call."""
    if "error" in message:
        return str(message["error"])[:ERROR_CHARS], True
    result = _result(message)
    text = "".join(str(part.get("text", "")) for part in result["content"])
    return text, bool(result.get("isError", False))


def _types(schema: dict[str, Any]) -> dict[str, str]:
    """Argument name -> JSON type of a JSON schema; `any` where it names none."""
    properties = schema.get("properties", {})
    return {str(name): str(properties[name].get("type", "any")) for name in sorted(properties)}
