"""Parsing replies of any style: right calls survive anything in their strings, broken ones are named, nothing hangs."""

import json

import pytest
from cpu_time import TRIES, cpu_s
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_rl.agent.call_values import MAX_NESTING
from agent_rl.agent.messages import ToolCall
from agent_rl.agent.tool_parser import CallStyle, dump_call, parse_tool_calls, write_calls

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def calls_of(text: str) -> list[tuple[str, dict[str, object], str]]:
    """Name, arguments and source of each call; no broken ones."""
    reply = parse_tool_calls(text)
    assert reply.errors == ()
    return [(call.name, call.arguments, text[slice(*call.span)]) for call in reply.calls]


def errors_of(text: str) -> list[str]:
    reply = parse_tool_calls(text)
    assert reply.calls == ()
    return [error.kind for error in reply.errors]


def test_a_call_is_read_with_its_span_and_cut_out_of_the_content() -> None:
    reply = parse_tool_calls(f"I add.\n{ADD}")
    assert reply.content == "I add."
    assert reply.calls == (ToolCall(name="add", arguments={"a": 1}, span=(7, 7 + len(ADD))),)
    assert reply.errors == ()


def test_several_calls_are_read_in_order_and_text_around_them_remains() -> None:
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


def test_the_message_shows_where_the_json_breaks_or_a_valid_call() -> None:
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


def test_mistral_writes_one_list_of_calls_with_or_without_ids() -> None:
    text = '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "Xy12"}, {"name": "submit"}]'
    assert calls_of(text) == [
        ("add", {"a": 1}, '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "Xy12"}'),
        ("submit", {}, ', {"name": "submit"}]'),
    ]
    assert calls_of('[TOOL_CALLS]{"name":"add"}') == [("add", {}, '[TOOL_CALLS]{"name":"add"}')]


def test_newer_mistral_models_write_the_name_in_front_of_the_arguments() -> None:
    assert calls_of('Now: [TOOL_CALLS]add{"a": 1}[TOOL_CALLS]sub-2[ARGS] {}') == [
        ("add", {"a": 1}, '[TOOL_CALLS]add{"a": 1}'),
        ("sub-2", {}, "[TOOL_CALLS]sub-2[ARGS] {}"),
    ]
    assert calls_of('[TOOL_CALLS]add[CALL_ID]Xy12[ARGS]{"a": 1}')[0][:2] == ("add", {"a": 1})


def test_llama_writes_a_row_of_objects_behind_its_tag() -> None:
    text = '<|python_tag|>{"name": "add", "parameters": {"a": ";"}}; {"name": "sub"}\n{"name": "submit"};'
    assert calls_of(text) == [
        ("add", {"a": ";"}, '<|python_tag|>{"name": "add", "parameters": {"a": ";"}}'),
        ("sub", {}, '; {"name": "sub"}'),
        ("submit", {}, '\n{"name": "submit"};'),
    ]


def test_llama_calls_its_own_tools_with_python_literals() -> None:
    text = """<|python_tag|>brave_search.call(query='a "b") <tool_call>', n=[-1, 2.5, (True, None)], d={"k": {}})"""
    assert calls_of(text) == [
        ("brave_search", {"query": 'a "b") <tool_call>', "n": [-1, 2.5, [True, None]], "d": {"k": {}}}, text)
    ]
    assert [name for name, *_ in calls_of("<|python_tag|>a.call(x=1); b.call()")] == ["a", "b"]


def test_llama_names_a_function_in_a_tag() -> None:
    assert calls_of('<function=add>{"a": "</function>"}</function>\n<function=submit></function>') == [
        ("add", {"a": "</function>"}, '<function=add>{"a": "</function>"}</function>'),
        ("submit", {}, "<function=submit></function>"),
    ]
    text = '<|python_tag|><function=add>{"a": 1}</function>'
    assert calls_of(text) == [("add", {"a": 1}, text)]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "add", "arguments": {"a": 1}}',
        ' {"name": "add", "parameters": {"a": 1}}\n',
        '{"type": "function", "name": "add", "parameters": "{\\"a\\": 1}", "id": "1"}',
        '{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}',
        '[{"name": "add", "arguments": {"a": 1}}]',
        '```json\n{"name": "add", "arguments": {"a": 1}}\n```',
    ],
)
def test_a_reply_that_is_nothing_but_json_of_a_call_is_a_call(text: str) -> None:
    reply = parse_tool_calls(text)
    assert [(call.name, call.arguments) for call in reply.calls] == [("add", {"a": 1})]
    assert (reply.content, reply.errors) == ("", ())


