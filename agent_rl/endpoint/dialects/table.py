"""The protocols that the endpoint speaks, as one interface each: a body in, a body or events out.

Not here: HTTP, sessions. The chat protocol is the one that the others are translated into.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from fastapi.sse import format_sse_event

from agent_rl.agent.chat_format import ChatFormat
from agent_rl.endpoint.dialects.anthropic import AnthropicDialect
from agent_rl.endpoint.dialects.responses import ResponsesDialect
from agent_rl.endpoint.errors import EndpointError
from agent_rl.endpoint.replies import chat_chunks, chat_completion
from agent_rl.endpoint.requests import ChatRequest, parse_chat
from agent_rl.endpoint.session import SampledReply


class Dialect(Protocol):
    """How requests, replies and errors look in one protocol."""

    def parse(self, body: Mapping[str, Any]) -> ChatRequest:
        """EndpointError for what is wrong or not allowed."""

    def body(self, reply: SampledReply, request: ChatRequest, chat: ChatFormat, *, created: int) -> dict[str, Any]: ...

    def events(self, body: dict[str, Any], request: ChatRequest) -> Iterator[bytes]:
        """The same as server-sent events, the end included."""

    def error(self, error: EndpointError) -> dict[str, Any]: ...

    def error_event(self, error: EndpointError) -> bytes: ...


class ChatDialect:
    """OpenAI's chat completions."""

    def parse(self, body: Mapping[str, Any]) -> ChatRequest:
        return parse_chat(body)

    def body(self, reply: SampledReply, request: ChatRequest, chat: ChatFormat, *, created: int) -> dict[str, Any]:
        return chat_completion(reply, request, chat, created=created)

    def events(self, body: dict[str, Any], request: ChatRequest) -> Iterator[bytes]:
        for chunk in chat_chunks(body, include_usage=request.include_usage):
            yield format_sse_event(data_str=json.dumps(chunk))
        yield format_sse_event(data_str="[DONE]")

    def error(self, error: EndpointError) -> dict[str, Any]:
        row = {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}
        return {"error": row}

    def error_event(self, error: EndpointError) -> bytes:
        return format_sse_event(data_str=json.dumps(self.error(error)))


CHAT = ChatDialect()
DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": ResponsesDialect(),
    "/v1/messages": AnthropicDialect(),
}
"""By path."""
