"""Parsing replies: right calls survive anything in their strings, broken ones are named, nothing raises or hangs."""

import json
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_rl.agent.messages import ToolCall
from agent_rl.agent.tool_parser import MAX_NESTING, dump_call, parse_tool_calls

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def errors_of(text: str) -> list[str]:
    reply = parse_tool_calls(text)
    assert reply.calls == ()
    return [error.kind for error in reply.errors]


def test_a_call_is_read_with_its_span_and_cut_out_of_the_content() -> None:
    reply = parse_tool_calls(f"I add.\n{ADD}")
    assert reply.content == "I add."
    assert reply.calls == (ToolCall(name="add", arguments={"a": 1}, span=(7, 7 + len(ADD))),)
    assert reply.errors == ()


def test_several_calls_are_read_in_order_and_text_around_them_is_kept() -> None:
    reply = parse_tool_calls('a<tool_call>{"name":"x"}</tool_call>b<tool_call>{"name":"y"}</tool_call>c')
    assert [call.name for call in reply.calls] == ["x", "y"]
    assert reply.content == "abc"


def test_a_string_may_hold_tags_braces_quotes_and_backslashes() -> None:
    content = 'print("</tool_call>") # <tool_call>{"name": "no"} }}{ \\" \\'
    text = f"<tool_call>{json.dumps({'name': 'write', 'arguments': {'content': content}})}</tool_call>"
    reply = parse_tool_calls(text)
    assert [call.arguments for call in reply.calls] == [{"content": content}]
    assert (reply.content, reply.errors) == ("", ())


def test_arguments_may_be_missing_or_a_string_that_holds_an_object() -> None:
    assert parse_tool_calls('<tool_call>{"name": "submit"}</tool_call>').calls[0].arguments == {}
    text = '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>'
    assert parse_tool_calls(text).calls[0].arguments == {"a": 1}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("<tool_call>", "unclosed"),
        ('<tool_call>{"name": "add", "arguments": {"a": "cut he', "unclosed"),
        ('<tool_call>{"name": "add"}', "unclosed"),
        ('<tool_call>{"name": "add" "arguments": {}}</tool_call>', "bad_json"),
        ('<tool_call>{"name": "add", "arguments": {}</tool_call>', "bad_json"),
        ('<tool_call>{"name": "add"}}</tool_call>', "bad_json"),
        ('<tool_call>{"name": "add", "arguments": {"a": "line\nbreak"}}</tool_call>', "bad_json"),
        ('<tool_call>{"name": "add", "arguments": {"a": ' + "9" * 5000 + "}}</tool_call>", "bad_json"),
        ('<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>', "bad_json"),
        ('<tool_call>{"name": "add", "arguments": {"a": 1e999}}</tool_call>', "bad_json"),
        ('<tool_call>{"name": "add", "arguments": {"a": "\\ud800"}}</tool_call>', "bad_json"),
        ("<tool_call>add(1)</tool_call>", "bad_json"),
        ("<tool_call></tool_call>", "bad_json"),
        ("<tool_call>[1, 2]</tool_call>", "not_an_object"),
        ('<tool_call>"add"</tool_call>', "not_an_object"),
        ('<tool_call>{"arguments": {}}</tool_call>', "no_name"),
        ('<tool_call>{"name": 3}</tool_call>', "no_name"),
        ('<tool_call>{"name": " "}</tool_call>', "no_name"),
        ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "bad_arguments"),
        ('<tool_call>{"name": "add", "arguments": null}</tool_call>', "bad_arguments"),
        ('<tool_call>{"name": "add", "arguments": "a=1"}</tool_call>', "bad_arguments"),
        ('<tool_call>{"name": "add", "arguments": "[1]"}</tool_call>', "bad_arguments"),
    ],
)
def test_a_broken_call_is_named_for_what_is_wrong_and_cut_out(text: str, kind: str) -> None:
    assert errors_of(text) == [kind]
    reply = parse_tool_calls(f"before {text}")
    assert reply.content == "before"
    assert reply.errors[0].span == (7, 7 + len(text))


