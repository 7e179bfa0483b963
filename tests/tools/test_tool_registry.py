"""Running one call: whatever its arguments, its schema and its tool do, the answer is text within the time limit."""

import asyncio
import sys
import threading
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from waiting import wait_for

from agent_rl.agent.messages import ToolCall
from agent_rl.errors import SandboxError
from agent_rl.tools.answer_tool import AnswerTool
from agent_rl.tools.base import BaseTool, ToolRegistry, ToolResult
from agent_rl.tools.schema import check_arguments


class Doing(BaseTool):
    """Does what it was given to do."""

    name = "do"
    description = "Do."
    parameters = {"type": "object", "properties": {}}

    def __init__(self, do: Any, timeout_s: float | None) -> None:
        self.do = do
        self.timeout_s = timeout_s

    def __call__(self, **arguments: Any) -> ToolResult:
        return self.do()


def outcome(do: Any, timeout_s: float | None) -> ToolResult:
    return ToolRegistry([Doing(do, timeout_s)]).run(ToolCall(name="do", arguments={}))


def raising(error: BaseException) -> Any:
    def do() -> ToolResult:
        raise error

    return do


def test_without_a_limit_a_call_runs_in_the_callers_thread_and_with_one_in_a_daemon_thread() -> None:
    ran_in = []

    def do() -> ToolResult:
        ran_in.append(threading.current_thread())
        return ToolResult(text="done")

    assert (outcome(do, None).text, outcome(do, 5.0).text) == ("done", "done")
    assert ran_in[0] is threading.current_thread()
    assert ran_in[1] is not threading.current_thread()
    assert (ran_in[1].daemon, ran_in[1].name) == (True, "tool do")


def test_a_late_call_is_answered_and_left_behind() -> None:
    release, ended = threading.Event(), threading.Event()

    def do() -> ToolResult:
        release.wait(20)
        ended.set()
        return ToolResult(text="late")

    assert outcome(do, 0.05) == ToolResult(text="error: do: gave no answer within 0.05 s", ok=False)
    assert not ended.is_set()
    release.set()
    wait_for(ended.is_set)


def test_a_tools_own_timeout_error_is_not_taken_for_ours() -> None:
    assert outcome(raising(TimeoutError("the site is slow")), 5.0).text == "error: do: TimeoutError: the site is slow"


@pytest.mark.parametrize("timeout_s", [None, 5.0])
def test_a_failing_sandbox_leaves_run_as_it_is_with_and_without_a_limit(timeout_s: float | None) -> None:
    with pytest.raises(SandboxError, match="no server"):
        outcome(raising(SandboxError("no server")), timeout_s)


@pytest.mark.parametrize("timeout_s", [None, 5.0])
def test_a_tool_that_fails_exits_or_returns_something_else_is_answered(timeout_s: float | None) -> None:
    assert outcome(raising(ValueError("bad")), timeout_s).text == "error: do: ValueError: bad"
    assert outcome(lambda: sys.exit(3), timeout_s) == ToolResult(text="error: do: SystemExit: 3", ok=False)
    leaked = outcome(raising(asyncio.CancelledError("scope")), timeout_s)
    assert leaked == ToolResult(text="error: do: CancelledError: scope", ok=False)
    wrong = outcome(lambda: ["text"], timeout_s)
    assert not wrong.ok and wrong.text.startswith("error: do: TypeError: the tool returned list")


@pytest.mark.parametrize("timeout_s", [None, 5.0])
def test_a_text_is_a_result(timeout_s: float | None) -> None:
    assert outcome(lambda: "text", timeout_s) == ToolResult(text="text")


@pytest.mark.parametrize("timeout_s", [None, 5.0])
def test_a_result_whose_text_is_no_text_is_answered(timeout_s: float | None) -> None:
    wrong = outcome(lambda: ToolResult(text=5), timeout_s)  # type: ignore[arg-type]
    assert wrong.text == "error: do: TypeError: the tool returned a text of type int, expected str"
    assert not wrong.ok


def test_a_tool_whose_calls_never_end_is_not_called_without_end() -> None:
    release = threading.Event()

    def do() -> ToolResult:
        release.wait(20)
        return ToolResult(text="done")

    stuck, other = Doing(do, 0.01), Doing(lambda: ToolResult(text="fine"), 5.0)
    call = ToolCall(name="do", arguments={})
    texts = [ToolRegistry([stuck]).run(call).text for _ in range(20)]
    assert texts[:9] == ["error: do: gave no answer within 0.01 s"] * 9
    assert set(texts[9:]) == {
        "error: do: 9 earlier calls of it have not ended yet; go on without it, or try again later"
    }
    assert ToolRegistry([other]).run(call).text == "fine"
    release.set()
    wait_for(lambda: ToolRegistry([stuck]).run(call).text == "done")