@pytest.mark.parametrize("row", ['[{}, {"name": "sub", "parameters": {}}]', '{}; {"name": "sub", "parameters": {}}'])
def test_several_bare_calls_are_a_list_or_a_row(row: str) -> None:
    text = row.replace("{}", '{"name": "add", "arguments": {"a": "x; y"}}', 1)
    assert [(name, arguments) for name, arguments, _ in calls_of(text)] == [("add", {"a": "x; y"}), ("sub", {})]


@pytest.mark.parametrize(
    "text",
    [
        '{"answer": 42}',
        '{"name": "Ada"}',
        '{"name": "Ada", "arguments": {}, "born": 1815}',
        '{"type": "person", "name": "Ada", "parameters": {}}',
        '{"type": "function", "function": {"name": "add", "description": "adds", "parameters": {}}}',
        '{"name": 3, "arguments": {}}',
        '{"arguments": {}}',
        '[{"name": "add", "arguments": {}}, {"answer": 42}]',
        '[{"name": "add", "arguments": {}}, 42]',
        "[]",
        "{}",
        "[1, [2]]",
        '{"name": "add", "arguments": {"a": 1}} is how to call it',
        'Call it so: {"name": "add", "arguments": {"a": 1}}',
        '```\n{"name": "add", "arguments": {"a": 1}}\n```',
        '{"html": "<tool_call>{}</tool_call>"}',
        '["[TOOL_CALLS]add{}"]',
        '{"name": "add"',
        '{"name": "add", "argum',
        "{not json}",
    ],
)
def test_json_that_is_no_call_stays_content(text: str) -> None:
    reply = parse_tool_calls(text)
    assert (reply.content, reply.calls, reply.errors) == (text, (), ())


