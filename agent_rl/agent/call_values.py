"""Values inside a call's tags: where one ends, what it holds, and the name and arguments in it.

JSON objects, and keyword arguments that are Python literals; nothing is ever evaluated. Everything wrong is a
`BrokenCallError`. This module does not know tags except for where they end a value (`tool_parser.py`).
"""

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

from agent_rl.parsing import parse_expression

MAX_NESTING = 64
"""Deepest nesting of objects and arrays in a call; deeper values could break whoever walks them later."""

OPENER = re.compile(r"<tool_call>|(?:<\|python_tag\|>\s*+)?+<function=|<\|python_tag\|>|\[TOOL_CALLS\]")
"""What begins a call of any style, except for one that is bare JSON."""

_JSON_RUN = re.compile(r'(?:[^"{}<\\\[]++|\[(?!TOOL_CALLS\])|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_PYTHON_RUN = re.compile(
    r"""(?:[\w\s.,:=+\-{}\]]++|\[(?!TOOL_CALLS\])|"(?:[^"\\]++|\\.)*+"|'(?:[^'\\]++|\\.)*+')*+""", re.DOTALL
)
_ONLY_LITERALS = "Arguments must be literals: strings, finite numbers, True, False, None, lists and dicts of them."


class BrokenCallError(Exception):
    """Why a call cannot be read."""

    def __init__(self, kind: str, message: str, *, stop: int | None = None) -> None:
        """`kind` and the complaint in `message` are for a `ToolCallError`; `stop`: where reading the text stopped."""
        super().__init__(kind, message)
        self.kind, self.message, self.stop = kind, message, stop


class BadSyntaxError(BrokenCallError):
    """The JSON or the literals are wrong in themselves; the message holds the advice."""


def object_end(text: str, start: int) -> int:
    """Index behind the brace that closes the JSON object at `start`; BrokenCallError with `stop` when none does.

    Stops at the first `<`, `[TOOL_CALLS]` or backslash outside a string, which JSON does not have. So a search that
    runs over another opening tag sees it inside a string, and a search begun at that tag has every quote the other
    way round: of two such searches one has died before a third begins. That is what makes parsing linear.
    """
    return _closing_end(text, start, _JSON_RUN, "{}")


def parenthesis_end(text: str, start: int) -> int:
    """The same for the Python arguments whose opening parenthesis is at `start`."""
    return _closing_end(text, start, _PYTHON_RUN, "()")


def _closing_end(text: str, start: int, run: re.Pattern[str], pair: str) -> int:
    depth, position = 1, start + 1
    while depth:
        position = run.match(text, position).end()
        # The only quote a run stops at is that of a string without an end: all the rest is in that string.
        if position == len(text) or text[position] in "\"'":
            raise BrokenCallError("unclosed", f"The call is not finished: no {pair[1]} closes it.", stop=len(text))
        if text[position] not in pair:
            if OPENER.match(text, position):
                raise BrokenCallError("unclosed", "The call is not finished: another one begins.", stop=position)
            found = f"{text[position]!r} stands outside a string"
            raise BrokenCallError("bad_json", f"The call cannot be read: {found}.", stop=position)
        depth += 1 if text[position] == pair[0] else -1
        position += 1
    return position


def decode_json(source: str) -> Any:
    """Decode one JSON value that can also be written back: no NaN, no infinity, no half of a surrogate pair."""
    try:
        value = json.loads(source)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except json.JSONDecodeError as error:
        raise BadSyntaxError(
            "bad_json",
            f"The call is not valid JSON: {error.msg} at character {error.pos} of the object. "
            "Escape quotes, backslashes and line breaks inside strings.",
        ) from None
    except RecursionError:
        raise _nested_too_deep() from None
    except UnicodeEncodeError:
        raise BadSyntaxError("bad_json", "A string of the call holds half of a surrogate pair (\\ud800).") from None
    except ValueError:
        raise BadSyntaxError("bad_json", "A number of the call is too large or not finite.") from None
    if any(depth > MAX_NESTING for depth in _depths(value)):
        raise _nested_too_deep()
    return value


def name_and_arguments(value: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a decoded call. Arguments may be missing, or a string that holds an object."""
    if value.get("type") == "function" and isinstance(value.get("function"), dict):
        value = value["function"]
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        raise BrokenCallError("no_name", 'The call has no "name" that is a non-empty string.')
    key = "parameters" if "parameters" in value and "arguments" not in value else "arguments"
    arguments = value.get(key, {})
    if isinstance(arguments, str):
        try:
            arguments = decode_json(arguments.strip())
        except BrokenCallError as error:
            raise BadSyntaxError("bad_arguments", f'In "{key}", given as a string: {error.message}') from None
    if not isinstance(arguments, dict):
        raise BrokenCallError("bad_arguments", f'"{key}" must be a JSON object, got {type(arguments).__name__}.')
    return name, arguments


def python_arguments(source: str) -> dict[str, Any]:
    """Arguments of `(key="value", ...)`, parentheses included, as JSON would hold them: a tuple is a list."""
    try:
        call = parse_expression(f"call{source}")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "too deeply nested, or no text"
        raise BadSyntaxError("bad_json", f"The arguments are not valid Python: {reason}.") from None
    if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
        raise BrokenCallError("bad_arguments", "Every argument needs its name, as in key=value.")
    try:
        values = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        return decode_json(json.dumps(values))
    except (ValueError, TypeError, RecursionError):
        raise BadSyntaxError("bad_arguments", _ONLY_LITERALS) from None


def _nested_too_deep() -> BadSyntaxError:
    return BadSyntaxError("bad_json", f"The call is nested too deeply; at most {MAX_NESTING} levels are read.")


def _depths(value: Any) -> Iterator[int]:
    """Nesting level of every object and array in `value`, without recursion."""
    waiting = [(value, 1)]
    while waiting:
        node, depth = waiting.pop()
        if isinstance(node, dict | list):
            yield depth
            waiting.extend((child, depth + 1) for child in (node.values() if isinstance(node, dict) else node))