def test_the_answer_tool_ends_the_episode_and_keeps_the_answer() -> None:
    registry = ToolRegistry([AnswerTool()])
    result = registry.run(ToolCall(name="answer", arguments={"answer": "Paris"}))
    assert result == ToolResult(text="answered", terminal=True, facts={"answer": "Paris"})
    numbers = [registry.run(ToolCall(name="answer", arguments={"answer": n})) for n in (42, 2.50)]
    assert [(result.terminal, result.facts["answer"]) for result in numbers] == [(True, "42"), (True, "2.5")]
    refused = registry.run(ToolCall(name="answer", arguments={"answer": True}))
    assert (refused.text, refused.terminal) == (
        "error: answer: argument 'answer' must be a JSON string or number, got bool",
        False,
    )


POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": ["integer", "null"]},
        "unit": {"enum": ["kg", 1, None]},
        "kind": {"const": "a"},
        "size": {"anyOf": [{"type": "number"}, {"type": "string"}]},
        "place": {"oneOf": [{"$ref": "#/$defs/a~1b"}, {"type": "null"}]},
        "points": {"type": "array", "items": {"$ref": "#/$defs/a~1b"}},
        "pair": {"prefixItems": [{"type": "string"}], "items": {"type": "integer"}},
        "strict": {"allOf": [POINT, {"properties": {"y": {"type": "string"}}}]},
        "closed": {**POINT, "additionalProperties": False},
        "table": {"type": "object", "additionalProperties": {"type": "integer"}},
        "either": {"anyOf": [{**POINT, "required": []}, {"type": "object", "required": ["z"]}]},
        "remote": {"$ref": "https://example.org/schema.json"},
        "loop": {"$ref": "#/properties/loop"},
        "anything": True,
    },
    "$defs": {"a/b": POINT},
}


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"n": 3},
        {"n": None},
        {"unit": "kg"},
        {"unit": 1},
        {"unit": None},
        {"kind": "a"},
        {"size": 1.5},
        {"size": "large"},
        {"place": {"x": 1, "other": 2}},
        {"place": None},
        {"points": [{"x": 1}, {"x": 2}]},
        {"pair": ["a", 1, 2]},
        {"strict": {"x": 1, "y": "b"}},
        {"closed": {"x": 1}},
        {"table": {"a": 1, "b": 2}},
        {"either": {"x": 1}},
        {"remote": [1], "loop": {"a": 1}, "anything": {"deep": [None]}},
    ],
)
def test_arguments_that_fit_a_schema_pass(arguments: dict[str, Any]) -> None:
    assert check_arguments(arguments, SCHEMA) is None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"n": "3"}, "argument 'n' must be a JSON integer or null, got str"),
        ({"n": True}, "argument 'n' must be a JSON integer or null, got bool"),
        ({"unit": "lb"}, 'argument \'unit\' must be one of "kg", 1, null, got "lb"'),
        ({"unit": True}, "argument 'unit' must be one of \"kg\", 1, null, got true"),
        ({"kind": "b"}, 'argument \'kind\' must be "a", got "b"'),
        ({"size": [1]}, "argument 'size' must be a JSON number or string, got list"),
        ({"place": {}}, "argument 'place.x' is missing; expected x"),
        ({"place": 3}, "argument 'place' must be a JSON object or null, got int"),
        ({"points": [{"x": 1}, {"x": "2"}]}, "argument 'points[1].x' must be a JSON integer, got str"),
        ({"pair": [1]}, "argument 'pair[0]' must be a JSON string, got int"),
        ({"pair": ["a", "b"]}, "argument 'pair[1]' must be a JSON integer, got str"),
        ({"strict": {"x": 1, "y": 2}}, "argument 'strict.y' must be a JSON string, got int"),
        ({"closed": {"x": 1, "xx": 2}}, "unknown argument 'closed.xx'; did you mean 'x'?; expected: x"),
        ({"table": {"a": "1"}}, "argument 'table.a' must be a JSON integer, got str"),
        ({"either": {"x": "1"}}, "argument 'either' fits none of the forms that it may take"),
    ],
)
def test_what_does_not_fit_a_schema_is_reported(arguments: dict[str, Any], complaint: str) -> None:
    assert check_arguments(arguments, SCHEMA) == complaint


def test_unknown_names_are_refused_unless_the_schema_allows_them() -> None:
    closed = {"properties": {"a": {"type": "string"}}}
    assert check_arguments({"b": 1}, closed) == "unknown argument 'b'; expected: a"
    assert check_arguments({"b": 1}, {}) == "unknown argument 'b'; expected: none"
    assert check_arguments({"b": 1}, {**closed, "additionalProperties": True}) is None
    others = {**closed, "additionalProperties": {"type": "string"}}
    assert check_arguments({"b": 1}, others) == "argument 'b' must be a JSON string, got int"
    for key in ("patternProperties", "allOf", "anyOf"):
        assert check_arguments({"b": 1}, {**closed, key: []}) is None
    assert (
        check_arguments({"b": 1}, {"$ref": "#/$defs/A", "$defs": {"A": closed}}) == "unknown argument 'b'; expected: a"
    )