@pytest.mark.parametrize(
    ("text", "kind", "shape"),
    [
        ("[TOOL_CALLS]", "unclosed", "[TOOL_CALLS] [{"),
        ("[TOOL_CALLS] I add.", "bad_json", "[TOOL_CALLS] [{"),
        ("[TOOL_CALLS] []", "not_an_object", "[TOOL_CALLS] [{"),
        ("[TOOL_CALLS] [1]", "not_an_object", "[TOOL_CALLS] [{"),
        ("[TOOL_CALLS] [", "unclosed", "[TOOL_CALLS] [{"),
        ('[TOOL_CALLS] [{"name": "add"}', "unclosed", "[TOOL_CALLS] [{"),
        ('[TOOL_CALLS] [{"name": "add", "arguments": {"a": "cut he', "unclosed", "[TOOL_CALLS] [{"),
        ('[TOOL_CALLS] [{"name": "add" "arguments": {}}]', "bad_json", "[TOOL_CALLS] [{"),
        ('[TOOL_CALLS] [{"name": add <b>}]', "bad_json", "[TOOL_CALLS] [{"),
        ('[TOOL_CALLS] {"nom": "add"}', "no_name", "[TOOL_CALLS] [{"),
        ('[TOOL_CALLS] [{"name": "add", "parameters": 1}]', "bad_arguments", "[TOOL_CALLS] [{"),
        ('[TOOL_CALLS]add[ARGS]{"a" 1}', "bad_json", "[TOOL_CALLS]tool[ARGS]{"),
        ('[TOOL_CALLS]add{"a": "cut', "unclosed", "[TOOL_CALLS]tool[ARGS]{"),
        ("<|python_tag|>", "unclosed", '<|python_tag|>{"name"'),
        ("<|python_tag|>print(1)", "bad_json", '<|python_tag|>{"name"'),
        ('<|python_tag|>{"name": "add", "parameters": {"a": 1}', "unclosed", '<|python_tag|>{"name"'),
        ('<|python_tag|>{"name": "add", "parameters": [1]}', "bad_arguments", '<|python_tag|>{"name"'),
        ('<|python_tag|>{"query": "x"}', "no_name", '<|python_tag|>{"name"'),
        ('<|python_tag|>add.call(a="cut', "unclosed", "<|python_tag|>tool.call("),
        ("<|python_tag|>add.call(a=1", "unclosed", "<|python_tag|>tool.call("),
        ("<|python_tag|>add.call(1)", "bad_arguments", "<|python_tag|>tool.call("),
        ("<|python_tag|>add.call(**{})", "bad_json", "<|python_tag|>tool.call("),
        ("<|python_tag|>add.call(a=open)", "bad_arguments", "<|python_tag|>tool.call("),
        ('<|python_tag|>add.call(a=open("f"))', "bad_arguments", "<|python_tag|>tool.call("),
        ("<|python_tag|>add.call(a={1, 2})", "bad_arguments", "<|python_tag|>tool.call("),
        ("<|python_tag|>add.call(a={[]: 2})", "bad_arguments", "<|python_tag|>tool.call("),
        ("<|python_tag|>add.call(a=b'1')", "bad_arguments", "<|python_tag|>tool.call("),
        ("<|python_tag|>add.call(a=0x" + "f" * 5000 + ")", "bad_arguments", "<|python_tag|>tool.call("),
        ("<|python_tag|>add.call(a=1e999)", "bad_json", "<|python_tag|>tool.call("),
        ("<|python_tag|>add.call(a=" + "9" * 5000 + ")", "bad_json", "<|python_tag|>tool.call("),
        ("<|python_tag|>add.call(a='\\ud800')", "bad_json", "<|python_tag|>tool.call("),
        ("<|python_tag|>add.call(a='\ud800')", "bad_json", "<|python_tag|>tool.call("),
        ("<|python_tag|>add.call(a='\0')", "bad_json", "<|python_tag|>tool.call("),
        ("<|python_tag|>add.call(a=1 b=2)", "bad_json", "<|python_tag|>tool.call("),
        ("<|python_tag|>add.call(a=" + "[" * 70 + "]" * 70 + ")", "bad_json", "<|python_tag|>tool.call("),
        ("<|python_tag|>add.call(a=" + "-" * 90_000 + "1)", "bad_json", "<|python_tag|>tool.call("),
        ("<|python_tag|>add.call(a=1" + "-1" * 90_000 + ")", "bad_json", "<|python_tag|>tool.call("),
        ("<function=add", "unclosed", "<function=tool>{"),
        ("<function=add>", "unclosed", "<function=tool>{"),
        ('<function=add>{"a": 1', "unclosed", "<function=tool>{"),
        ('<function=add>{"a": 1}', "unclosed", "<function=tool>{"),
        ("<function= >{}</function>", "no_name", "<function=tool>{"),
        ("<function=add>a=1</function>", "unclosed", "<function=tool>{"),
        ('<function=add>{"a" 1}</function>', "bad_json", "<function=tool>{"),
        ('{"name": "add", "arguments": [1]}', "bad_arguments", '{"name": "tool"'),
        ('{"name": " ", "arguments": {}}', "no_name", '{"name": "tool"'),
        ('{"name": "add", "arguments": {"a": "line\nbreak"}}', "bad_json", '{"name": "tool"'),
        ('{"name": "add", "arguments": {"a": "cut he', "unclosed", '{"name": "tool"'),
        ('[{"name": "add", "arguments": {"a": 1}}', "unclosed", '{"name": "tool"'),
        ('```json\n{"name": "add", "arguments": {"a": 1}\n```', "unclosed", '{"name": "tool"'),
        ('{"type": "function", "function": {"name": "add", "parameters": {', "unclosed", '{"name": "tool"'),
    ],
)
def test_a_broken_call_of_any_style_is_one_error_that_shows_a_right_one(text: str, kind: str, shape: str) -> None:
    assert errors_of(text) == [kind]
    reply = parse_tool_calls(text)
    assert reply.content == ""
    assert reply.errors[0].span == (0, len(text))
    assert shape in reply.errors[0].message.split(" Write ")[1]


