"""Conversations of one's own as training samples: rows of OpenAI's messages, tool calls included.

    {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}], "tools": [...]}
    {"prompt": "2 + 2?", "completion": "4"}

Rendered by the same `ChatFormat` as in rollouts, so that a model later meets the ids it was trained on. Trained are the
ids of all assistant messages but those with `"weight": 0`, as in OpenAI's fine-tuning files. Not here: files, training
(`chat_sft.py`).
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from agent_rl.agent.chat_format import ChatFormat
from agent_rl.agent.message_dicts import read_chat, read_tools
from agent_rl.agent.messages import Message, ToolSpec
from agent_rl.errors import SAME_MEANING, DataError, nearest
from agent_rl.learning.sft import render_conversation
from agent_rl.records import TrainingSample

_KEYS = ("messages", "tools", "prompt", "completion", "task_id")


class Conversed(NamedTuple):
    """A row, read."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    unlearned: frozenset[int] = frozenset()
    """Assistant messages that are read and not learned, by their number among those of the assistant."""


def read_conversation(row: Mapping[str, Any], where: str) -> Conversed:
    """A row's conversation; keys that hold None count as absent. DataError, opened by `where`."""
    present = {key: value for key, value in row.items() if value is not None}
    if other := _other_format(present):
        raise DataError(f"{where}: {other}")
    if "messages" in present:
        given: Any = present["messages"]
    elif "prompt" in present and "completion" in present:
        prompt, completion = present["prompt"], present["completion"]
        opening = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        reply = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
        if not isinstance(opening, list | tuple) or not isinstance(reply, list | tuple):
            raise DataError(f"{where}: prompt and completion must be texts or lists of messages")
        given = [*opening, *reply]
    else:
        hints = [nearest(key, _KEYS, SAME_MEANING) for key in present if key not in _KEYS]
        columns = f"; its columns are {', '.join(present)}" if present else ""
        hint = next(filter(None, hints), columns)
        raise DataError(f"{where}: the row has neither 'messages' nor 'prompt' and 'completion'{hint}")
    messages, _ = read_chat(given, f"{where}: messages")
    _check(messages, where)
    unlearned = _unlearned(given, where)
    replies = [message for message in messages if message.role == "assistant"]
    for number, reply in enumerate(replies):
        if number not in unlearned and not (reply.content.strip() or reply.tool_calls or reply.reasoning):
            raise DataError(
                f"{where} has an empty message of the assistant, so the model would learn to say nothing; give it a "
                "text, or leave the row out"
            )
    return Conversed(messages, read_tools(present.get("tools"), f"{where}: tools"), unlearned)


def _other_format(row: Mapping[str, Any]) -> str:
    """What to do with a row as ShareGPT and Alpaca have them, or with messages under another name; else empty."""
    for name, value in row.items():
        first = value[0] if isinstance(value, list | tuple) and value else None
        keys = set(first) if isinstance(first, Mapping) else set()
        if {"from", "value"} <= keys:
            return (
                f"{name!r} holds 'from' and 'value', as ShareGPT has them; make a column 'messages' of it, with 'role' "
                "(human is user, gpt is assistant) and 'content'"
            )
        if {"role", "content"} <= keys and name not in _KEYS and "messages" not in row:
            return f"{name!r} holds the messages; call the column 'messages'"
    if {"instruction", "output"} <= set(row) and not {"messages", "prompt", "completion"} & set(row):
        return "the row has 'instruction' and 'output', as Alpaca has them; call them 'prompt' and 'completion'"
    return ""


def _unlearned(given: Sequence[Any], where: str) -> frozenset[int]:
    weights = [each.get("weight") for each in given if isinstance(each, Mapping) and each.get("role") == "assistant"]
    if wrong := [weight for weight in weights if weight not in (None, 0, 1)]:
        raise DataError(f"{where}: weight is {wrong[0]!r:.80} in a message; it is 0, read and not learned, or 1")
    if weights and all(weight == 0 for weight in weights):
        raise DataError(f"{where}: all messages of the assistant have the weight 0, so there is nothing to learn")
    return frozenset(number for number, weight in enumerate(weights) if weight == 0)


def _check(messages: Sequence[Message], where: str) -> None:
    if messages[0].role == "assistant":
        raise DataError(f"{where} begins with the assistant's message; a model is trained to answer, so put one before")
    if messages[-1].role != "assistant":
        raise DataError(f"{where} ends with a message of the role {messages[-1].role!r}; end it with the assistant's")
    if any(message.role == "system" for message in messages[1:]):
        raise DataError(f"{where} has a system message behind others; put it first")
    if any(one.role == other.role == "assistant" for one, other in pairwise(messages)):
        raise DataError(f"{where} has two assistant messages in a row; put them into one")


def conversation_sample(
    chat: ChatFormat, messages: Sequence[Message], tools: Sequence[ToolSpec], unlearned: Collection[int] = ()
) -> TrainingSample:
    """Ids of the conversation, 1 in the mask for those of assistant messages that are learned; advantages and log-probs
    are 0."""
    replies = [number for number, message in enumerate(messages) if message.role == "assistant"]
    turns = [(messages[start], messages[start + 1 : end]) for start, end in pairwise([*replies, len(messages)])]
    rendered = render_conversation(chat, messages[: replies[0]], turns, tools, unlearned=unlearned)
    nothing = (0.0,) * len(rendered.token_ids)
    return TrainingSample(
        token_ids=tuple(rendered.token_ids),
        loss_mask=tuple(rendered.loss_mask),
        sampling_logprobs=nothing,
        advantages=nothing,
    )
