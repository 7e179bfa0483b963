"""`@tool`: a plain function with type hints and a docstring becomes a tool, known to `tools.use` by its name.

    @tool
    def convert(amount: float, unit: Literal["kg", "lb"] = "kg") -> str:
        \"\"\"Convert a weight to the other unit.

        Args:
            amount: How much.
        \"\"\"

The model is told the docstring up to its first section, and of each argument what `Annotated[..., Field(description=
...)]` or the section `Args` says. Values are read as strict JSON: what JSON has a type for must have that type ("3" and
3.0 are no `int`), the rest is converted (a list to a tuple, a text to a date or an enum, an object to a model).
One object serves all episodes from many threads; async functions run on one event loop that they share.
Not here: tools with a state of their own for each episode, which derive from `BaseTool` and are registered with
`register_tool`.
"""

import asyncio
import inspect
import json
import re
import typing
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, overload

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_json, to_jsonable_python

from agent_rl.loop_thread import shared_loop
from agent_rl.registry import TOOLS
from agent_rl.tools.base import TOOL_NAME, BaseTool, ToolResult

Function = Callable[..., Any]

LATE_S = 1.0
"""After its limit an async call is cancelled; by then whoever waited for it has left with an error."""
_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Return|Raises|Yields|Examples?|Notes?):\s*$", re.MULTILINE)
_DESCRIBED = re.compile(r"^(\s+)(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


class FunctionTool(BaseTool):
    """What `@tool` makes of a function, which stays reachable as `.function`."""

    def __init__(
        self, function: Function, *, name: str, description: str, timeout_s: float | None, terminal: bool
    ) -> None:
        """ValueError where the function's arguments cannot be described to a model."""
        self.function = function
        self.name = name
        self.description = description
        self.timeout_s = timeout_s
        self.terminal = terminal
        self._signature = inspect.signature(function)
        self._model = _arguments_model(function, self._signature)
        self.parameters = _schema(self._model, function)
        self.__doc__ = function.__doc__

    def __call__(self, /, *values: Any, **arguments: Any) -> ToolResult:
        """Check the arguments, call the function and show its result: text as it is, anything else as JSON.

        A `ToolResult` is passed on as it is. Arguments that do not fit are an answer that is not `ok`; what the
        function raises is raised.
        """
        given = self._signature.bind_partial(*values, **arguments).arguments if values else arguments
        try:
            checked = self._model.model_validate_json(to_json(given, inf_nan_mode="constants"), strict=True)
        except ValidationError as error:
            return ToolResult(text=f"error: {self.name}: {_complaint(error)}", ok=False)
        read = {name: getattr(checked, f"argument_{at}") for at, name in enumerate(self._signature.parameters)}
        result = self.function(**read)
        if inspect.isawaitable(result):
            result = shared_loop("async tools").result(_within(result, self.timeout_s))
        if isinstance(result, ToolResult):
            return result
        return ToolResult(text=result if isinstance(result, str) else _json(result), terminal=self.terminal)


async def _within(result: Awaitable[Any], timeout_s: float | None) -> Any:
    async with asyncio.timeout(None if timeout_s is None else timeout_s + LATE_S):
        return await result


@overload
def tool(function: Function, /) -> FunctionTool: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, timeout_s: float | None = 30.0, terminal: bool = False
) -> Callable[[Function], FunctionTool]: ...
def tool(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = 30.0,
    terminal: bool = False,
) -> FunctionTool | Callable[[Function], FunctionTool]:
    """Make a tool of a function and register it under its name, for `tools.use` and for `ToolRegistry`.

    `name` and `description` are the function's and its docstring's unless given. A call that takes longer than
    `timeout_s` is answered with an error; None: no limit. `terminal`: the episode ends when the function has returned.
    A function that cannot become a tool raises ValueError, a name that is taken ConfigError.
    """

    def decorate(function: Function) -> FunctionTool:
        made = make_tool(function, name=name, description=description, timeout_s=timeout_s, terminal=terminal)
        TOOLS.add(made.name, made)
        return made

    return decorate if function is None else decorate(function)


