"""What a tool is, and the registry that runs one call safely.

A tool returns text for the model and typed facts for the environment. Whatever goes wrong in a call (unknown name,
wrong arguments, an exception inside the tool, no answer in time) becomes a message the model can act on; nothing here
decides rewards.
"""

import re
import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Any

from agent_rl.agent.messages import ToolCall, ToolSpec
from agent_rl.errors import SandboxError, ends_program, nearest
from agent_rl.failures import OF_ONE_CALL, FailedCall, note
from agent_rl.tools.schema import check_arguments

TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
"""What a tool may be called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What one call gave: `ToolResult(text="2 passed", facts={"passed": 2})`."""

    text: str
    """What the model reads."""
    ok: bool = True
    """False when the call failed; counted in the metrics."""
    terminal: bool = False
    """True ends the episode (for example `submit`)."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the environment may use; the model does not see it."""


class BaseTool(ABC):
    """A tool: a name, a description, a JSON schema of its arguments, and `__call__`."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of the arguments object (`type: object`, `properties`, `required`)."""
    timeout_s: float | None = None
    """Longest wait for one call, which then runs in a thread of its own; None: the tool keeps its time itself."""

    @property
    def spec(self) -> ToolSpec:
        return spec_of(self)

    @abstractmethod
    def __call__(self, **arguments: Any) -> ToolResult | str:
        """Run the tool; a text is a result that is ok. Arguments were checked against `parameters`; an exception
        becomes an error message."""


_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def readable(text: str) -> str:
    """The text without ANSI escape sequences and control characters; newlines and tabs stay, CR LF becomes LF, and half
    of a surrogate pair, which cannot be sent anywhere, becomes `?`."""
    text = text.encode("utf-8", "replace").decode()
    return _CONTROLS.sub("", _ESCAPES.sub("", text.replace("\r\n", "\n")))


def shortened(text: str, max_chars: int) -> str:
    """The text, or the first and the last half of what is allowed, with a line between that says what is missing."""
    num_left_out = len(text) - max_chars
    if num_left_out <= 0:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n[... {num_left_out} characters left out ...]\n{text[-half:]}"


def spec_of(tool: BaseTool | type[BaseTool]) -> ToolSpec:
    """What the model is told about a tool; a class will do where its attributes say it all."""
    return ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters)


MAX_TEXT_CHARS = 65_536
"""Of one answer that the model reads, whatever its tool allows; the middle of a longer one is left out."""
MAX_STUCK_CALLS = 8
"""Late calls of one tool that may still be running; with more of them it is not called again."""


class ToolRegistry:
    """The tools of one episode, by name."""

    def __init__(self, tools: list[BaseTool] | tuple[BaseTool, ...] = ()) -> None:
        self._tools: dict[str, BaseTool] = {}
        for tool in tools:
            self.register(tool)

    def register(self, tool: BaseTool) -> None:
        """Add a tool; a name already taken raises ValueError."""
        if tool.name in self._tools:
            raise ValueError(f"a tool named {tool.name!r} is already registered; give one of them another name")
        self._tools[tool.name] = tool

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._tools.values())

    def run(self, call: ToolCall) -> ToolResult:
        """Run one call. Only `SandboxError` (infrastructure) leaves this method; every other failure is text.

        The text comes back without terminal escapes and control characters, which programs print and models do not
        need, and of `MAX_TEXT_CHARS` at most: a policy that writes what its tools print must not fill a context.
        """
        result = self._run(call)
        return replace(result, text=readable(shortened(result.text, MAX_TEXT_CHARS)))

    def _run(self, call: ToolCall) -> ToolResult:
        tool = self._tools.get(call.name)
        if tool is None:
            hint = nearest(call.name, self._tools) or f"; available: {', '.join(self._tools)}"
            return ToolResult(text=f"error: there is no tool {call.name!r}{hint}", ok=False)
        complaint = check_arguments(call.arguments, tool.parameters)
        if complaint:
            return ToolResult(text=f"error: {call.name}: {complaint}", ok=False)
        try:
            return _outcome(tool, call.arguments)
        except SandboxError:
            raise
        except _UnansweredError as error:
            text = str(error)
        except OF_ONE_CALL as error:  # the tool boundary: a tool's bug must not end the rollout
            if ends_program(error):
                raise
            text = f"{type(error).__name__}: {error}"
            note(FailedCall.of(error, f"tool {call.name}", tool))
        return ToolResult(text=f"error: {call.name}: {text}", ok=False)


class _UnansweredError(Exception):
    """A call went over its tool's limit, or too many earlier ones did and never ended."""


_late: list[tuple[BaseTool, "Future[ToolResult]"]] = []
"""Calls that were left behind, of all registries: one tool object may serve many episodes."""
_late_lock = threading.Lock()


def _refuse_stuck(tool: BaseTool) -> None:
    with _late_lock:
        _late[:] = [(other, answer) for other, answer in _late if not answer.done()]
        num_stuck = sum(other is tool for other, _ in _late)
    if num_stuck > MAX_STUCK_CALLS:
        raise _UnansweredError(
            f"{num_stuck} earlier calls of it have not ended yet; go on without it, or try again later"
        )


def _outcome(tool: BaseTool, arguments: dict[str, Any]) -> ToolResult:
    """What one call gave, or raises what it raised. A late call is left behind in its thread, its answer unread."""
    if tool.timeout_s is None:
        result = tool(**arguments)
    else:
        _refuse_stuck(tool)
        answer: Future[ToolResult] = Future()

        def work() -> None:
            try:
                answer.set_result(tool(**arguments))
            except BaseException as error:  # raised again by the caller
                answer.set_exception(error)

        threading.Thread(target=work, name=f"tool {tool.name}", daemon=True).start()
        wait([answer], tool.timeout_s)
        if not answer.done():
            with _late_lock:
                _late.append((tool, answer))
            raise _UnansweredError(f"gave no answer within {tool.timeout_s:g} s")
        result = answer.result()
    if isinstance(result, str):
        return ToolResult(text=result)
    if not isinstance(result, ToolResult):
        raise TypeError(f"the tool returned {type(result).__name__}, expected a ToolResult or a text")
    if not isinstance(result.text, str):
        raise TypeError(f"the tool returned a text of type {type(result.text).__name__}, expected str")
    return result
