"""`@tool`: what the model reads of signature and docstring, which values reach the function, what comes back."""

import asyncio
import datetime
import enum
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from agent_rl.agent.messages import ToolCall
from agent_rl.config import ToolsConfig
from agent_rl.errors import ConfigError
from agent_rl.tools.base import ToolRegistry, ToolResult
from agent_rl.tools.decorator import FunctionTool, tool
from agent_rl.tools.toolset import Toolset

_names = itertools.count()


def fresh() -> str:
    """A name that no other test has registered."""
    return f"decorated_{next(_names)}"


def answer(made: FunctionTool, **arguments: Any) -> str:
    """The text of a call, without the tool's name."""
    result = ToolRegistry([made]).run(ToolCall(name=made.name, arguments=arguments))
    return result.text.replace(f"error: {made.name}: ", "error: ")


class Point(BaseModel):
    x: int
    title: str = "origin"


class Colour(enum.Enum):
    RED = "red"


def test_the_description_comes_from_signature_and_docstring() -> None:
    @tool(name=fresh())
    def weigh(
        amount: Annotated[float, Field(description="How much.", gt=0)],
        unit: Literal["kg", "lb"] = "kg",
        notes: list[str] | None = None,
        *,
        model_config: bool = False,
    ) -> str:
        """Convert a weight
        to the other unit.

        Args:
            unit (str): The unit
                amount: one of two.
            notes: Anything else.

        Returns:
            The weight.
        """
        return ""

    assert weigh.spec.description == "Convert a weight to the other unit."
    assert weigh.spec.parameters == {
        "type": "object",
        "properties": {
            "amount": {"description": "How much.", "exclusiveMinimum": 0, "type": "number"},
            "unit": {
                "default": "kg",
                "description": "The unit amount: one of two.",
                "enum": ["kg", "lb"],
                "type": "string",
            },
            "notes": {
                "anyOf": [{"items": {"type": "string"}, "type": "array"}, {"type": "null"}],
                "default": None,
                "description": "Anything else.",
            },
            "model_config": {"default": False, "type": "boolean"},
        },
        "required": ["amount"],
    }


def test_nested_models_are_described_by_reference_without_titles() -> None:
    @tool(name=fresh())
    def draw(points: list[Point]) -> str:
        """Draw."""
        return ""

    assert draw.parameters["properties"] == {"points": {"items": {"$ref": "#/$defs/Point"}, "type": "array"}}
    fields = {"x": {"type": "integer"}, "title": {"default": "origin", "type": "string"}}
    assert draw.parameters["$defs"] == {"Point": {"properties": fields, "required": ["x"], "type": "object"}}


def test_name_description_limit_and_end_can_be_given() -> None:
    given = fresh()

    @tool(name=given, description="Say it.", timeout_s=2.5, terminal=True)
    def say(text: str) -> str:
        return text

    assert (say.name, say.description, say.timeout_s) == (given, "Say it.", 2.5)
    assert say(text="done") == ToolResult(text="done", terminal=True)


def test_without_parentheses_the_functions_own_name_and_a_limit_of_30_seconds_hold() -> None:
    @tool
    def decorated_plainly(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    assert (decorated_plainly.name, decorated_plainly.timeout_s) == ("decorated_plainly", 30.0)
    assert answer(decorated_plainly, a=2) == "3"
    assert decorated_plainly(2, b=3) == ToolResult(text="5")
    assert decorated_plainly.function(2, 3) == 5


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("as it is", "as it is"),
        (3, "3"),
        (0.5, "0.5"),
        (True, "true"),
        (None, "null"),
        ([1, "é"], '[1, "é"]'),
        ({"a": Point(x=1), "on": datetime.date(2024, 2, 29)}, '{"a": {"x": 1, "title": "origin"}, "on": "2024-02-29"}'),
    ],
)
def test_text_comes_back_as_it_is_and_anything_else_as_json(returned: object, text: str) -> None:
    @tool(name=fresh())
    def give() -> object:
        """Give."""
        return returned

    assert give() == ToolResult(text=text)


def test_a_tool_result_is_passed_on_as_it_is() -> None:
    result = ToolResult(text="no", ok=False, facts={"n": 1})

    @tool(name=fresh(), terminal=True)
    def give() -> ToolResult:
        """Give."""
        return result

    assert give() is result


