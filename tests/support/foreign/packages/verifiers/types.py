"""Messages and responses, with the fields of the package's pydantic models."""

from typing import Any

from pydantic import BaseModel


class ToolCall(BaseModel):
    id: str
    name: str
    arguments: str


class Tool(BaseModel):
    name: str
    description: str
    parameters: dict[str, Any]


class ChatMessage(BaseModel):
    role: str
    content: Any = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class ResponseMessage(ChatMessage):
    role: str = "assistant"
    finish_reason: str
    is_truncated: bool | None


class Response(BaseModel):
    id: str
    created: int
    model: str
    message: ResponseMessage
