"""ReAct: a reply is a thought and one action, or a thought and the final answer.

    Thought: I need the capital.                        Thought: The passage says so.
    Action: search                                      Final Answer: Paris
    Action Input: {"query": "capital of France"}

As a `Message`: the thought is `reasoning`; an action is the one call, with empty `content`; `content` is the bare final
answer, so an environment sees no difference to other agents. The first `Action:` or `Final Answer:` at the start of a
line decides. Nothing behind the arguments is acted on: an observation there is the model's own invention, and
`reply_end` tells where it begins. A reply without either is the final answer as it stands. Arguments are a JSON object
for every tool: which tool takes one string is not known here, so plain text is refused with a sentence. Results come
back as `Observation: ...`.
Markers are read in any case, with spaces in front of the colon and Markdown's marks around them, and names of tools
without quotes and marks. An action called `None` is none where a final answer follows.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from agent_rl.agent.call_values import BadSyntaxError, BrokenCallError, decode_json, object_end
from agent_rl.agent.messages import Message, ToolCall, ToolCallError, ToolSpec
from agent_rl.agent.text_actions import TextActionFormat
from agent_rl.errors import UserError

_THOUGHT, _ACTION, _INPUT, _ANSWER = "Thought:", "Action:", "Action Input:", "Final Answer:"
_MARKER = re.compile(
    r"^[ \t>#]*+(?P<marks>\**+)(?:(?P<input>action[ ]input)|(?P<action>action)|(?P<answer>final[ ]answer))"
    r"(?P<closed>\**+)[ \t]*+:(?P<behind>\**+)",
    re.MULTILINE | re.IGNORECASE | re.ASCII,
)
_LABEL = re.compile(r"[>#* \t]*+thought\**+[ \t]*+:\**+", re.IGNORECASE | re.ASCII)
_AROUND_NAME = " \t\r*`'\""
_NO_TOOL = "none"
_BEFORE_OBJECT = re.compile(r"\s*+(?:`++(?:json)?+\s*+)?+")
_BEHIND_OBJECT = "` \t\r\n"
_SHAPE = f'{_ACTION} tool_name\n{_INPUT} {{"argument": ...}}'
_RULES = f"""\
Think step by step. In every reply, either use one tool:

{_THOUGHT} what you think
{_ACTION} name of the tool
{_INPUT} its arguments, a JSON object

and stop there, the result follows as an Observation; or, when you know it, give the answer:

{_THOUGHT} what you think
{_ANSWER} the answer

Where Answer: is asked for, write {_ANSWER} instead.