def test_json_is_converted_to_what_it_has_no_type_for() -> None:
    seen = []

    @tool(name=fresh())
    def keep(
        day: datetime.date, pair: tuple[int, int], chosen: set[str], colour: Colour, point: Point, size: float
    ) -> str:
        """Keep."""
        seen.extend((day, pair, chosen, colour, point, size))
        return "kept"

    arguments = {
        "day": "2024-02-29",
        "pair": [1, 2],
        "chosen": ["a", "a"],
        "colour": "red",
        "point": {"x": 4},
        "size": 3,
    }
    assert answer(keep, **arguments) == "kept"
    assert seen == [datetime.date(2024, 2, 29), (1, 2), {"a"}, Colour.RED, Point(x=4), 3.0]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "argument 'count' is missing; expected count, unit, points, day"),
        ({"count": "3"}, "argument 'count' must be a JSON integer, got str"),
        ({"count": 3.0}, "argument 'count' must be a JSON integer, got float"),
        ({"count": True}, "argument 'count' must be a JSON integer, got bool"),
        ({"count": 11}, "argument 'count': input should be less than or equal to 10, got 11"),
        (
            {"count": 1, "cuont": 2},
            "unknown argument 'cuont'; did you mean 'count'?; expected: count, unit, points, day",
        ),
        ({"count": 1, "unit": "g"}, 'argument \'unit\' must be one of "kg", "lb", got "g"'),
        ({"count": 1, "points": [{"x": 1}, {"x": "2"}]}, "argument 'points[1].x' must be a JSON integer, got str"),
        ({"count": 1, "points": [{}]}, "argument 'points[0].x' is missing; expected x, title"),
        ({"count": 1, "day": 5}, "argument 'day' must be a JSON string or null, got int"),
        (
            {"count": 1, "day": "2024-02-30"},
            "argument 'day': input should be a valid date in the format YYYY-MM-DD, "
            'day value is outside expected range, got "2024-02-30"',
        ),
    ],
)
def test_arguments_that_do_not_fit_are_answered_and_never_reach_the_function(
    arguments: dict[str, Any], complaint: str
) -> None:
    calls = []

    @tool(name=fresh())
    def count_up(
        count: Annotated[int, Field(le=10)],
        unit: Literal["kg", "lb"] = "kg",
        points: list[Point] = [],  # noqa: B006
        day: datetime.date | None = None,
    ) -> None:
        """Count."""
        calls.append(count)

    assert answer(count_up, **arguments) == f"error: {complaint}"
    assert calls == []


def test_a_direct_call_refuses_the_same_arguments() -> None:
    name = fresh()

    @tool(name=name)
    def double(n: int) -> int:
        """Double."""
        return 2 * n

    assert double(n="3").text == f"error: {name}: argument 'n': input should be a valid integer, got \"3\""
    assert (double(n="3").ok, double(n=3.0).ok, double(n=3, m=1).ok, double().ok) == (False, False, False, False)
    assert double().text == f"error: {name}: argument 'n': field required"


def test_a_list_that_is_a_default_is_fresh_in_every_call() -> None:
    @tool(name=fresh())
    def grow(seen: list[int] = []) -> int:  # noqa: B006
        """Grow."""
        seen.append(1)
        return len(seen)

    assert [answer(grow), answer(grow)] == ["1", "1"]


def test_what_the_function_raises_is_text_for_the_model() -> None:
    @tool(name=fresh())
    def divide(a: int, b: int) -> float:
        """Divide."""
        return a / b

    assert answer(divide, a=1, b=0) == "error: ZeroDivisionError: division by zero"


def test_a_slow_function_times_out() -> None:
    release = threading.Event()

    @tool(name=fresh(), timeout_s=0.05)
    def wait_long() -> str:
        """Wait."""
        release.wait(20)
        return "late"

    try:
        assert answer(wait_long) == "error: gave no answer within 0.05 s"
    finally:
        release.set()


def test_it_is_found_by_name_and_serves_all_episodes() -> None:
    name = fresh()

    @tool(name=name)
    def shout(text: str) -> str:
        """Shout."""
        return text.upper()

    toolset = Toolset(ToolsConfig(use=(name,)))
    toolset.start()
    assert toolset.make({"task_id": "1"}) == toolset.make({"task_id": "2"}) == [shout]
    with pytest.raises(ConfigError, match=f"'{name}' already"):
        tool(name=name)(shout.function)


