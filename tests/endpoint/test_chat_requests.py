"""Bodies of chat requests: what is read, and what is refused by which key."""

import pytest

from agent_rl.agent.messages import Message, ToolCall, ToolSpec
from agent_rl.endpoint.errors import EndpointError
from agent_rl.endpoint.requests import parse_body, parse_chat

USER = {"role": "user", "content": "Hi"}


def with_messages(*messages: object) -> dict[str, object]:
    return {"model": "policy", "messages": list(messages)}


def test_a_conversation_with_calls_is_read() -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"b": 2, "a": 1}'}}]
    request = parse_chat(
        with_messages(
            {"role": "developer", "content": "Be brief"},
            {"role": "user", "content": [{"type": "text", "text": "1 + "}, {"type": "text", "text": "2?"}]},
            {"role": "assistant", "content": None, "tool_calls": calls, "refusal": None},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        )
        | {"tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]}
    )
    assert request.messages == (
        Message.system("Be brief"),
        Message.user("1 + 2?"),
        Message.assistant("", (ToolCall(name="add", arguments={"a": 1, "b": 2}),)),
        Message.tool("3", name="add"),
    )
    assert request.call_ids == ((), (), ("c1",), ())
    assert request.tools == (ToolSpec(name="add", description="", parameters={"type": "object"}),)


@pytest.mark.parametrize(
    ("called", "answers", "names"),
    [
        (["add", "mul"], [{"name": "add"}, {"name": "mul"}], ["add", "mul"]),
        (["add", "mul"], [{"name": "add", "tool_call_id": None}, {}], ["add", None]),
        (["add"], [{}], ["add"]),
        (["add"], [{"tool_call_id": "c9", "name": "mul"}], ["mul"]),
    ],
)
def test_answers_to_calls_without_ids_have_the_names_that_they_give(
    called: list[str], answers: list[dict[str, object]], names: list[str | None]
) -> None:
    calls = [{"type": "function", "function": {"name": name, "arguments": {}}} for name in called]
    answered = [{"role": "tool", "content": "3", **each} for each in answers]
    request = parse_chat(with_messages(USER, {"role": "assistant", "tool_calls": calls}, *answered))
    assert [message.name for message in request.messages[2:]] == names


def test_the_smaller_token_budget_counts_and_tool_choice_none_offers_no_tool() -> None:
    tool = {"type": "function", "function": {"name": "add"}}
    body = with_messages(USER) | {"max_tokens": 9, "max_completion_tokens": 7, "tools": [tool], "tool_choice": "none"}
    request = parse_chat(body)
    assert (request.max_tokens, request.tools) == (7, ())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n", 2),
        ("top_p", 0.9),
        ("stop", ["END"]),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -1),
        ("logit_bias", {"5": 3}),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "add"}}),
        ("top_k", 5),
        ("guided_json", {}),
        ("guided_decoding", {"json": {}}),
        ("stop_token_ids", [5]),
        ("min_tokens", 5),
        ("ignore_eos", True),
        ("bad_words", ["a"]),
        ("allowed_token_ids", [1]),
        ("typical_p", 0.5),
        ("length_penalty", 2),
        ("use_beam_search", True),
        ("chat_template_kwargs", {"enable_thinking": False}),
        ("logits_processors", ["my.Processor"]),
        ("custom_logit_processor", "gASV"),
        ("vllm_xargs", {"a": 1}),
        ("structural_tag", "{}"),
        ("regex", "a+"),
        ("ebnf", "root ::= a"),
        ("grammar", "root ::= a"),
        ("json_schema", "{}"),
        ("stop_regex", "a+"),
        ("thinking_token_budget", 5),
        ("mirostat", 2),
        ("top_a", 0.5),
        ("truncate_prompt_tokens", 5),
        ("chat_template", "{{ messages }}"),
        ("documents", [{"text": "a"}]),
        ("continue_final_message", True),
        ("add_generation_prompt", False),
    ],
)
def test_what_changes_the_distribution_is_refused_by_its_key(key: str, value: object) -> None:
    with pytest.raises(EndpointError) as caught:
        parse_chat(with_messages(USER) | {key: value})
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, key, "unsupported_parameter")


def test_neutral_values_of_the_same_keys_are_taken() -> None:
    neutral = {"n": 1, "top_p": 1.0, "stop": None, "logit_bias": {}, "response_format": {"type": "text"}}
    neutral |= {"parallel_tool_calls": True, "min_tokens": 0, "ignore_eos": False, "chat_template_kwargs": {}}
    neutral |= {"continue_final_message": False, "add_generation_prompt": True, "mirostat": 0, "top_a": 0}
    assert parse_chat(with_messages(USER) | neutral | {"tool_choice": "auto", "user": "me", "metadata": {}}).messages


def test_one_call_at_a_time_is_a_wish_that_many_clients_send_unasked() -> None:
    assert parse_chat(with_messages(USER) | {"parallel_tool_calls": False}).messages


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        {},
        "text",
        [None],
        [{"role": "robot", "content": ""}],
        [{"content": "no role"}],
        [{"role": ["user"], "content": ""}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": {"type": "text"}}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
        [{"role": "user", "content": [{"type": "text", "text": 5}]}],
        [{"role": "user", "content": ["text"]}],
        [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{"}}]}, USER],
        [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "[1]"}}]}, USER],
        [{"role": "assistant", "tool_calls": [{"id": "c", "function": {}}]}, USER],
        [{"role": "assistant", "tool_calls": {"id": "c"}}, USER],
        [USER, {"role": "assistant", "content": "to be continued"}],
        [{"role": "user", "content": "\ud800"}],
    ],
)
def test_messages_that_are_none_are_refused(messages: object) -> None:
    with pytest.raises(EndpointError) as caught:
        parse_chat({"messages": messages})
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "more",
    [
        {"tools": {}},
        {"tools": [5]},
        {"tools": [{"type": "function", "function": {"name": 5}}]},
        {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
        {"max_tokens": 0},
        {"max_tokens": 1.5},
        {"max_tokens": True},
        {"temperature": -1},
        {"temperature": "hot"},
        {"temperature": float("nan")},
        {"stream": "yes"},
        {"stream_options": []},
        {"model": 5},
    ],
)
def test_values_of_another_kind_are_refused(more: dict[str, object]) -> None:
    with pytest.raises(EndpointError) as caught:
        parse_chat(with_messages(USER) | more)
    assert caught.value.status == 400


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff", b"5", b"[" * 100_000, b'{"a":' * 50_000])
def test_bodies_that_are_no_object_are_refused(raw: bytes) -> None:
    with pytest.raises(EndpointError) as caught:
        parse_body(raw)
    assert caught.value.status == 400


def test_deep_values_are_refused_and_not_a_crash() -> None:
    deep: dict[str, object] = {}
    for _ in range(5000):
        deep = {"a": deep}
    tools = [{"type": "function", "function": {"name": "f", "parameters": deep}}]
    with pytest.raises(EndpointError) as caught:
        parse_chat(with_messages(USER) | {"tools": tools})
    assert caught.value.status == 400


def test_equal_bodies_have_one_digest_whatever_the_order_of_their_keys() -> None:
    first = parse_chat({"messages": [USER], "model": "policy"})
    assert first.digest == parse_chat({"model": "policy", "messages": [USER]}).digest
    assert first.digest != parse_chat({"model": "policy", "messages": [USER], "user": "me"}).digest