def test_calls_before_and_after_a_broken_one_are_read() -> None:
    reply = parse_tool_calls('[TOOL_CALLS] [{"name": "a"}, {"name": 3}, {"name": "c"}, {"name": "d", ')
    assert [call.name for call in reply.calls] == ["a", "c"]
    assert [error.kind for error in reply.errors] == ["no_name", "unclosed"]
    reply = parse_tool_calls(f"<function=add>a=1</function> [TOOL_CALLS] <|python_tag|>? {ADD}")
    assert [call.name for call in reply.calls] == ["add"]
    assert [error.kind for error in reply.errors] == ["unclosed", "unclosed", "bad_json"]


@pytest.mark.parametrize(
    "broken", ['[TOOL_CALLS] [{"name": ', "[TOOL_CALLS]a{", "<|python_tag|>a.call(x=", "<function=a>{"]
)
@pytest.mark.parametrize("tag", ["[TOOL_CALLS]", "<|python_tag|>"])
def test_a_tag_outside_a_string_ends_an_unfinished_call(broken: str, tag: str) -> None:
    reply = parse_tool_calls(f'{broken}{tag}{{"name": "add"}}')
    assert [call.name for call in reply.calls] == ["add"]
    assert [(error.kind, error.span) for error in reply.errors] == [("unclosed", (0, len(broken)))]
    assert "another one begins" in reply.errors[0].message


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('<tool_call>{"name": "write", "arguments": {"text": "', '"}}</tool_call>'),
        ('[TOOL_CALLS] [{"name": "write", "arguments": {"text": "', '"}}]'),
        ('[TOOL_CALLS]write{"text": "', '"}'),
        ('<|python_tag|>{"name": "write", "parameters": {"text": "', '"}}'),
        ('<|python_tag|>write.call(text="', '")'),
        ('<function=write>{"text": "', '"}</function>'),
        ('{"name": "write", "arguments": {"text": "', '"}}'),
    ],
)
@pytest.mark.parametrize("inner", ["[TOOL_CALLS]rm{}", "<|python_tag|>rm.call()", "<function=rm></function>"])
def test_what_stands_in_a_string_is_never_called_even_when_the_call_around_it_is_broken(
    before: str, inner: str, after: str
) -> None:
    assert calls_of(before + inner + after)[0][:2] == ("write", {"text": inner})
    torn, without_end = before + inner, before + inner + '" oops'
    bad_inside = f'{before}{inner}</tool_call>{inner}" oops{after[1:]}'
    for text in (torn, without_end, bad_inside):
        reply = parse_tool_calls(text)
        assert reply.calls == (), text
        assert len(reply.errors) == 1, text