def make_tool(
    function: Function,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = 30.0,
    terminal: bool = False,
) -> FunctionTool:
    """The tool that `@tool` makes of a function, registered nowhere; ValueError where it cannot become one."""
    _refuse(function)
    made = FunctionTool(
        function,
        name=name if name is not None else function.__name__,
        description=description or _description(function),
        timeout_s=timeout_s,
        terminal=terminal,
    )
    if not TOOL_NAME.fullmatch(made.name):
        raise ValueError(f"{_place(function)}: a tool cannot be named {made.name!r}; use letters, digits, _ and -")
    return made


def _place(function: Function) -> str:
    return f"@tool on {getattr(function, '__qualname__', repr(function))}"


def _refuse(function: Function) -> None:
    if not inspect.isfunction(function):
        raise ValueError(f"{_place(function)}: expected a function made by def, got {type(function).__name__}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ValueError(f"{_place(function)}: the function yields; return the whole result instead")


def _description(function: Function) -> str:
    """The docstring up to its first section, on one line."""
    text = " ".join(_SECTION.split(inspect.getdoc(function) or "")[0].split())
    if not text:
        raise ValueError(
            f"{_place(function)}: no docstring; say in one sentence what the tool does, the model reads it"
        )
    return text


def _described_arguments(function: Function) -> dict[str, str]:
    """What the docstring's section `Args` says of each argument."""
    parts = _SECTION.split(inspect.getdoc(function) or "")
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    lines = next((sections[key] for key in ("Args", "Arguments", "Parameters") if key in sections), "").splitlines()
    described: dict[str, str] = {}
    indent = name = ""
    for line in lines:
        found = _DESCRIBED.match(line)
        if found and (not name or found[1] == indent):
            indent, name = found[1], found[2]
            described[name] = found[3]
        elif name and line.strip():
            described[name] = f"{described[name]} {line.strip()}".strip()
    return described


def _arguments_model(function: Function, signature: inspect.Signature) -> type[BaseModel]:
    """A model with one field for each argument. Fields have names of their own, since arguments may have any name."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ValueError(f"{_place(function)}: a type hint cannot be resolved: {error}") from error
    described = _described_arguments(function)
    fields: dict[str, Any] = {}
    for at, parameter in enumerate(signature.parameters.values()):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(
                f"{_place(function)}: {parameter} cannot be given by its name; the model names all arguments"
            )
        if parameter.name not in hints:
            raise ValueError(
                f"{_place(function)}: argument {parameter.name!r} has no type hint; write {parameter.name}: str"
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        hint = hints[parameter.name]
        if text := described.get(parameter.name):
            hint = Annotated[hint, Field(description=text)]
        fields[f"argument_{at}"] = (hint, Field(default, alias=parameter.name))
    if unknown := sorted(described.keys() - signature.parameters.keys()):
        raise ValueError(f"{_place(function)}: the docstring describes {unknown[0]!r}, which is no argument")
    try:
        return create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise _unreadable(function) from error


def _unreadable(function: Function) -> ValueError:
    use = "use str, int, float, bool, Literal, list, dict, a date or a pydantic model"
    return ValueError(f"{_place(function)}: an argument's type cannot be read from JSON; {use}")


class _Untitled(GenerateJsonSchema):
    """Leaves out the titles that pydantic makes of names, which only cost tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _schema(model: type[BaseModel], function: Function) -> dict[str, Any]:
    try:
        made = model.model_json_schema(schema_generator=_Untitled)
    except PydanticInvalidForJsonSchema as error:
        raise _unreadable(function) from error
    for definition in made.get("$defs", {}).values():
        definition.pop("title", None)
    schema = {"type": "object", "properties": made.get("properties", {}), "required": made.get("required", [])}
    return {**schema, "$defs": made["$defs"]} if "$defs" in made else schema


def _complaint(error: ValidationError) -> str:
    """The first thing that is wrong, in the words of `check_arguments` as far as it goes."""
    first = error.errors(include_url=False, include_context=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    message = first["msg"][:1].lower() + first["msg"][1:]
    got = "" if first["type"] == "missing" else f", got {_shortened(_json(first['input']))}"
    return f"argument {path!r}: {message}{got}" if path else message


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=to_jsonable_python)