def test_the_message_says_where_the_json_breaks_or_what_a_call_looks_like() -> None:
    error = parse_tool_calls('<tool_call>{"name": "add" "arguments": {}}</tool_call>').errors[0]
    assert "Expecting ',' delimiter at character 15" in error.message
    error = parse_tool_calls("<tool_call>[]</tool_call>").errors[0]
    assert "got list" in error.message
    assert '{"name": "tool", "arguments": {...}}' in error.message


def test_a_good_call_after_a_broken_one_is_still_read() -> None:
    reply = parse_tool_calls(f'x <tool_call>{{"name": "add", \n {ADD} y')
    assert [error.kind for error in reply.errors] == ["unclosed"]
    assert [call.name for call in reply.calls] == ["add"]
    assert reply.content == "x  y"


def test_nesting_is_read_up_to_the_limit_and_refused_beyond_it() -> None:
    def nested(levels: int) -> str:
        # The call and its arguments are two levels themselves.
        lists = "[" * (levels - 2) + "]" * (levels - 2)
        return f'<tool_call>{{"name": "add", "arguments": {{"a": {lists}}}}}</tool_call>'

    assert len(parse_tool_calls(nested(MAX_NESTING)).calls) == 1
    assert errors_of(nested(MAX_NESTING + 1)) == ["bad_json"]
    assert errors_of(nested(100_000)) == ["bad_json"]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 100_000,
        "<tool_call>" + "{" * 100_000,
        "<tool_call>{" * 100_000,
        '<tool_call>{"' * 100_000,
        '<tool_call>{"a":"' * 100_000,
        '<tool_call>{"a' * 100_000 + '"}',
        '<tool_call>{"a\\"' * 100_000,
        "<tool_call>" + '{"a":' * 100_000,
        "<tool_call>[" * 100_000 + "</tool_call>",
        "<tool_call>{" + "}<tool_call>{" * 100_000,
        '<tool_call>{"a":1}' * 100_000,
        "<tool_call>" + " " * 1_000_000,
        "</tool_call>" * 100_000,
    ],
)
def test_hostile_text_is_parsed_in_linear_time(text: str) -> None:
    started = time.process_time()
    parse_tool_calls(text)
    assert time.process_time() - started < 5.0


fragments = st.lists(
    st.sampled_from(
        [
            "<tool_call>",
            "</tool_call>",
            "{",
            "}",
            '"',
            "\\",
            '"name"',
            ":",
            '"add"',
            ",",
            '"arguments"',
            "{}",
            " ",
            "\n",
            "[",
            "1",
        ]
    )
).map("".join)


@given(st.one_of(st.text(), fragments))
@example("\ud800<tool_call>\ud800")
@example('<tool_call>{"name": "\ud800"}</tool_call>')
@settings(max_examples=400, deadline=None)
def test_any_text_gives_content_that_is_the_text_with_the_spans_cut(text: str) -> None:
    reply = parse_tool_calls(text)
    spans = sorted(item.span for item in (*reply.calls, *reply.errors))
    kept, position = "", 0
    for start, end in spans:
        assert position <= start < end <= len(text)
        kept += text[position:start]
        position = end
    assert reply.content == (kept + text[position:]).strip()


json_text = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["</tool_call>", "<tool_call>{", '\\"}']
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | json_text,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(json_text, children, max_size=3),
    max_leaves=8,
)
calls = st.builds(
    lambda name, arguments: ToolCall(name=name, arguments=arguments),
    json_text.filter(str.strip),
    st.dictionaries(json_text, json_values, max_size=3),
)


@given(st.lists(calls, max_size=4), st.sampled_from(["", "Let me see.", "a < b"]))
@settings(max_examples=150, deadline=None)
def test_calls_written_out_are_read_back(wanted: list[ToolCall], content: str) -> None:
    text = content + "".join(f"\n<tool_call>\n{dump_call(call)}\n</tool_call>" for call in wanted)
    reply = parse_tool_calls(text)
    assert [(call.name, call.arguments) for call in reply.calls] == [(call.name, call.arguments) for call in wanted]
    assert (reply.content, reply.errors) == (content, ())
