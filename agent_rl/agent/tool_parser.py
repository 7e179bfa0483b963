"""Text of a reply to tool calls, and back: Hermes/Qwen `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

A call ends where its JSON object ends, not at the first closing tag, so a call that writes a file holding
`</tool_call>` survives. Whatever a model writes gives calls or errors, never an exception, in time linear in the text.
This module does not know which tools exist: names and arguments are checked where the tools are.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from agent_rl.agent.messages import ParsedReply, ToolCall, ToolCallError

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
MAX_NESTING = 64
"""Deepest nesting of objects and arrays in a call; deeper values could break whoever walks them later."""

_SHAPE = f'{CALL_OPEN}\n{{"name": "tool", "arguments": {{...}}}}\n{CALL_CLOSE}'
_SPACE = re.compile(r"\s*+")
_TO_BRACE = re.compile(r'(?:[^"{}<\\]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)


def parse_tool_calls(text: str) -> ParsedReply:
    """Take a reply apart into text, calls and broken calls, each in order.

    `arguments` may be an object, a string that holds one, or missing (`{}`). After a broken call the search goes on
    behind its opening tag.
    """
    calls: list[ToolCall] = []
    errors: list[ToolCallError] = []
    content: list[str] = []
    position = 0
    while (start := text.find(CALL_OPEN, position)) >= 0:
        found = _read_call(text, start)
        (calls if isinstance(found, ToolCall) else errors).append(found)
        content.append(text[position:start])
        position = found.span[1]
    content.append(text[position:])
    return ParsedReply(content="".join(content).strip(), calls=tuple(calls), errors=tuple(errors))


def dump_call(call: ToolCall) -> str:
    """The JSON of a call as the model should write it, tags not included; other scripts stay readable."""
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)


class _BrokenCallError(Exception):
    """`args`: kind and message of a `ToolCallError`."""


def _read_call(text: str, start: int) -> ToolCall | ToolCallError:
    """Read the call whose opening tag is at `start`."""
    body = _SPACE.match(text, start + len(CALL_OPEN)).end()
    end_of_object = _object_end(text, body)
    try:
        if end_of_object is None:
            _explain_without_object(text, body)
        name, arguments = _check_call(_decode(text[body:end_of_object]))
        close = _SPACE.match(text, end_of_object).end()
        if not text.startswith(CALL_CLOSE, close):
            _explain_missing_close(text, end_of_object)
    except _BrokenCallError as error:
        kind, message = error.args
        return ToolCallError(kind=kind, message=message, span=(start, _broken_end(text, start)))
    return ToolCall(name=name, arguments=arguments, span=(start, close + len(CALL_CLOSE)))


def _object_end(text: str, start: int) -> int | None:
    """Index behind the brace that closes the object at `start`; None when there is no object or it does not close.

    Stops at the first `<` or backslash outside a string, which JSON does not have. That is what makes parsing linear:
    a search that runs over another opening tag sees it inside a string, so the search begun at that tag has every
    quote the other way round, and of two such searches one has died before a third begins.
    """
    if not text.startswith("{", start):
        return None
    depth, position = 1, start + 1
    while depth:
        position = _TO_BRACE.match(text, position).end()
        if position == len(text) or text[position] not in "{}":
            return None
        depth += 1 if text[position] == "{" else -1
        position += 1
    return position


def _check_call(value: Any) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a decoded call."""
    name, arguments = value.get("name"), value.get("arguments", {})
    if not isinstance(name, str) or not name.strip():
        raise _BrokenCallError("no_name", f'The call has no "name" that is a non-empty string. Write {_SHAPE}')
    if isinstance(arguments, str):
        try:
            arguments = _decode(arguments.strip())
        except _BrokenCallError as error:
            raise _BrokenCallError("bad_arguments", f'In "arguments", given as a string: {error.args[1]}') from None
    if not isinstance(arguments, dict):
        kind = type(arguments).__name__
        raise _BrokenCallError("bad_arguments", f'"arguments" must be a JSON object, got {kind}. Write {_SHAPE}')
    return name, arguments


def _decode(source: str) -> Any:
    """Decode one JSON value that can also be written back: no NaN, no infinity, no half of a surrogate pair."""
    try:
        value = json.loads(source)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except json.JSONDecodeError as error:
        raise _BrokenCallError(
            "bad_json",
            f"The call is not valid JSON: {error.msg} at character {error.pos} of the object. "
            "Escape quotes, backslashes and line breaks inside strings.",
        ) from None
    except RecursionError:
        raise _nested_too_deep() from None
    except UnicodeEncodeError:
        raise _BrokenCallError("bad_json", "A string of the call holds half of a surrogate pair (\\ud800).") from None
    except ValueError:
        raise _BrokenCallError("bad_json", "A number of the call is too large or not finite.") from None
    if any(depth > MAX_NESTING for depth in _depths(value)):
        raise _nested_too_deep()
    return value


def _nested_too_deep() -> _BrokenCallError:
    return _BrokenCallError("bad_json", f"The call is nested too deeply; at most {MAX_NESTING} levels are read.")


def _depths(value: Any) -> Iterator[int]:
    """Nesting level of every object and array in `value`, without recursion."""
    waiting = [(value, 1)]
    while waiting:
        node, depth = waiting.pop()
        if isinstance(node, dict | list):
            yield depth
            waiting.extend((child, depth + 1) for child in (node.values() if isinstance(node, dict) else node))


def _explain_without_object(text: str, body: int) -> NoReturn:
    """The text at `body` is no complete object: raise the reason."""
    close = _find_close(text, body)
    if close is None:
        raise _BrokenCallError("unclosed", f"The call is not finished: no {CALL_CLOSE} follows. Write {_SHAPE}")
    value = _decode(text[body:close].rstrip())
    raise _BrokenCallError("not_an_object", f"A call must be a JSON object, got {type(value).__name__}. Write {_SHAPE}")


def _explain_missing_close(text: str, end_of_object: int) -> NoReturn:
    if _find_close(text, end_of_object) is None:
        raise _BrokenCallError("unclosed", f"No {CALL_CLOSE} follows the JSON object. Write {_SHAPE}")
    raise _BrokenCallError("bad_json", f"Between the JSON object and {CALL_CLOSE} stands other text. Write {_SHAPE}")


def _find_close(text: str, start: int) -> int | None:
    """Index of the first closing tag in front of the next opening tag."""
    next_open = text.find(CALL_OPEN, start)
    close = text.find(CALL_CLOSE, start, next_open if next_open >= 0 else len(text))
    return close if close >= 0 else None


def _broken_end(text: str, start: int) -> int:
    """Where a broken call ends: behind its closing tag, else at the next opening tag, else with the text."""
    body = start + len(CALL_OPEN)
    close = _find_close(text, body)
    if close is not None:
        return close + len(CALL_CLOSE)
    next_open = text.find(CALL_OPEN, body)
    return next_open if next_open >= 0 else len(text)
