"""ReAct: a reply is a thought and one action, or a thought and the final answer.

    Thought: I need the capital.                        Thought: The passage says so.
    Action: search                                      Final Answer: Paris
    Action Input: {"query": "capital of France"}

As a `Message`: the thought is `reasoning`; an action is the one call, with empty `content`; `content` is the bare final
answer, so an environment sees no difference to other agents. The first `Action:` or `Final Answer:` at the start of a
line decides. Nothing behind the arguments is acted on: an observation there is the model's own invention. A reply
without either is the final answer as it stands. Arguments are a JSON object for every tool: which tool takes one string
is not known here, so plain text is refused with a sentence. Results come back as `Observation: ...`.
"""

import json
import re
from collections.abc import Sequence

from agent_rl.agent.call_values import BadSyntaxError, BrokenCallError, decode_json, object_end
from agent_rl.agent.messages import Message, ToolCall, ToolCallError, ToolSpec
from agent_rl.agent.text_actions import TextActionFormat
from agent_rl.errors import UserError

_THOUGHT, _ACTION, _INPUT, _ANSWER = "Thought:", "Action:", "Action Input:", "Final Answer:"
_MARKER = re.compile(rf"^[ \t]*+({_INPUT}|{_ACTION}|{_ANSWER})", re.MULTILINE)
_BEFORE_OBJECT = re.compile(r"\s*+(?:```(?:json)?+\s*+)?+")
_SHAPE = f'{_ACTION} tool_name\n{_INPUT} {{"argument": ...}}'
_RULES = f"""\
Think step by step. In every reply, either use one tool:

{_THOUGHT} what you think
{_ACTION} name of the tool
{_INPUT} its arguments, a JSON object

and stop there, the result follows as an Observation; or, when you know it, give the answer:

{_THOUGHT} what you think
{_ANSWER} the answer

Tools:"""


class ReactFormat(TextActionFormat):
    """Thought, Action and Action Input, or Final Answer. Without tools the prompt stays as it is."""

    result_label = "Observation: "

    def rules(self, tools: Sequence[ToolSpec]) -> str:
        return "\n".join([_RULES, *(_listing(tool) for tool in tools)]) if tools else ""

    def write(self, message: Message) -> Message:
        return Message.assistant(write_step(message))

    def read(self, text: str) -> Message:
        return read_step(text)


def _listing(tool: ToolSpec) -> str:
    return json.dumps(tool.to_openai()["function"], ensure_ascii=False)


def write_step(message: Message) -> str:
    """A reply as text. What it says beside a call, or in front of its own `Final Answer:`, is part of the thought.

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
        has_marker = marker is not None and marker[1] == _ANSWER
        remark = message.content[: marker.start()].strip() if has_marker else ""
        answer = message.content[marker.end() :].strip() if has_marker else message.content
    thought = "\n".join(filter(None, [message.reasoning, _without_label(remark)]))
    lines = [f"{_THOUGHT} {thought}"] if thought else []
    for call in message.tool_calls:
        lines += [f"{_ACTION} {call.name}", f"{_INPUT} {json.dumps(call.arguments, ensure_ascii=False)}"]
    return "\n".join([*lines, f"{_ANSWER} {answer}"] if answer else lines)


def read_step(text: str) -> Message:
    """The reply in a text; broken actions become `tool_errors`, nothing raises. Linear in the text."""
    marker = _MARKER.search(text)
    if marker is None:
        return Message.assistant(text)
    thought = _without_label(text[: marker.start()].strip())
    if marker[1] == _ANSWER:
        return Message(role="assistant", content=text[marker.end() :].strip(), reasoning=thought)
    try:
        call = _read_action(text, marker)
    except BrokenCallError as error:
        advice = "" if isinstance(error, BadSyntaxError) else f" Write {_SHAPE}"
        broken = ToolCallError(kind=error.kind, message=error.message + advice, span=(marker.start(), len(text)))
        return Message(role="assistant", content="", reasoning=thought, tool_errors=(broken,))
    return Message(role="assistant", content="", reasoning=thought, tool_calls=(call,))


def _read_action(text: str, marker: re.Match[str]) -> ToolCall:
    """The call whose `Action:` or `Action Input:` is at `marker`; BrokenCallError says what is wrong with it."""
    if marker[1] == _INPUT:
        raise BrokenCallError("no_name", f"No {_ACTION} with the name of a tool stands in front of {_INPUT}")
    arguments_marker = _MARKER.search(text, marker.end())
    if arguments_marker is None or arguments_marker[1] != _INPUT:
        raise BrokenCallError("unclosed", f"The action is not finished: no {_INPUT} follows.")
    name = text[marker.end() : arguments_marker.start()].strip().partition("\n")[0].rstrip()
    if not name:
        raise BrokenCallError("no_name", f"No name of a tool stands behind {_ACTION}")
    start = _BEFORE_OBJECT.match(text, arguments_marker.end()).end()
    if start == len(text):
        raise BrokenCallError("unclosed", f"The action is not finished: nothing follows {_INPUT}")
    if not text.startswith("{", start):
        raise BrokenCallError("not_an_object", f"{_INPUT} must be a JSON object, got other text.")
    end = object_end(text, start)
    return ToolCall(name=name, arguments=decode_json(text[start:end]), span=(marker.start(), end))


def _without_label(thought: str) -> str:
    return thought.removeprefix(_THOUGHT).strip()
