"""A chat format without tokens: an id is the number of a message, for models that are only asked through an API.

What a rollout passes on as ids leads back to whole messages here, in the form of OpenAI's protocol. Not here: asking
(`chat_policy.py`).
"""

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent_rl.agent.message_dicts import read_call, read_text, to_dict
from agent_rl.agent.messages import Message, ToolCallError, ToolSpec
from agent_rl.errors import DataError

PAD = 0
"""Fills a completion up to the number of tokens that the API counted."""
NOT_RUN = "not run"
"""The answer to a call that the environment did not answer; the protocol demands one."""


class NumberedMessages:
    """Messages and lists of tools, by number from 1; used from many threads."""

    stop_token_ids: tuple[int, ...] = ()
    rewrites_history = False

    def __init__(self) -> None:
        self._entries: list[Any] = [None]
        self._lock = threading.Lock()

    def add(self, entry: Any) -> int:
        """The number of a message, or of a list of tools."""
        with self._lock:
            self._entries.append(entry)
            return len(self._entries) - 1

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
        return [self.add([tool.to_openai() for tool in tools]), *self.render_env_messages(messages)]

    def render_env_messages(self, messages: Sequence[Message]) -> list[int]:
        return [self.add(message) for message in messages]

    def render_continuation(self, messages: Sequence[Message]) -> list[int]:
        return self.render_env_messages(messages)

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        return ["" for _ in token_ids]

    def reply_end(self, _token_ids: Sequence[int]) -> int | None:
        return None

    def parse_completion(self, token_ids: Sequence[int]) -> Message:
        return read_reply(self._entries[token_ids[0]])

    def conversation(self, token_ids: Iterable[int]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Messages and tools as the protocol has them."""
        tools: list[dict[str, Any]] = []
        messages: list[dict[str, Any]] = []
        open_calls: list[dict[str, Any]] = []
        for entry in (self._entries[number] for number in token_ids if number != PAD):
            if isinstance(entry, list):
                tools = entry
            elif isinstance(entry, Message) and entry.role == "tool" and open_calls:
                call = open_calls.pop(_place_of(entry, open_calls))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": entry.content})
            else:
                messages += _not_run(open_calls)
                # A mapping is a reply as it came.
                place = len(messages)
                made = _with_ids(entry, place) if isinstance(entry, Mapping) else _of_protocol(entry, place)
                open_calls = list(made.get("tool_calls") or ())
                messages.append(made)
        return [*messages, *_not_run(open_calls)], tools


def _with_ids(reply: Mapping[str, Any], place: int) -> dict[str, Any]:
    """A reply whose calls all have ids, which some servers leave out."""
    calls = enumerate(reply.get("tool_calls") or ())
    named = [{**call, "id": call.get("id") or f"call_{place}_{number}"} for number, call in calls]
    return {**reply, "tool_calls": named} if named else dict(reply)


def _of_protocol(message: Message, place: int) -> dict[str, Any]:
    """A message that no reply was, such as one of a prompt; its calls are given ids that hold its place."""
    if message.role == "tool":  # of no call
        return {"role": "user", "content": message.content}
    made = to_dict(message)
    for number, call in enumerate(made.get("tool_calls", ())):
        call["id"] = f"call_{place}_{number}"
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return made


def _not_run(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": call["id"], "content": NOT_RUN} for call in calls]


def _place_of(answer: Message, calls: Sequence[Mapping[str, Any]]) -> int:
    """Which call an answer is of: the first of its tool; without a name the first that could not be read."""
    for place, call in enumerate(calls):
        if answer.name == call["function"]["name"] or (answer.name is None and _error_of(call) is not None):
            return place
    return 0


def _error_of(call: Mapping[str, Any]) -> ToolCallError | None:
    try:
        read_call(call, "the reply")
    except DataError as error:
        return ToolCallError(kind="bad_arguments", message=str(error), span=(0, 0))
    return None


def read_reply(reply: Mapping[str, Any]) -> Message:
    """An assistant's message of the protocol; calls whose arguments are no object are errors that the model reads."""
    calls = reply.get("tool_calls") or ()
    errors = tuple(error for call in calls if (error := _error_of(call)) is not None)
    reasoning = reply.get("reasoning_content")
    return Message(
        role="assistant",
        content=read_text(reply.get("content"), "the reply"),
        tool_calls=tuple(read_call(call, "the reply")[1] for call in calls if _error_of(call) is None),
        tool_errors=errors,
        reasoning=reasoning if isinstance(reasoning, str) else "",
        written=json.dumps(reply) if calls else "",
    )
