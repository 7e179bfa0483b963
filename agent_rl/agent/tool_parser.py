"""Text of a reply to tool calls, and back: the ways Hermes, Qwen, MiniMind, Mistral and Llama models write calls.

    <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>
    [TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, ...]      [TOOL_CALLS]add[ARGS]{"a": 1}
    <|python_tag|>{"name": "add", "parameters": {"a": 1}}; ...      <|python_tag|>add.call(a=1)
    <function=add>{"a": 1}</function>                               {"name": "add", "arguments": {"a": 1}}

The opening tag tells them apart. The last form has none, so there the call must be the whole reply. A call ends
where its value ends, not at the first closing tag, so a call that writes a file holding `</tool_call>` survives.
Whatever a model writes gives calls or errors, never an exception, in time linear in the text.
This module does not know which tools exist: names and arguments are checked where the tools are.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn

from agent_rl.agent.call_values import (
    OPENER,
    BadSyntaxError,
    BrokenCallError,
    decode_json,
    name_and_arguments,
    object_end,
    parenthesis_end,
    python_arguments,
)
from agent_rl.agent.messages import Message, ParsedReply, ToolCall, ToolCallError

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
MISTRAL_OPEN = "[TOOL_CALLS]"
LLAMA_OPEN = "<|python_tag|>"
FUNCTION_CLOSE = "</function>"

_HERMES_SHAPE = f'{CALL_OPEN}\n{{"name": "tool", "arguments": {{...}}}}\n{CALL_CLOSE}'
_MISTRAL_SHAPE = f'{MISTRAL_OPEN} [{{"name": "tool", "arguments": {{...}}}}]'
_MISTRAL_NAMED_SHAPE = f"{MISTRAL_OPEN}tool[ARGS]{{...}}"
_LLAMA_SHAPE = f'{LLAMA_OPEN}{{"name": "tool", "parameters": {{...}}}}'
_PYTHON_SHAPE = f'{LLAMA_OPEN}tool.call(key="value")'
_FUNCTION_SHAPE = f"<function=tool>{{...}}{FUNCTION_CLOSE}"
_BARE_SHAPE = '{"name": "tool", "arguments": {...}}'

_SPACE = re.compile(r"\s*+")
_BETWEEN_ROW = re.compile(r"(?:\s*+;)?+(?:\s*+(?=\{))?+")
_MISTRAL_NAME = re.compile(r'([^\s{}\[\]"<]++)\s*+(?:\[CALL_ID\][^\s{}\[\]"<]*+)?+(?:\[ARGS\])?+\s*+(?=\{)')
_PYTHON_NAME = re.compile(r"\s*+;?+\s*+([\w.\-]+)\.call\s*+(?=\()")
_FUNCTION_NAME = re.compile(r"([^<>\n]*+)>\s*+")
_FENCE = re.compile(r"```json\s*+")
_STRING = r'"(?:[^"\\]++|\\.)++"\s*+'
_BARE_START = re.compile(
    rf'\{{\s*+(?:"(?:id|type)"\s*+:\s*+{_STRING},\s*+)*+(?:"function"\s*+:\s*+\{{\s*+)?+'
    rf'"name"\s*+:\s*+{_STRING},\s*+"(?:arguments|parameters)"\s*+:',
    re.DOTALL,
)


class CallStyle(StrEnum):
    """How a family of models marks its calls."""

    HERMES = "hermes"
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one block a call; Qwen and MiniMind too."""
    LLAMA = "llama"
    """`<|python_tag|>{"name": ..., "parameters": {...}}`, further ones behind `; `."""
    MISTRAL = "mistral"
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, one list of all calls."""


def parse_tool_calls(text: str) -> ParsedReply:
    """Take a reply apart into text, calls and broken calls, each in order.

    Arguments are under `arguments` or `parameters`: an object, a string that holds one, or missing (`{}`). After a
    broken call the search continues after what was read of it.
    A reply that is one JSON value as a whole, or begins as nothing but a call can, is a call or content by its shape;
    tags in its strings are not looked at.
    """
    bare = _read_bare(text)
    if bare is not None:
        return bare
    found: list[ToolCall | ToolCallError] = []
    position = scanned = 0
    while opener := OPENER.search(text, position):
        position = opener.end()
        tag = opener.group()
        if tag == CALL_OPEN:
            item, stop = _read_hermes(text, opener.start())
            items, scanned = [item], max(scanned, stop)
        elif opener.start() < scanned:
            # In a string of the broken call before it.
            continue
        elif tag == MISTRAL_OPEN:
            items = _read_mistral(text, opener.start(), opener.end())
        elif tag == LLAMA_OPEN:
            items = _read_llama(text, opener.start(), opener.end())
        else:
            items = [_read_function(text, opener.start(), opener.end())]
        found += items
        position = found[-1].span[1]
    return _reply(text, found)


def write_calls(calls: Sequence[ToolCall], style: CallStyle) -> list[tuple[str, bool]]:
    """The calls as a model should write them: pieces (text, is_markup) in order; none for no calls.

    Markup may hold special tokens; the other pieces are plain text, whatever they hold.
    """
    if not calls:
        return []
    if style is CallStyle.MISTRAL:
        return [(f"{MISTRAL_OPEN} ", True), (f"[{', '.join(map(dump_call, calls))}]", False)]
    if style is CallStyle.LLAMA:
        return [(LLAMA_OPEN, True), ("; ".join(_dump(call, "parameters") for call in calls), False)]
    pieces: list[tuple[str, bool]] = []
    for call in calls:
        separator = "\n" if pieces else ""
        pieces += [(f"{separator}{CALL_OPEN}\n", True), (dump_call(call), False), (f"\n{CALL_CLOSE}", True)]
    return pieces


def reply_text(message: Message) -> str:
    """The whole reply as text, calls included."""
    if message.written:
        return message.written
    calls = "".join(text for text, _ in write_calls(message.tool_calls, CallStyle.HERMES))
    return "\n".join(filter(None, (message.content, calls)))


def dump_call(call: ToolCall) -> str:
    """The JSON of a call as the model should write it, tags not included; other scripts stay readable."""
    return _dump(call, "arguments")


def _dump(call: ToolCall, arguments_key: str) -> str:
    return json.dumps({"name": call.name, arguments_key: call.arguments}, ensure_ascii=False)


def _reply(text: str, found: Sequence[ToolCall | ToolCallError]) -> ParsedReply:
    content, position = [], 0
    for item in found:
        content.append(text[position : item.span[0]])
        position = item.span[1]
    content.append(text[position:])
    return ParsedReply(
        content="".join(content).strip(),
        calls=tuple(item for item in found if isinstance(item, ToolCall)),
        errors=tuple(item for item in found if isinstance(item, ToolCallError)),
    )


def _skip_space(text: str, position: int) -> int:
    return _SPACE.match(text, position).end()


def _broken(error: BrokenCallError, span: tuple[int, int], shape: str) -> ToolCallError:
    return ToolCallError(kind=error.kind, message=f"{error.message} Write {shape}", span=span)


def _next_opener(text: str, position: int) -> int:
    """Where the next call begins, else the end of the text."""
    opener = OPENER.search(text, position)
    return opener.start() if opener else len(text)


# Hermes: an object between tags.


def _read_hermes(text: str, start: int) -> tuple[ToolCall | ToolCallError, int]:
    """The call whose opening tag is at `start`, and how far an object was looked for."""
    body = _skip_space(text, start + len(CALL_OPEN))
    scanned, end_of_object = body, None
    if text.startswith("{", body):
        try:
            scanned = end_of_object = object_end(text, body)
        except BrokenCallError as error:
            scanned = error.stop
    try:
        if end_of_object is None:
            _explain_without_object(text, body)
        name, arguments = name_and_arguments(decode_json(text[body:end_of_object]))
        close = _skip_space(text, end_of_object)
        if not text.startswith(CALL_CLOSE, close):
            _explain_missing_close(text, end_of_object)
    except BadSyntaxError as error:
        return ToolCallError(kind=error.kind, message=error.message, span=(start, _hermes_end(text, start))), scanned
    except BrokenCallError as error:
        return _broken(error, (start, _hermes_end(text, start)), _HERMES_SHAPE), scanned
    return ToolCall(name=name, arguments=arguments, span=(start, close + len(CALL_CLOSE))), scanned


def _explain_without_object(text: str, body: int) -> NoReturn:
    """The text at `body` is no complete object: raise the reason."""
    close = _find_close(text, body)
    if close is None:
        raise BrokenCallError("unclosed", f"The call is not finished: no {CALL_CLOSE} follows.")
    value = decode_json(text[body:close].rstrip())
    raise BrokenCallError("not_an_object", f"A call must be a JSON object, got {type(value).__name__}.")


def _explain_missing_close(text: str, end_of_object: int) -> NoReturn:
    if _find_close(text, end_of_object) is None:
        raise BrokenCallError("unclosed", f"No {CALL_CLOSE} follows the JSON object.")
    raise BrokenCallError("bad_json", f"Between the JSON object and {CALL_CLOSE} stands other text.")


def _find_close(text: str, start: int) -> int | None:
    """Index of the first closing tag in front of the next opening tag."""
    next_open = text.find(CALL_OPEN, start)
    close = text.find(CALL_CLOSE, start, next_open if next_open >= 0 else len(text))
    return close if close >= 0 else None


def _hermes_end(text: str, start: int) -> int:
    """Where a broken call ends: behind its closing tag, else at the next opening tag, else with the text."""
    body = start + len(CALL_OPEN)
    close = _find_close(text, body)
    if close is not None:
        return close + len(CALL_CLOSE)
    next_open = text.find(CALL_OPEN, body)
    return next_open if next_open >= 0 else len(text)


# Rows of objects: Mistral, Llama, bare JSON.


@dataclass(slots=True, kw_only=True)
class _ParsedRow:
    """A list `[{...}, {...}]`, or objects separated by `;` or white space."""

    objects: list[tuple[int, int]]
    """Start and end of each."""
    end: int
    """Behind the last bracket or brace, or where reading stopped."""
    complaint: BrokenCallError | None = None
    """Why it could not be read to its end."""


def _split_row(text: str, start: int) -> _ParsedRow:
    """The row whose bracket or first brace is at `start`."""
    is_list = text.startswith("[", start)
    position = _skip_space(text, start + is_list)
    objects: list[tuple[int, int]] = []
    while text.startswith("{", position):
        try:
            end = object_end(text, position)
        except BrokenCallError as error:
            return _ParsedRow(objects=objects, end=error.stop, complaint=error)
        if not is_list:
            objects.append((position, end))
            position = _BETWEEN_ROW.match(text, end).end()
            if not text.startswith("{", position):
                return _ParsedRow(objects=objects, end=position)
            continue
        behind = _skip_space(text, end)
        if text.startswith("]", behind):
            return _ParsedRow(objects=[*objects, (position, end)], end=behind + 1)
        if not text.startswith(",", behind):
            complaint = BrokenCallError("unclosed", "Neither ',' nor ']' follows an object of the list.")
            return _ParsedRow(objects=objects, end=end, complaint=complaint)
        objects.append((position, end))
        position = _skip_space(text, behind + 1)
    complaint = BrokenCallError("not_an_object", "The list holds something else than JSON objects, or nothing.")
    if position == len(text):
        complaint = BrokenCallError("unclosed", "The list is not finished: no ']' closes it.")
    return _ParsedRow(objects=objects, end=position, complaint=complaint)


def _read_row(text: str, start: int, row: _ParsedRow, shape: str) -> list[ToolCall | ToolCallError]:
    """The calls of a row whose tag is at `start`; their spans touch each other."""
    items: list[ToolCall | ToolCallError] = []
    for begin, end in row.objects:
        is_last = end == row.objects[-1][1] and row.complaint is None
        span = (start, row.end if is_last else end)
        try:
            name, arguments = name_and_arguments(decode_json(text[begin:end]))
            items.append(ToolCall(name=name, arguments=arguments, span=span))
        except BrokenCallError as error:
            items.append(_broken(error, span, shape))
        start = end
    if row.complaint:
        items.append(_broken(row.complaint, (start, _next_opener(text, row.end)), shape))
    return items


def _read_mistral(text: str, start: int, body: int) -> list[ToolCall | ToolCallError]:
    """The calls behind one `[TOOL_CALLS]` at `start`."""
    body = _skip_space(text, body)
    if name := _MISTRAL_NAME.match(text, body):
        return [_read_named(text, start, name, _MISTRAL_NAMED_SHAPE)]
    if text.startswith(("{", "["), body) and not OPENER.match(text, body):
        return _read_row(text, start, _split_row(text, body), _MISTRAL_SHAPE)
    return [_nothing_readable(text, start, body, _MISTRAL_SHAPE)]


def _read_llama(text: str, start: int, body: int) -> list[ToolCall | ToolCallError]:
    """The calls behind one `<|python_tag|>` at `start`."""
    body = _skip_space(text, body)
    items: list[ToolCall | ToolCallError] = []
    while name := _PYTHON_NAME.match(text, body):
        items.append(_read_named(text, start, name, _PYTHON_SHAPE))
        start = body = items[-1].span[1]
    if items:
        return items
    if text.startswith(("{", "["), body) and not OPENER.match(text, body):
        return _read_row(text, start, _split_row(text, body), _LLAMA_SHAPE)
    return [_nothing_readable(text, start, body, _LLAMA_SHAPE)]


def _read_named(text: str, start: int, name: re.Match[str], shape: str) -> ToolCall | ToolCallError:
    """A call whose name was read; its arguments follow, an object or in parentheses."""
    body, end = name.end(), None
    is_object = text.startswith("{", body)
    try:
        end = object_end(text, body) if is_object else parenthesis_end(text, body)
        arguments = decode_json(text[body:end]) if is_object else python_arguments(text[body:end])
    except BrokenCallError as error:
        return _broken(error, (start, end or _next_opener(text, error.stop)), shape)
    return ToolCall(name=name[1], arguments=arguments, span=(start, end))


def _nothing_readable(text: str, start: int, body: int, shape: str) -> ToolCallError:
    """The error for a tag with no call behind it."""
    end = _next_opener(text, body)
    error = BrokenCallError("bad_json", "No call that can be read follows the tag.")
    if body == end:
        error = BrokenCallError("unclosed", "The call is not finished: nothing follows the tag.")
    return _broken(error, (start, end), shape)


def _read_function(text: str, start: int, body: int) -> ToolCall | ToolCallError:
    """The call whose `<function=` is at `start` and ends at `body`."""
    stop, arguments = body, {}
    try:
        name = _FUNCTION_NAME.match(text, body)
        if name is None:
            raise BrokenCallError("unclosed", "No '>' ends the name behind '<function='.")
        if not name[1].strip():
            raise BrokenCallError("no_name", "No name stands behind '<function='.")
        stop = name.end()
        if text.startswith("{", stop):
            stop = object_end(text, stop)
            arguments = decode_json(text[name.end() : stop])
        close = _skip_space(text, stop)
        if not text.startswith(FUNCTION_CLOSE, close):
            raise BrokenCallError("unclosed", f"No {FUNCTION_CLOSE} follows a JSON object.")
    except BrokenCallError as error:
        stop = error.stop or stop
        end = _next_opener(text, stop)
        close = text.find(FUNCTION_CLOSE, stop, end)
        return _broken(error, (start, end if close < 0 else close + len(FUNCTION_CLOSE)), _FUNCTION_SHAPE)
    return ToolCall(name=name[1].strip(), arguments=arguments, span=(start, close + len(FUNCTION_CLOSE)))


def _read_bare(text: str) -> ParsedReply | None:
    """A reply that is JSON from end to end, maybe in a fence; None for any other."""
    start = _skip_space(text, 0)
    fence = _FENCE.match(text, start)
    body = fence.end() if fence else start
    if not text.startswith(("{", "["), body):
        return None
    row = _split_row(text, body)
    rest = text[row.end :].strip()
    if (not rest or (fence and rest == "```")) and _is_row_of_calls(text, body, row):
        row.end = len(text)
        return _reply(text, _read_row(text, start, row, _BARE_SHAPE))
    try:
        json.loads(text[body:].strip().removesuffix("```") if fence else text[body:])
    except (ValueError, RecursionError):
        return None
    return ParsedReply(content=text.strip(), calls=(), errors=())


def _is_row_of_calls(text: str, body: int, row: _ParsedRow) -> bool:
    """Whether all of a row that ends with the text is calls, and not an answer in JSON."""
    if not all(_looks_like_call(text[begin:end]) for begin, end in row.objects):
        return False
    if row.complaint is None or row.objects:
        return True
    first = _skip_space(text, body + 1) if text.startswith("[", body) else body
    return bool(_BARE_START.match(text, first))


def _looks_like_call(source: str) -> bool:
    """Whether an object has a name and arguments, right or wrong, and nothing that a call does not have."""
    try:
        value = json.loads(source)
    except (ValueError, RecursionError):
        return bool(_BARE_START.match(source))
    if value.get("type") == "function" and isinstance(value.get("function"), dict):
        value = value["function"]
    has_arguments = "arguments" in value or "parameters" in value
    if not isinstance(value.get("name"), str) or not has_arguments or value.get("type", "function") != "function":
        return False
    return value.keys() <= {"name", "arguments", "parameters", "id", "type"}