def test_a_rule_for_all_arguments_names_no_argument() -> None:
    schema = {"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert check_arguments({"b": 1}, schema) is None
    assert check_arguments({}, schema) == "the object of arguments fits none of the forms that it may take"


@pytest.mark.parametrize("schema", [{"properties": {"a": False}}, {"properties": {"a": {"items": False}}}])
def test_a_value_that_a_schema_forbids_is_not_shown(schema: dict[str, Any]) -> None:
    complaint = check_arguments({"a": ["x" * 1000]}, schema)
    assert complaint and "xx" not in complaint


def test_a_schema_that_refers_to_itself_checks_a_tree_and_ends() -> None:
    node = {"properties": {"value": {"type": "integer"}, "next": {"$ref": "#"}}}
    assert check_arguments({"value": 1, "next": {"value": 2, "next": {"value": "3"}}}, node) == (
        "argument 'next.next.value' must be a JSON integer, got str"
    )
    bomb = {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 9}}}
    assert check_arguments({"a": 1}, bomb) is None


def test_a_schema_made_to_run_for_years_ends() -> None:
    levels = {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 9} for i in range(30)}
    bomb = {"properties": {"a": {"$ref": "#/$defs/a0"}}, "$defs": {**levels, "a30": {"type": "string"}}}
    assert check_arguments({"a": 1}, bomb) is None
    slow = {"pattern": "(a+)+$", "$schema": "http://json-schema.org/draft-07/schema#"}
    others = {"patternProperties": {"(a+)+$": False}, "$schema": "http://json-schema.org/draft-07/schema#"}
    value = {"a": "a" * 40 + "!", "b": {"a" * 40 + "!": 1}}
    assert check_arguments(value, {"properties": {"a": {"allOf": [slow]}, "b": {"allOf": [others]}}}) is None


def test_a_value_that_is_too_deep_or_too_long_to_be_shown_is_named_by_its_type() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    schema = {"properties": {"a": {"enum": [1]}, "b": {"items": {"$ref": "#/properties/b"}}}}
    assert check_arguments({"a": deep}, schema) == "argument 'a' must be 1, got list"
    assert check_arguments({"a": 10**5000}, schema) == "argument 'a' must be 1, got int"
    assert check_arguments({"b": deep}, schema) is None


def test_long_lists_of_choices_and_long_values_are_shortened() -> None:
    schema = {"properties": {"n": {"enum": list(range(100))}}}
    listed = ", ".join(str(number) for number in range(20))
    assert check_arguments({"n": 100}, schema) == f"argument 'n' must be one of {listed}, ..., got 100"
    text = check_arguments({"n": "x" * 500}, schema)
    assert text == f"argument 'n' must be one of {listed}, ..., got \"{'x' * 76}..."


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(allow_nan=False), st.sampled_from("abc")),
    lambda parts: st.one_of(st.lists(parts, max_size=3), st.dictionaries(st.sampled_from("abc"), parts, max_size=3)),
    max_leaves=6,
)
KEYS = ["type", "properties", "required", "additionalProperties", "enum", "const", "anyOf", "oneOf", "allOf", "items"]
TYPES = ["object", "array", "string", "integer", "null", "nonsense", "#", "#/$defs/a", "#/properties/b", "a", "b"]
SCHEMAS = st.recursive(
    st.one_of(JSON, st.sampled_from(TYPES)),
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.dictionaries(st.sampled_from([*KEYS, "$ref", "$defs", "prefixItems", "a", "b"]), parts, max_size=4),
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from("abc"), JSON, max_size=3), SCHEMAS)
@example({"a": 1}, {"properties": {"a": {"type": {}}}, "required": [{}]})
@example({"a": {"b": 1}}, {"properties": {"a": {"properties": [], "required": 3, "enum": {}, "$ref": 4}}})
@example({"a": 1}, {"properties": {"a": {"$ref": "#"}}, "$ref": "#"})
def test_no_schema_at_all_makes_the_check_fail(arguments: dict[str, Any], schema: Any) -> None:
    complaint = check_arguments(arguments, schema)
    assert complaint is None or "argument" in complaint


def test_half_of_a_surrogate_pair_in_an_answer_becomes_a_question_mark() -> None:
    assert outcome(lambda: ToolResult(text="a\ud800b\U0001f600"), None).text == "a?b\U0001f600"
    assert outcome(raising(ValueError("\udfff")), None).text == "error: do: ValueError: ?"