async def streams(text: str) -> Any:
    """Stream."""
    yield text


def yields(text: str) -> Iterator[str]:
    """Yield."""
    yield text


def undocumented(text: str) -> str:
    return text


def only_arguments(text: str) -> str:
    """
    Args:
        text: Something.
    """
    return text


def no_hint(text) -> str:
    """Say."""
    return text


def unknown_hint(text: "Missing") -> str:  # noqa: F821
    """Say."""
    return text


def any_number(*texts: str) -> str:
    """Say."""
    return str(texts)


def any_names(**texts: str) -> str:
    """Say."""
    return str(texts)


def by_place(text: str, /) -> str:
    """Say."""
    return text


def takes_a_function(use: Callable[[int], int]) -> str:
    """Use."""
    return str(use(1))


def takes_a_lock(lock: threading.Event) -> str:
    """Lock."""
    return str(lock)


def describes_another(text: str) -> str:
    """Say.

    Args:
        txt: What.
    """
    return text


UNREADABLE = "an argument's type cannot be read from JSON; use str, int, float, bool, Literal, list, dict, a date or"


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (streams, "@tool on streams: the function yields"),
        (yields, "@tool on yields: the function yields; return the whole result instead"),
        (undocumented, "@tool on undocumented: no docstring; say in one sentence what the tool does"),
        (only_arguments, "@tool on only_arguments: no docstring"),
        (no_hint, "@tool on no_hint: argument 'text' has no type hint; write text: str"),
        (unknown_hint, "@tool on unknown_hint: a type hint cannot be resolved: name 'Missing' is not defined"),
        (any_number, "@tool on any_number: \\*texts: str cannot be given by its name"),
        (any_names, "@tool on any_names: \\*\\*texts: str cannot be given by its name"),
        (by_place, "@tool on by_place: text: str cannot be given by its name"),
        (takes_a_function, f"@tool on takes_a_function: {UNREADABLE}"),
        (takes_a_lock, f"@tool on takes_a_lock: {UNREADABLE}"),
        (describes_another, "@tool on describes_another: the docstring describes 'txt', which is no argument"),
        (Point, "@tool on Point: expected a function made by def, got ModelMetaclass"),
    ],
)
def test_a_function_that_cannot_become_a_tool_is_refused(function: Callable[..., Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        tool(function)


def test_a_name_that_no_model_could_write_is_refused() -> None:
    for bad in ("my tool", "", "2nd", "a" * 65):
        with pytest.raises(ValueError, match=f"@tool on undocumented: a tool cannot be named '{bad}'; use letters"):
            tool(name=bad, description="Say.")(undocumented)


def test_an_async_function_is_a_tool_and_calls_wait_for_each_other() -> None:
    arrived, both = [], asyncio.Event()

    @tool(name=fresh())
    async def meet(name: str) -> str:
        """Meet somebody."""
        arrived.append(name)
        if len(arrived) == 2:
            both.set()
        await both.wait()
        return f"{name} met"

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(lambda name: answer(meet, name=name), ["a", "b"])) == ["a met", "b met"]
    assert answer(meet, name=3).startswith("error")


def test_a_late_async_call_is_answered_and_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_rl.tools.decorator.LATE_S", 0.01)
    cancelled = threading.Event()

    @tool(name=fresh(), timeout_s=0.05)
    async def forever(text: str) -> str:
        """Wait."""
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return text

    assert answer(forever, text="x").endswith("gave no answer within 0.05 s")
    assert cancelled.wait(30)


def test_what_an_async_function_raises_is_told_to_the_model() -> None:
    @tool(name=fresh(), timeout_s=None)
    async def fails(text: str) -> str:
        """Fail."""
        raise KeyError(text)

    @tool(name=fresh(), timeout_s=30.0)
    async def leaves(text: str) -> str:
        """Leave."""
        sys.exit(text)

    assert "KeyError: 'x'" in answer(fails, text="x")
    assert "SystemExit: x" in answer(leaves, text="x")
    assert "KeyError: 'x'" in answer(fails, text="x")