@pytest.mark.parametrize(
    "unit",
    [
        "[TOOL_CALLS]",
        "[TOOL_CALLS] [",
        "[TOOL_CALLS] [{",
        '[TOOL_CALLS] [{"',
        '[TOOL_CALLS] [{"a": "',
        '[TOOL_CALLS] [{"name": "a"},',
        '[TOOL_CALLS]a{"',
        "[TOOL_CALLS]a",
        "<|python_tag|>",
        "<|python_tag|> ",
        "<|python_tag|>{};",
        "<|python_tag|>a.call(",
        "<|python_tag|>a.call('",
        "<|python_tag|>a.call(\"'",
        "<|python_tag|>a.call('')",
        "<|python_tag|>a.call.call",
        "<function=",
        "<function=a>",
        '<function=a>{"',
        "<function=a>{}",
        '<tool_call>{"[TOOL_CALLS][{"',
        "<tool_call>{\"<|python_tag|>a.call('",
        "<tool_call>[TOOL_CALLS]<|python_tag|><function=",
        "</tool_call></function>",
        '{"a":',
        '{"name": "a", "arguments": {',
        '{"name": "a", "arguments": {}};',
        '{"id": "a", ',
        "{};",
        "{} ; ",
        "[{},",
        "[",
        "```json",
        "```json [",
        "; ",
        '\\"',
        "'\\",
        "<|python_tag|>a.call(x=" + "[" * 60 + "1",
    ],
)
@pytest.mark.parametrize("prefix", ["", '[TOOL_CALLS] [{"', "<|python_tag|>a.call('"])
def test_hostile_text_of_any_style_is_parsed_in_linear_time(prefix: str, unit: str) -> None:
    one, two = (prefix + unit * (size // len(unit)) for size in (50_000, 100_000))
    for _ in range(TRIES):  # by turns, as a machine's speed changes
        single, double = (cpu_s(lambda text=text: parse_tool_calls(text), 0.5) for text in (one, two))
        if double < 3 * single + 0.02:
            break
    assert double < 0.5
    assert double < 3 * single + 0.02


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 20_000,
        "<tool_call>" + "{" * 20_000,
        "<tool_call>{" * 20_000,
        '<tool_call>{"' * 20_000,
        '<tool_call>{"a":"' * 20_000,
        '<tool_call>{"a' * 20_000 + '"}',
        '<tool_call>{"a\\"' * 20_000,
        "<tool_call>" + '{"a":' * 20_000,
        "<tool_call>[" * 20_000 + "</tool_call>",
        "<tool_call>{" + "}<tool_call>{" * 20_000,
        '<tool_call>{"a":1}' * 20_000,
        "<tool_call>" + " " * 200_000,
        "</tool_call>" * 20_000,
    ],
)
def test_hostile_text_is_parsed_in_linear_time(text: str) -> None:
    assert cpu_s(lambda: parse_tool_calls(text), 1.0) < 1.0


fragments = st.lists(
    st.sampled_from(
        [
            "<tool_call>",
            "</tool_call>",
            "[TOOL_CALLS]",
            "[ARGS]",
            "<|python_tag|>",
            "add.call(",
            ")",
            "a=",
            "'",
            ";",
            "<function=",
            ">",
            "</function>",
            "```json",
            "```",
            '{"name": "add", "arguments": {',
            '{"name": "add", "parameters": {"a": 1}}',
            "]",
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
    around, position = "", 0
    for start, end in spans:
        assert position <= start < end <= len(text)
        around += text[position:start]
        position = end
    assert reply.content == (around + text[position:]).strip()


json_text = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["</tool_call>", "<tool_call>{", '\\"}', "[TOOL_CALLS]a{}", "<|python_tag|>a.call()", "]; ", "</function>"]
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


@pytest.mark.parametrize("style", CallStyle)
@given(wanted=st.lists(calls, max_size=4), content=st.sampled_from(["", "Let me see.", "a < b"]))
@settings(max_examples=150, deadline=None)
def test_calls_written_out_are_read_back(style: CallStyle, wanted: list[ToolCall], content: str) -> None:
    text = content + "".join(piece for piece, _ in write_calls(wanted, style))
    reply = parse_tool_calls(text)
    assert [(call.name, call.arguments) for call in reply.calls] == [(call.name, call.arguments) for call in wanted]
    assert (reply.content, reply.errors) == (content, ())


def test_only_tags_are_markup_whatever_a_call_holds() -> None:
    wanted = [ToolCall(name="add", arguments={"a": "</tool_call>[TOOL_CALLS]"}), ToolCall(name="submit", arguments={})]
    add, submit = (dump_call(call) for call in wanted)
    assert write_calls(wanted, CallStyle.HERMES) == [
        ("<tool_call>\n", True),
        (add, False),
        ("\n</tool_call>", True),
        ("\n<tool_call>\n", True),
        (submit, False),
        ("\n</tool_call>", True),
    ]
    assert write_calls(wanted, CallStyle.MISTRAL) == [("[TOOL_CALLS] ", True), (f"[{add}, {submit}]", False)]
    row = f"{add}; {submit}".replace("arguments", "parameters")
    assert write_calls(wanted, CallStyle.LLAMA) == [("<|python_tag|>", True), (row, False)]
    assert [write_calls([], style) for style in CallStyle] == [[], [], []]