Tools:"""


def settled_step(message: Message) -> Message:
    """A reply as ReAct knows replies: what it says beside a call, or in front of its own `Final Answer:`, is thought.

    Raises UserError for more than one call.
    """
    if len(message.tool_calls) > 1:
        names = ", ".join(call.name for call in message.tool_calls)
        raise UserError(
            f"agent.type = 'react': a reply holds {len(message.tool_calls)} calls ({names}), but ReAct makes one call "
            "a reply; split it, or set agent.type to hf"
        )
    remark, answer = message.content, ""
    if not message.tool_calls:
        marker = _MARKER.search(message.content)
        has_marker = marker is not None and bool(marker["answer"])
        remark = message.content[: marker.start()].strip() if has_marker else ""
        answer = _answer(message.content, marker) if has_marker else message.content
    thought = "\n".join(filter(None, [message.reasoning, _without_label(remark)]))
    return replace(message, content=answer, reasoning=thought)


def write_step(message: Message) -> str:
    """A reply as text; a thought without anything is one with an empty answer. UserError for more than one call."""
    step = settled_step(message)
    lines = [f"{_THOUGHT} {step.reasoning}"] if step.reasoning else []
    for call in step.tool_calls:
        lines += [f"{_ACTION} {call.name}", f"{_INPUT} {json.dumps(call.arguments, ensure_ascii=False)}"]
    has_answer = bool(step.content or lines) and not (step.tool_calls or step.tool_errors)
    return "\n".join([*lines, f"{_ANSWER} {step.content}".rstrip()] if has_answer else lines)


def read_step(text: str) -> Message:
    """The reply in a text; broken actions become `tool_errors`, nothing raises. Linear in the text."""
    first = _MARKER.search(text)
    if first is None:
        return Message.assistant(text)
    thought = _without_label(text[: first.start()].strip())
    marker = _answer_in_place_of(text, first) or first
    if marker["answer"]:
        return Message(role="assistant", content=_answer(text, marker), reasoning=thought)
    try:
        name, start, end = _find_action(text, marker)
        call = ToolCall(name=name, arguments=decode_json(text[start:end]), span=(marker.start(), end))
    except BrokenCallError as error:
        advice = "" if isinstance(error, BadSyntaxError) else f" Write {_SHAPE}"
        broken = ToolCallError(kind=error.kind, message=error.message + advice, span=(marker.start(), len(text)))
        return Message(role="assistant", content="", reasoning=thought, tool_errors=(broken,))
    return Message(role="assistant", content="", reasoning=thought, tool_calls=(call,))


def closes_action(text: str) -> bool:
    """Whether the reply in a text is an action whose arguments are closed, so that what follows changes nothing."""
    marker = _MARKER.search(text)
    if marker is None or marker["answer"]:
        return False
    try:
        name, _, _ = _find_action(text, marker)
    except BrokenCallError:
        return False
    return name.lower() != _NO_TOOL


def _find_action(text: str, marker: re.Match[str]) -> tuple[str, int, int]:
    """Name of the action at `marker`, start and end of its arguments; BrokenCallError names what is wrong with it."""
    if marker["input"]:
        raise BrokenCallError("no_name", f"No {_ACTION} with the name of a tool stands in front of {_INPUT}")
    following = _MARKER.search(text, marker.end())
    if following is None or not following["input"]:
        raise BrokenCallError("unclosed", f"The action is not finished: no {_INPUT} follows.")
    name = _name(text[marker.end() : following.start()])
    if not name:
        raise BrokenCallError("no_name", f"No name of a tool stands behind {_ACTION}")
    start = _BEFORE_OBJECT.match(text, following.end()).end()
    if start == len(text):
        raise BrokenCallError("unclosed", f"The action is not finished: nothing follows {_INPUT}")
    if not text.startswith("{", start):
        raise BrokenCallError("not_an_object", f"{_INPUT} must be a JSON object, got other text.")
    return name, start, object_end(text, start)


def _answer_in_place_of(text: str, action: re.Match[str]) -> re.Match[str] | None:
    """The final answer that follows an action which is none."""
    markers = _MARKER.finditer(text, action.end())
    following = next(markers, None)
    if not action["action"] or following is None:
        return None
    if _name(text[action.end() : following.start()]).lower() != _NO_TOOL:
        return None
    return next((marker for marker in (following, *markers) if marker["answer"]), None)


def _name(text: str) -> str:
    return text.strip().partition("\n")[0].strip(_AROUND_NAME)


def _answer(text: str, marker: re.Match[str]) -> str:
    """What stands behind a marker, without the Markdown marks that were opened in front of it and closed at the end."""
    answer = text[marker.end() :].strip()
    is_open = marker["marks"] and not (marker["closed"] or marker["behind"])
    return answer.removesuffix(marker["marks"]).rstrip() if is_open else answer


def _without_label(thought: str) -> str:
    label = _LABEL.match(thought)
    return thought[label.end() :].strip() if label else thought.strip()


class ReactFormat(TextActionFormat):
    """Thought, Action and Action Input, or Final Answer. Without tools the prompt stays as it is."""

    result_label = "Observation: "
    settled = staticmethod(settled_step)
    read = staticmethod(read_step)

    def rules(self, tools: Sequence[ToolSpec]) -> str:
        listing = [json.dumps(tool.to_openai()["function"], ensure_ascii=False) for tool in tools]
        return "\n".join([_RULES, *listing]) if tools else ""

    def write(self, message: Message) -> Message:
        return Message.assistant(write_step(message))

    def reply_end(self, token_ids: Sequence[int]) -> int | None:
        """As `ChatFormat.reply_end`: behind the id that closes the arguments of the first action.

        A turn that ends there, be it behind blanks and the end of a fence, was ended by the model.
        """
        ids = list(token_ids)
        has_stop = bool(ids) and ids[-1] in self.stop_token_ids
        start, end = self._reply_span(ids[: len(ids) - has_stop])

        def is_closed_at(stop: int) -> bool:
            return closes_action(self._encoder.decode(ids[start:stop]))

        if not is_closed_at(end):
            return None
        stops = range(start, end + 1)
        stop = stops[bisect_left(stops, True, key=is_closed_at)]
        was_ended = has_stop and not self._encoder.decode(ids[stop:-1]).strip(_BEHIND_OBJECT)
        return None if was_ended else stop
