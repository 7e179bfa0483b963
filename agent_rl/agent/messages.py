"""What a conversation is made of: messages, tool calls, tool schemas.

This module knows neither tokens nor templates (`chat_format.py`) nor how text becomes calls (`tool_parser.py`).
"""

from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call the model made: `ToolCall(name="submit", arguments={}, span=(0, 57))`."""

    name: str
    """Name of the tool, not yet checked against any registry."""
    arguments: dict[str, Any]
    """Decoded JSON object, not yet checked against the tool's schema."""
    span: tuple[int, int] = (0, 0)
    """Start and end of the call in the text it was parsed from, tags included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallError:
    """A call that could not be read, in words the model can act on."""

    kind: Literal["unclosed", "bad_json", "not_an_object", "no_name", "bad_arguments"]
    """What is wrong with it."""
    message: str
    """One sentence: what was found and what a right call looks like."""
    span: tuple[int, int]
    """Start and end of the broken call in the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReply:
    """A reply taken apart: `content` is the text with every call (good or broken) cut out and the ends stripped."""

    content: str
    calls: tuple[ToolCall, ...]
    errors: tuple[ToolCallError, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation: `Message.user("Build the agent")`."""

    role: Role
    content: str
    """Text as the model wrote it or will read it. An assistant's calls are in `tool_calls` and not in `content`."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls of an assistant message, in order."""
    tool_errors: tuple[ToolCallError, ...] = ()
    """Calls of an assistant message that could not be read, in order."""
    name: str | None = None
    """For role `tool`: the tool that answers."""
    reasoning: str = ""
    """What an assistant thought before `content`, for models with `<think>` tokens. Calls in it are only thoughts."""
    written: str = field(default="", compare=False, repr=False)
    """An assistant's reply as it was sampled, where calls were cut out of `content`; else empty."""

    @classmethod
    def system(cls, content: str) -> "Message":
        return cls(role="system", content=content)

    @classmethod
    def user(cls, content: str) -> "Message":
        return cls(role="user", content=content)

    @classmethod
    def assistant(cls, content: str, tool_calls: tuple[ToolCall, ...] = ()) -> "Message":
        return cls(role="assistant", content=content, tool_calls=tool_calls)

    @classmethod
    def tool(cls, content: str, name: str | None = None) -> "Message":
        return cls(role="tool", content=content, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as the model sees it: name, description, JSON schema of its arguments."""

    name: str
    description: str
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the arguments object."""

    def to_openai(self) -> dict[str, Any]:
        """The OpenAI function format, which chat templates take in `tools`."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}
