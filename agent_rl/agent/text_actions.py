"""A chat format whose calls are plain text by rules that the prompt explains, for any chat template.

A kind of agent is a prompt and a parser: the rules, how a reply is written by them, how it is read
again. The rest is `ChatFormat`'s: contents stay plain text, and what was sampled is never encoded again.
Not here: any rules (`react_format.py`, `code_format.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from agent_rl.agent.chat_format import ChatFormat
from agent_rl.agent.messages import Message, ToolSpec
from agent_rl.errors import UserError


class TextActionFormat(ChatFormat, ABC):
    """Tools stand in the system message and results in user messages, so the template need not know of either.

    Holds no state of an episode: one object serves many threads.
    """

    result_label: str
    """In front of what a tool gave."""

    @abstractmethod
    def rules(self, tools: Sequence[ToolSpec]) -> str:
        """What the system message ends with; empty for none. UserError for tools that cannot be called this way."""

    def settled(self, message: Message) -> Message:
        """What is left of a reply when it is read again: as it is, unless the rules move some of its text."""
        return message

    @abstractmethod
    def write(self, message: Message) -> Message:
        """The same reply with its calls written out in `content`. UserError for calls that cannot be."""

    @abstractmethod
    def read(self, text: str) -> Message:
        """The reply in a text: calls, broken calls or an answer, whatever the model wrote."""

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
        """As `ChatFormat.render_prompt`, with the rules and the tools at the end of the system message."""
        rules = self.rules(tools)
        if rules and messages and messages[0].role == "system":
            content = "\n\n".join(filter(None, [messages[0].content, rules]))
            messages = [Message.system(content), *messages[1:]]
        elif rules:
            messages = [Message.system(rules), *messages]
        return super().render_prompt(self._shown(messages))

    def render_env_messages(self, messages: Sequence[Message]) -> list[int]:
        """As `ChatFormat.render_env_messages`; neighbouring tool results become one user message."""
        return super().render_env_messages(self._shown(messages))

    def _shown(self, messages: Sequence[Message]) -> list[Message]:
        shown: list[Message] = []
        for is_result, group in groupby(messages, lambda message: message.role == "tool"):
            if is_result:
                results = [f"{self.result_label}{message.content}" for message in group]
                shown.append(Message.user("\n".join(results)))
            else:
                shown += group
        return shown

    def render_completion(self, message: Message) -> list[int]:
        """Ids of an assistant message as the model should write it, end-of-turn id included: a supervised target.

        Raises UserError for one that would be read as another: its thought holds an action, say. One that could not be
        read in the first place is shown by what is left of it.
        """
        written = self.write(message)
        read = self._read(written.content)
        reasoning = "\n".join(filter(None, [written.reasoning, read.reasoning]))
        if not message.tool_errors:
            _refuse_other(self.settled(message), replace(read, reasoning=reasoning), written.content)
        return super().render_completion(written)

    def _read(self, text: str) -> Message:
        return self.read(text.strip())


def _refuse_other(meant: Message, read: Message, text: str) -> None:
    """UserError when the reply that is read is not the one that was meant."""
    if read.tool_errors or _parts(read) != _parts(meant):
        raise UserError(
            f"a reply cannot be written so that it is read as it was meant: {text!r:.200} is read as "
            f"{_kind(read)}, where {_kind(meant)} was expected; take out of its thought and text what looks like an "
            "action or an answer, give it one of them, or set agent.type to hf"
        )


def _parts(message: Message) -> tuple[str, str, list[tuple[str, dict[str, Any]]]]:
    calls = [(call.name, call.arguments) for call in message.tool_calls]
    return message.content.strip(), message.reasoning.strip(), calls


def _kind(message: Message) -> str:
    if message.tool_errors:
        return "a broken call"
    names = " and ".join(repr(call.name) for call in message.tool_calls)
    words = f"the text {message.content!r:.60}" if message.content or not names else ""
    return " and ".join(filter(None, [f"a call of {names}" if names else "", words]))
