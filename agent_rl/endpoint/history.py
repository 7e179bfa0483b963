"""The turns of one episode as a tree, and where a request continues it.

A request is found by what its history says: the longest beginning that ends with a message the policy sampled here, in
the same conversation and with the same tools, gives the ids as they were read and sampled; what stands behind it is
new. Roles, texts and calls by name and decoded arguments make a history the same; ids of calls, order of keys and
spaces in JSON do not. What cannot be found (another system prompt, an edited or summed-up history, a sub-agent) is a
branch of its own. Sampled ids are never encoded again.
Not here: sampling, budgets, the protocol.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent_rl.agent.chat_format import ChatFormat
from agent_rl.agent.messages import Message, ToolSpec
from agent_rl.endpoint.requests import ChatRequest
from agent_rl.records import Completion, Turn
from agent_rl.rollout.turns import SampledTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPlace:
    """Where a request stands in the tree, and what the policy reads there."""

    parent: int | None
    """The turn that it continues; None for a new context."""
    new_ids: tuple[int, ...]
    """Ids that stand in no turn before."""
    prompt_ids: tuple[int, ...]
    """All ids that the policy reads."""
    new_messages: tuple[Message, ...]
    """The messages that `new_ids` stand for."""
    request: ChatRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTurn:
    """A sampled turn: the place it was asked for, and what came."""

    place: RequestPlace
    sampled: SampledTurn
    key: str
    """Digest of the conversation with this turn's message."""
    call_ids: tuple[str, ...]
    """Ids given to its calls."""
    function: str | None
    """The caller's name for the part of the agent that asked, if it said one."""

    @property
    def context_ids(self) -> tuple[int, ...]:
        """Everything up to and with the sampled ids."""
        return (*self.place.prompt_ids, *self.sampled.completion.token_ids)

    @property
    def completion(self) -> Completion:
        return self.sampled.completion


class History:
    """The turns of one episode in the order their requests came. Not safe for threads by itself."""

    def __init__(self, chat: ChatFormat, *, episode: str = "") -> None:
        """`episode` stands in the ids of calls, for clients that hold calls of several episodes in one conversation."""
        self.turns: dict[int, RecordedTurn] = {}
        """By number; a turn that is still being sampled is missing."""
        self._chat = chat
        self._episode = episode
        self._by_key: dict[str, list[int]] = {}

    def place(self, request: ChatRequest) -> RequestPlace:
        """Find a request; UserError where the chat template cannot show its messages."""
        keys = _keys(request.messages, request.tools)
        for end in range(len(request.messages) - 1, 0, -1):
            if request.messages[end - 1].role != "assistant" or keys[end] not in self._by_key:
                continue
            parent = self._pick(self._by_key[keys[end]], request.call_ids[end - 1])
            turn, tail = self.turns[parent], request.messages[end:]
            end_of_turn = self._chat.stop_token_ids[:1] if turn.sampled.is_cut else ()
            new = (*end_of_turn, *self._chat.render_continuation(tail))
            return RequestPlace(
                parent=parent,
                new_ids=new,
                prompt_ids=(*turn.context_ids, *new),
                new_messages=tail,
                request=request,
            )
        ids = tuple(self._chat.render_prompt(request.messages, request.tools))
        return RequestPlace(parent=None, new_ids=ids, prompt_ids=ids, new_messages=request.messages, request=request)

    def _pick(self, numbers: Sequence[int], call_ids: tuple[str, ...]) -> int:
        """Of turns with the same conversation, the one whose calls' ids are echoed, else the latest."""
        echoed = [number for number in numbers if call_ids and self.turns[number].call_ids == call_ids]
        return (echoed or numbers)[-1]

    def add(
        self, number: int, place: RequestPlace, sampled: SampledTurn, shown: Message, *, function: str | None
    ) -> None:
        """Record turn `number`; `shown` is its message as the client gets it, and will send it back."""
        key = _keys((*place.request.messages, shown), place.request.tools)[-1]
        self.turns[number] = RecordedTurn(
            place=place,
            sampled=sampled,
            key=key,
            call_ids=call_ids_of(number, len(shown.tool_calls), episode=self._episode),
            function=function,
        )
        self._by_key.setdefault(key, []).append(number)

    def to_turns(self, is_trained: Callable[[str | None], bool] = lambda _function: True) -> tuple[Turn, ...]:
        """The turns as a trajectory has them: conversations one after the other, each continued as far as it goes.

        Where a turn was continued twice, the second continuation is a context of its own that reads everything again,
        so that every sampled id is trained exactly once. Turns of functions that are not trained are read, not sampled,
        by those that continue them.
        """
        children: dict[int, list[int]] = {}
        starts: list[int] = []
        for number in sorted(self.turns):
            parent = self.turns[number].place.parent
            siblings = starts if parent is None else children.setdefault(parent, [])
            if parent is not None and siblings:
                starts.append(number)
            else:
                siblings.append(number)
        turns: list[Turn] = []
        for start in sorted(starts):
            is_start, read = True, ()
            number: int | None = start
            while number is not None:
                recorded = self.turns[number]
                ids = (*read, *(recorded.place.prompt_ids if is_start else recorded.place.new_ids))
                if is_trained(recorded.function):
                    messages = recorded.place.request.messages if is_start else recorded.place.new_messages
                    if turns:
                        turns[-1] = replace(turns[-1], env_messages=messages)
                    turns.append(_turn(recorded, ids, new_context=is_start and bool(turns)))
                    is_start, read = False, ()
                elif not is_start:
                    read = (*ids, *recorded.completion.token_ids)
                number = next(iter(children.get(number, ())), None)
        return tuple(turns)


def _turn(recorded: RecordedTurn, prompt_token_ids: tuple[int, ...], *, new_context: bool) -> Turn:
    message = recorded.sampled.message
    info: dict[str, Any] = {"tool_calls": len(message.tool_calls), "tool_errors": len(message.tool_errors)}
    if recorded.function is not None:
        info["function"] = recorded.function
    return Turn(
        prompt_token_ids=prompt_token_ids,
        completion=recorded.completion,
        message=message,
        env_messages=(),
        new_context=new_context,
        info=info,
    )


def call_ids_of(number: int, num_calls: int, *, episode: str = "") -> tuple[str, ...]:
    """Ids for the calls of turn `number` of an episode."""
    return tuple(f"call_{episode}{number}_{index}" for index in range(num_calls))


def _keys(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[str]:
    """A digest of each beginning of a conversation: entry i is of its first i messages."""
    offered = [[tool.name, tool.description, tool.parameters] for tool in tools]
    digest = hashlib.sha256(json.dumps(offered, sort_keys=True).encode())
    keys = [digest.hexdigest()]
    for message in messages:
        calls = [[call.name, call.arguments] for call in message.tool_calls]
        content = message.content.strip() if message.role == "assistant" else message.content  # some clients strip
        digest.update(json.dumps([message.role, content, calls], sort_keys=True).encode())
        keys.append(digest.hexdigest())
    return keys
