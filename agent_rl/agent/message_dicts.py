"""Messages as dictionaries, as datasets and other libraries have them: `{"role": "user", "content": "2 + 2?"}`.

Not here: chat templates (`chat_template.py`), records of transcripts.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from agent_rl.agent.call_values import BrokenCallError, decode_json
from agent_rl.agent.messages import Message, Role, ToolCall, ToolSpec
from agent_rl.errors import DataError, nearest_or_all

ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")
_PROTOCOL_ROLES: dict[str, Role] = {"developer": "system"} | {role: role for role in ROLES}
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
_KEYS = ("role", "content", "name", "tool_calls", "reasoning_content", "tool_call_id")


def to_dict(message: Message) -> dict[str, Any]:
    """The message as a dictionary; `reasoning_content`, `tool_calls` (OpenAI's form) and `name` where it has them."""
    made: dict[str, Any] = {"role": message.role}
    if message.name is not None:
        made["name"] = message.name
    made["content"] = message.content
    if message.reasoning:
        made["reasoning_content"] = message.reasoning
    if message.tool_calls:
        calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
        made["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    return made


def read_messages(given: Any, where: str) -> tuple[Message, ...]:
    """The messages of a list of dictionaries; keys that hold None count as absent, as columns of datasets have them.

    DataError, opened by `where`, for anything that is no conversation a model can be asked to continue: it has to end
    with a message of the user or of a tool, and a system message may only come first.
    """
    if not isinstance(given, list | tuple) or not given:
        raise DataError(f"{where} is {given!r:.80}; make it a text that is not empty, or a list of chat messages")
    messages = tuple(read_message(message, f"{where}[{at}]") for at, message in enumerate(given))
    if any(message.role == "system" for message in messages[1:]):
        raise DataError(f"{where} has a system message behind others; put it first")
    if messages[-1].role not in ("user", "tool"):
        raise DataError(f"{where} ends with a message of the role {messages[-1].role!r}; end it with the user's")
    return messages


def read_prompt(given: Any, where: str) -> tuple[Message, ...]:
    """The messages of a prompt: a text is one of the user's, anything else is for `read_messages`."""
    return (Message.user(given),) if isinstance(given, str) and given.strip() else read_messages(given, where)


def read_message(given: Any, where: str) -> Message:
    """One message; DataError, opened by `where`, for what is none."""
    if not isinstance(given, Mapping):
        raise DataError(f"{where} is {given!r:.80}; make it a message such as {{'role': 'user', 'content': '2 + 2?'}}")
    present = {key: value for key, value in given.items() if value is not None}
    for key in present:
        if key not in _KEYS:
            raise DataError(f"{where} has the key {key!r:.60}{nearest_or_all(key, _KEYS)}")
    role, content = present.get("role"), present.get("content", "")
    if role not in ROLES:
        raise DataError(f"{where} has the role {role!r:.60}; use {', '.join(ROLES)}")
    if not isinstance(content, str) or ("content" not in present and "tool_calls" not in present):
        raise DataError(f"{where} has the content {present.get('content')!r:.60}; make it a text")
    for key in ("name", "reasoning_content"):
        if not isinstance(present.get(key, ""), str):
            raise DataError(f"{where} has the {key} {present[key]!r:.60}; make it a text")
    if role != "assistant" and {"tool_calls", "reasoning_content"} & present.keys():
        raise DataError(f"{where} has the role {role!r}, and only an assistant's message calls tools or reasons")
    return Message(
        role=role,
        content=content,
        name=present.get("name"),
        reasoning=present.get("reasoning_content", ""),
        tool_calls=_read_calls(present.get("tool_calls", []), where),
    )


def check_message(message: Message, where: str) -> None:
    """DataError, opened by `where`, for a message that no template can render, as its class checks no types."""
    if message.role not in ROLES:
        raise DataError(f"{where} has the role {message.role!r:.60}; use {', '.join(ROLES)}")
    name = "" if message.name is None else message.name
    texts = {"content": message.content, "reasoning": message.reasoning, "name": name}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise DataError(f"{where} has the {key} {text!r:.60}; make it a text")
    if not isinstance(message.tool_calls, list | tuple):
        raise DataError(f"{where} has the tool_calls {message.tool_calls!r:.60}; make it a tuple of ToolCall")
    for call in message.tool_calls:
        is_call = isinstance(call, ToolCall) and isinstance(call.name, str) and isinstance(call.arguments, Mapping)
        if not is_call:
            raise DataError(f"{where} has the tool call {call!r:.80}; make it a ToolCall of a name and an object")
        arguments, problem = _read_arguments(call.arguments)
        if arguments is None:
            raise DataError(f"{where} has the arguments {_shown(call.arguments)}; {problem}")


def _read_calls(given: Any, where: str) -> tuple[ToolCall, ...]:
    calls = []
    for call in given if isinstance(given, list | tuple) else [given]:
        _, made = read_call(call, where)
        if (call.get("function") or call).get("arguments") is None:
            raise DataError(f"{where} has the tool call {call!r:.80}; give it a name and arguments, an object")
        calls.append(made)
    return tuple(calls)


# Conversations of OpenAI's protocol: other keys are left alone, contents may be parts


def read_chat(given: Any, where: str) -> tuple[tuple[Message, ...], tuple[tuple[str, ...], ...]]:
    """The messages of a conversation as clients of OpenAI's protocol send it, and the ids of the calls of each.

    An answer is named by the call whose id it gives; without an id by its own name, or by a call without an id, where
    its message has no second one. DataError, which names the message behind `where`.
    """
    if not isinstance(given, list | tuple) or not given:
        raise DataError(f"{where} is {given!r:.80}; expected a list with at least one message")
    names: dict[str, str] = {}
    """Tool of each call, by the call's id."""
    messages, call_ids = [], []
    for number, row in enumerate(given):
        at = f"{where}[{number}]"
        named = row.get("role") if isinstance(row, Mapping) else row
        role = _PROTOCOL_ROLES.get(named) if isinstance(named, str) else None
        if not isinstance(row, Mapping) or role is None:
            raise DataError(f"{at}.role is {named!r:.80}; expected one of {', '.join(_PROTOCOL_ROLES)}")
        calls = _calls_of(row, f"{at}.tool_calls") if role == "assistant" else []
        names |= {call_id: call.name for call_id, call in calls}
        call_ids.append(tuple(call_id for call_id, _ in calls))
        if call_ids[-1].count("") > 1:
            del names[""]
        messages.append(_of_protocol(row, role, names, tuple(call for _, call in calls), f"{at}.content"))
    return tuple(messages), tuple(call_ids)


def _of_protocol(
    row: Mapping[str, Any], role: Role, names: Mapping[str, str], calls: tuple[ToolCall, ...], where: str
) -> Message:
    content, name, thought = read_text(row.get("content"), where), row.get("name"), row.get("reasoning_content")
    if role == "tool":
        call_id, own = _id(row.get("tool_call_id")), name if isinstance(name, str) else None
        called = names.get(call_id)
        return Message.tool(content, called or own if call_id else own or called)
    reasoning = thought if role == "assistant" and isinstance(thought, str) else ""
    return Message(role=role, content=content, tool_calls=calls, reasoning=reasoning)


def _id(given: Any) -> str:
    return "" if given is None else str(given)


def read_text(content: Any, where: str) -> str:
    """The text of a content: a text, None, or a list of text parts; DataError for anything else, such as images."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list | tuple):
        raise DataError(f"{where} is {content!r:.80}; expected a text or a list of text parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("refusal" if kind == "refusal" else "text") if kind in _TEXT_PARTS else None
        if not isinstance(text, str):
            raise DataError(f"{where} has the part {part!r:.80}; only text can be shown to the model")
        texts.append(text)
    return "".join(texts)


def read_call(given: Any, where: str) -> tuple[str, ToolCall]:
    """The id ("" without one) and the call of `{id, function: {name, arguments}}`; arguments are an object, or its text
    as JSON, and are read as those of a call that a model wrote. Missing are None and an empty text. DataError."""
    function = (given.get("function") or given) if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise DataError(f"{where} has the tool call {_shown(given)}; expected {{id, function: {{name, arguments}}}}")
    arguments, problem = _read_arguments(function.get("arguments"), _object_of)
    if arguments is None:
        raise DataError(f"{where} has the arguments {_shown(function['arguments'])}; {problem}")
    return _id(given.get("id")), ToolCall(name=function["name"], arguments=arguments)


def _read_arguments(given: Any, read_other: Callable[[Any], Any] | None = None) -> tuple[dict[str, Any] | None, str]:
    """Arguments as a model could have written them; None for others, and what is wrong with them."""
    problem = "expected a JSON object, or its text"
    if given is None or given == "":
        return {}, ""
    if not isinstance(given, str | Mapping):
        return None, problem
    try:
        arguments = decode_json(given if isinstance(given, str) else json.dumps(given, default=read_other))
    except BrokenCallError as error:
        return None, error.message.rstrip(".")
    except (TypeError, ValueError, RecursionError) as error:
        return None, f"JSON cannot hold them ({error})"
    return arguments if isinstance(arguments, dict) else None, problem


def _object_of(value: Any) -> dict[Any, Any]:
    """For `json.dumps`, which takes no mapping but a dictionary."""
    if not isinstance(value, Mapping):
        raise TypeError(f"it has no {type(value).__name__}")
    return dict(value)


def _shown(value: Any) -> str:
    """The value's beginning; of what `repr` fails for, such as what is nested too deeply, the type."""
    try:
        return f"{value!r:.80}"
    except (RecursionError, ValueError):
        return f"a {type(value).__name__} that cannot be shown"


def read_tools(given: Any, where: str) -> tuple[ToolSpec, ...]:
    """The tools of a list `[{type: function, function: {name, description, parameters}}]`; None is none. DataError."""
    if given is None:
        return ()
    if not isinstance(given, list | tuple):
        raise DataError(f"{where} is {given!r:.80}; expected a list")
    return tuple(_read_tool(tool, f"{where}[{number}]") for number, tool in enumerate(given))


def _read_tool(tool: Any, where: str) -> ToolSpec:
    is_function = isinstance(tool, Mapping) and tool.get("type", "function") == "function"
    function = tool.get("function") if is_function else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise DataError(f"{where} is {tool!r:.80}; expected {{type: function, function: {{name, ...}}}}")
    description, parameters = function.get("description") or "", function.get("parameters")
    if not isinstance(description, str) or not isinstance(parameters, Mapping | None):
        raise DataError(f"{where}: description must be a text and parameters a JSON schema")
    if parameters is None:
        return ToolSpec(name=function["name"], description=description)
    return ToolSpec(name=function["name"], description=description, parameters=dict(parameters))


def _calls_of(row: Mapping[str, Any], where: str) -> list[tuple[str, ToolCall]]:
    given = row.get("tool_calls")
    if given is None:
        return []
    if not isinstance(given, list | tuple):
        raise DataError(f"{where} is {given!r:.80}; expected a list")
    return [read_call(call, where) for call in given]
