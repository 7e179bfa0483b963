"""The static checks of code: full marks for good code, none for what only looks like one, any input has a result."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nat_projects import sample_spec

from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.generate import LEVELS
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.outline import Kind
from agent_rl.envs.nat.judge.static_code import check_code, is_informative
from agent_rl.envs.nat.judge.static_config import check_config, check_pyproject, config_types, why_unsafe
from agent_rl.envs.nat.judge.worker.parse_jobs import read
from agent_rl.envs.nat.spec import NATSpec

LOGIC = '''"""Logic of the tool."""


def shorten(text: str, limit: int = 3) -> str:
    """Cut a text to its first characters."""
    return text[:limit] if text else "error: empty"
'''
REGISTER = '''"""Components of the tool."""

from collections.abc import AsyncGenerator

from nat.plugin_api import Builder, FunctionBaseConfig, FunctionInfo, register_function
from pydantic import Field

from nat_x.logic import shorten


class ToolConfig(FunctionBaseConfig, name="nat_x_tool"):
    """Configuration of the shortener."""

    limit: int = Field(default=3, ge=1, description="Characters kept.")


@register_function(config_type=ToolConfig)
async def tool(config: ToolConfig, _builder: Builder) -> AsyncGenerator[FunctionInfo, None]:
    """Register the shortening tool."""

    async def run(text: str) -> str:
        """Cut a text to its first characters."""
        return shorten(text, config.limit)

    yield FunctionInfo.from_fn(run, description=run.__doc__)
'''
GROUP = '''"""Components of the counter."""

from collections.abc import AsyncGenerator

import nat.plugin_api as nat
from pydantic import Field
from nat_x.logic import Counter


class CounterConfig(nat.FunctionGroupBaseConfig, name="nat_x_counter"):
    """Configuration of the counter group."""

    start: int = 0
    include: list[str] = Field(default_factory=lambda: ["add"], description="Functions offered.")


@nat.register_function_group(config_type=CounterConfig)
async def counter(config: CounterConfig, _builder: nat.Builder) -> AsyncGenerator[nat.FunctionGroup, None]:
    """Register the counter group."""
    state = Counter(config.start)
    group = nat.FunctionGroup(config=config)

    async def add(step: int) -> str:
        """Add a step to the count."""
        return state.add(step)

    async def total() -> str:
        """Answer with the count."""
        return state.total()

    for name, function in (("add", add), ("total", total)):
        group.add_function(name, function, description=function.__doc__)
    yield group
'''
COUNTER = '''"""State of the counter."""


class Counter:
    """A count that only grows."""

    def __init__(self, start: int = 0):
        self._count = start

    def add(self, step: int) -> str:
        """Add a step to the count."""
        self._count += step
        return self.total()

    def total(self) -> str:
        """Answer with the count."""
        return str(self._count)
'''
HOSTILE = '''"""."""
from typing import Any as Text
from nat.plugin_api import *

class ToolConfig(FunctionBaseConfig, name="nat_x_tool"):
    """ToolConfig"""
    limit: Any = 3

@register_function(config_type=ToolConfig)
async def tool(config: Any, builder: 1) -> "Any":
    """."""
    async def run(text: Text) -> Any | None:
        """run run run"""
        try:
            return text
        except: return "error"
    yield FunctionInfo.from_fn(run, description="tool")
'''
HOSTILE_LOGIC = '''"""."""
def shorten(text: object, limit=3) -> "object":
    """Shorten."""
    try:
        return text
    except Exception: return ""
'''


def outline(text: str) -> Any:
    return read("python", text)["value"]


def scores(register: str = REGISTER, logic: str = LOGIC) -> dict[str, float]:
    """Name -> score against the specification of the example tool."""
    points = check_code(
        outline(register), outline(logic), types={"nat_x_tool": "function"}, functions=["shorten"], classes=[]
    )
    assert all(point.stage == "code" and point.evidence for point in points)
    return {point.name: point.score for point in points}


def evidence(name: str, register: str = REGISTER, logic: str = LOGIC) -> str:
    points = check_code(outline(register), outline(logic), types={"nat_x_tool": "function"}, functions=["shorten"])
    return next(point.evidence for point in points if point.name == name)


# ---------------------------------------------------------------- good projects


def test_a_good_project_gets_every_point_with_and_without_a_specification() -> None:
    assert set(scores().values()) == {1.0}
    free = check_code(outline(REGISTER), outline(LOGIC), types=None, functions=None)
    assert {point.score for point in free} == {1.0}
    assert set(scores()) - {point.name for point in free} == {"logic"}


def test_a_group_needs_its_own_base_and_decorator_and_a_described_field() -> None:
    points = check_code(
        outline(GROUP), outline(COUNTER), types={"nat_x_counter": "group"}, functions=[], classes=["Counter"]
    )
    assert [point.name for point in points if point.score < 1.0] == ["config fields"]
    lost = next(point for point in points if point.name == "config fields")
    assert (lost.score, lost.evidence) == (0.5, "register.py:13: start has no Field(description=...)")


def test_functions_handed_over_in_a_loop_are_all_looked_at() -> None:
    worse = GROUP.replace("async def total() -> str", "def total()")
    points = check_code(outline(worse), outline(COUNTER), types={"nat_x_counter": "group"}, functions=[])
    inner = next(point for point in points if point.name == "inner function")
    assert inner.score == pytest.approx(1 - 2 / 8)  # 1 handed over, 1 found, 2 x (async, hinted, described)


@pytest.mark.parametrize(("family", "level"), [(family, level) for family in LEVELS for level in LEVELS[family]])
def test_a_reference_project_gets_every_point(family: str, level: int) -> None:
    specs = (sample_spec(family, level, random.Random(f"static-{attempt}"), task_id="t") for attempt in range(20))
    spec = next(spec for spec in specs if spec is not None)
    files = render_project(spec)
    register = outline(files[spec.register_path])
    names = [name for tool in spec.tools for name in FAMILIES[tool.family].exports(tool)]
    code = check_code(
        register,
        outline(files[spec.logic_path]),
        types=types_of(spec),
        functions=names,
        classes=[spec.group.class_name] if spec.group else [],
    )
    points = [*code]
    for path, text in files.items():
        if path.endswith(".yml"):
            value = read("yaml", text)["value"]
            points += check_config(path, value, known_types=config_types(register), project_files=files)
            assert why_unsafe(value, text=text) is None
    project = read("toml", files["pyproject.toml"])["value"]
    points += check_pyproject(project, spec.package, f"{spec.package}.register")
    assert not [point for point in points if point.score < 1.0]


def types_of(spec: NATSpec) -> dict[str, Kind]:
    types: dict[str, Kind] = {tool.type_name: "function" for tool in spec.tools}
    if spec.group:
        types[spec.group.type_name] = "group"
    if spec.workflow.kind in ("router", "pipeline"):
        types[spec.workflow.type_name] = "function"
    return types


# ---------------------------------------------------------------- what costs points


@pytest.mark.parametrize(
    ("name", "old", "new", "score"),
    [
        ("config class", "(FunctionBaseConfig, ", "(BaseModel, ", 2 / 3),
        ("config class", '"""Configuration of the shortener."""', '"""."""', 2 / 3),
        ("config class", 'name="nat_x_tool"', 'name="nat_y_tool"', 0.0),
        ("builder", "@register_function(config_type=ToolConfig)", "", 0.0),
        ("builder", "@register_function(", "@register_function_group(", 4 / 5),
        ("builder", "async def tool", "def tool", 4 / 5),
        ("builder", "config: ToolConfig, _builder: Builder", "config: ToolConfig", 4 / 5),
        ("builder", "_builder: Builder", "_builder", 4 / 5),
        ("builder", "yield FunctionInfo", "return FunctionInfo", 4 / 5),
        ("inner function", "async def run", "def run", 4 / 5),
        ("inner function", "text: str) -> str:", "text: list[Any]) -> str:", 4 / 5),
        ("inner function", "run(text: str) -> str:", "run(text: str):", 4 / 5),
        ("inner function", "from_fn(run, ", "from_fn(lambda text: text, ", 1.0),
        ("inner function", "FunctionInfo.from_fn(run, description=run.__doc__)", "1", 0.0),
        ("config fields", ', description="Characters kept."', "", 0.0),
        ("config fields", '"Characters kept."', '"."', 0.0),
    ],
)
def test_a_defect_in_register_costs_its_own_point(name: str, old: str, new: str, score: float) -> None:
    assert REGISTER.count(old) == 1
    assert scores(REGISTER.replace(old, new))[name] == pytest.approx(score)


@pytest.mark.parametrize(
    ("body", "good"),
    [
        ("try:\n        return text[:limit]\n    except ValueError:\n        return 'error: no'", True),
        ("try:\n        return text[:limit]\n    except Exception as e:\n        return f'error: {e}'", True),
        ("try:\n        return text[:limit]\n    except Exception:\n        raise", True),
        ("for _ in text:\n        try:\n            int(text)\n        except ValueError:\n            continue", True),
        ("try:\n        return text[:limit]\n    except:\n        raise", False),
        ("try:\n        return text[:limit]\n    except Exception:\n        return 'error: no'", False),
        ("try:\n        return text[:limit]\n    except Exception as e:\n        return 'error: no'", False),
        ("try:\n        return text[:limit]\n    except (KeyError, BaseException):\n        limit = 1", False),
        ("try:\n        return text[:limit]\n    except ValueError:\n        pass", False),
        ("for _ in text:\n        try:\n            int(text)\n        except Exception:\n            continue", False),
        ("try:\n        limit += 1\n    finally:\n        return text[:limit]", False),
        ("with contextlib.suppress(Exception):\n        return text[:limit]", False),
        ("with contextlib.suppress(KeyError):\n        return text[:limit]", True),
    ],
)
def test_a_swallowed_exception_costs_the_errors_point(body: str, good: bool) -> None:
    logic = LOGIC.replace('return text[:limit] if text else "error: empty"', body)
    assert scores(logic=logic)["errors"] == float(good)
    assert good or "logic.py:" in evidence("errors", logic=logic)


@pytest.mark.parametrize(
    "body",
    ["pass", "...", "return 'a' 'b'", "return text", "raise NotImplementedError", "return", "return ('x', -1)[0]"],
)
def test_a_stub_costs_its_point(body: str) -> None:
    logic = LOGIC.replace('return text[:limit] if text else "error: empty"', body)
    assert scores(logic=logic)["no stub"] == 0.0
    assert evidence("no stub", logic=logic).startswith("logic.py:4: shorten ")


def test_a_missing_hint_or_docstring_costs_its_share_and_is_named() -> None:
    # register.py: tool and run have 3 + 2 hints; logic.py: shorten has 3.
    logic = LOGIC.replace("limit: int = 3", "limit=3").replace("Cut a text to its first characters.", "Shorten.")
    found = scores(logic=logic)
    assert found["type hints"] == pytest.approx(7 / 8)
    assert found["docstrings"] == pytest.approx(2 / 3)
    assert evidence("type hints", logic=logic) == "logic.py:4: shorten(limit) has no type hint"


def test_two_classes_of_one_name_and_missing_functions_are_found() -> None:
    twice = REGISTER + REGISTER.split("\n\n\n")[1].replace("class ToolConfig", "class OtherConfig")
    assert scores(twice)["config class"] == 0.0
    assert scores(logic=LOGIC.replace("def shorten", "def cut"))["logic"] == 0.0
    assert evidence("logic", logic=LOGIC.replace("def shorten", "def cut")) == "logic.py: no function 'shorten'"


def test_an_unreadable_file_earns_nothing_that_needs_it() -> None:
    points = {
        point.name: point.score
        for point in check_code(outline(REGISTER), None, types={"nat_x_tool": "function"}, functions=["shorten"])
    }
    assert points["valid Python"] == 0.5
    assert points["builder"] == 1.0
    assert {points[name] for name in ("logic", "type hints", "docstrings", "errors", "no stub")} == {0.0}
    empty = check_code(outline(""), outline(""), types={"nat_x_tool": "function"}, functions=["shorten"])
    assert {point.name for point in empty if point.score > 0} == {"valid Python"}


# ---------------------------------------------------------------- hostile texts and values


def test_padding_earns_no_points_for_hints_docstrings_or_errors() -> None:
    found = scores(HOSTILE, HOSTILE_LOGIC)
    for name in ("type hints", "docstrings", "errors", "config fields"):
        assert found[name] == 0.0, (name, evidence(name, HOSTILE, HOSTILE_LOGIC))
    assert found["inner function"] == pytest.approx(3 / 5)  # handed over, found, async; neither hinted nor described


@pytest.mark.parametrize(
    ("text", "name", "good"),
    [
        ("Convert a length.", "convert", True),
        (".", "f", False),
        ("todo", "f", False),
        ("Length convert tool.", "LengthConvertTool", False),
        ("tool tool tool", "run", False),
        ("1 2 3 4", "run", False),
        ("Register nat_x_tool.", "tool", True),
        (None, "f", False),
    ],
)
def test_a_docstring_has_three_words_besides_the_name(text: str | None, name: str, good: bool) -> None:
    assert is_informative(text, name) is good


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["functions", "classes", "handlers", "name", "line"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(register=JSON, logic=JSON)
@settings(max_examples=50, deadline=None)
def test_any_value_in_place_of_an_outline_is_answered_with_points(register: Any, logic: Any) -> None:
    points = check_code(register, logic, types={"a": "function", "b": "group"}, functions=["f"], classes=["C"])
    assert len(points) == 10
    assert sum(point.score for point in points) == 0.0
    assert check_code(register, logic, types=None, functions=None)


@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_an_outline_with_a_part_replaced_by_anything_is_answered_with_points(data: st.DataObject) -> None:
    value = outline(REGISTER)
    entries = value[data.draw(st.sampled_from(["functions", "classes"]))]
    entry = data.draw(st.sampled_from(entries))
    entry[data.draw(st.sampled_from(sorted(entry)))] = data.draw(JSON | st.text() | st.just("\ud800\x1b[2J"))
    points = check_code(value, outline(LOGIC), types={"nat_x_tool": "function"}, functions=["shorten"])
    assert len(points) == 10
    assert all(point.evidence.isprintable() for point in points)
