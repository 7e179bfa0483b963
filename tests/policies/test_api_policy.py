"""A model behind an OpenAI-compatible address, a fake of that protocol: conversations, failures, evaluation."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import one_line_error, run_here
from fake_search_server import FakeSearchServer, Reply, Request

from agent_rl.agent.messages import Message, ToolCall, ToolSpec
from agent_rl.errors import ConfigError, UserError
from agent_rl.policies.api import chat_policy
from agent_rl.policies.api.chat_policy import MAX_WAIT_S, ApiModel, ApiPolicy
from agent_rl.policies.api.numbered_messages import NumberedMessages
from agent_rl.records import FinishReason, SamplingParams

ADD = ToolSpec(name="add", description="Add.", parameters={"type": "object", "properties": {}})
SAMPLING = SamplingParams(max_new_tokens=16, temperature=0.5, seed=2**40 + 7)


@pytest.fixture(name="server")
def running_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSearchServer]:
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    with FakeSearchServer() as server:
        yield server


def policy_for(server: FakeSearchServer) -> ApiPolicy:
    return ApiPolicy(ApiModel.parse(f"openai:tiny@{server.address}/v1"), backoff_s=0.01)


def said(content: str | None = "hello", *, reason: str = "stop", tokens: int = 3, **more: Any) -> Reply:
    choice = {"message": {"role": "assistant", "content": content, **more}, "finish_reason": reason}
    return Reply(body={"choices": [choice], "usage": {"completion_tokens": tokens}})


def call(name: str, arguments: str, number: str) -> dict[str, Any]:
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_half_of_a_surrogate_pair_in_a_conversation_is_sent_as_a_question_mark(server: FakeSearchServer) -> None:
    server.replies += [said("b\ud800"), said()]
    policy = policy_for(server)
    prompt = policy.chat_format.render_prompt([Message.user("a\udfff\u20ac")])
    completion = policy.generate(prompt, SAMPLING)
    answer = policy.chat_format.render_prompt([Message.user("a\udfff\u20ac")])
    assert policy.generate([*prompt, *completion.token_ids, *answer], SAMPLING).finish_reason == FinishReason.STOP
    sent = [[each["content"] for each in request.body["messages"]] for request in server.requests]
    assert sent == [["a?\u20ac"], ["a?\u20ac", "b?", "a?\u20ac"]]


def test_a_reply_has_as_many_ids_as_the_server_counted_tokens(server: FakeSearchServer) -> None:
    server.replies.append(said())
    policy = policy_for(server)
    prompt = policy.chat_format.render_prompt([Message.system("s"), Message.user("u")], [ADD])
    completion = policy.generate(prompt, SAMPLING)
    assert (len(completion.token_ids), completion.finish_reason) == (3, FinishReason.STOP)
    assert policy.chat_format.parse_completion(completion.token_ids) == Message.assistant("hello")
    (request,) = server.requests
    assert (request.path, request.headers["authorization"]) == ("/v1/chat/completions", "Bearer secret-key")
    assert request.body == {
        "model": "tiny",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        "temperature": 0.5,
        "seed": 7,
        "tools": [ADD.to_openai()],
        "max_tokens": 16,
    }


def test_every_call_is_answered_by_its_id(server: FakeSearchServer) -> None:
    calls = [call("add", "{}", "a"), call("add", "not json", "b"), call("mul", "{}", "c")]
    server.replies += [said(None, tool_calls=calls), said("done")]
    policy = policy_for(server)
    ids = policy.chat_format.render_prompt([Message.user("u")], [ADD])
    ids += policy.generate(ids, SAMPLING).token_ids
    reply = policy.chat_format.parse_completion(ids[2:])
    assert [made.name for made in reply.tool_calls] == ["add", "mul"]
    assert len(reply.tool_errors) == 1
    ids += policy.chat_format.render_env_messages([Message.tool("error: bad"), Message.tool("3", name="add")])
    policy.generate(ids, SAMPLING)
    answers = server.requests[1].body["messages"][2:]
    assert [(each["tool_call_id"], each["content"]) for each in answers] == [
        ("b", "error: bad"),
        ("a", "3"),
        ("c", "not run"),
    ]


def test_a_tools_message_without_a_call_is_the_users() -> None:
    chat = NumberedMessages()
    messages, tools = chat.conversation(chat.render_prompt([Message.user("u"), Message.tool("seen")]))
    assert messages == [{"role": "user", "content": "u"}, {"role": "user", "content": "seen"}]
    assert tools == []


def test_calls_of_a_prompt_have_ids_and_texts_as_arguments_and_answers_by_these_ids(server: FakeSearchServer) -> None:
    server.replies.append(said())
    policy = policy_for(server)
    calls = (ToolCall(name="add", arguments={"a": 2}), ToolCall(name="mul", arguments={"word": "é"}))
    prompt = [Message.user("u"), Message.assistant("", calls), Message.tool("4", name="mul"), Message.user("and?")]
    policy.generate(policy.chat_format.render_prompt([*prompt, Message.assistant("", calls[:1])]), SAMPLING)
    assert server.requests[0].body["messages"] == [
        {"role": "user", "content": "u"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [call("add", '{"a": 2}', "call_1_0"), call("mul", '{"word": "é"}', "call_1_1")],
        },
        {"role": "tool", "tool_call_id": "call_1_1", "content": "4"},
        {"role": "tool", "tool_call_id": "call_1_0", "content": "not run"},
        {"role": "user", "content": "and?"},
        {"role": "assistant", "content": "", "tool_calls": [call("add", '{"a": 2}', "call_5_0")]},
        {"role": "tool", "tool_call_id": "call_5_0", "content": "not run"},
    ]


def test_what_passes_is_asked_again_and_what_does_not_is_one_sentence(server: FakeSearchServer) -> None:
    server.replies += [Reply(status=503), Reply(status=429), Reply(is_drop=True), said("late")]
    policy = policy_for(server)
    prompt = policy.chat_format.render_prompt([Message.user("u")])
    assert policy.chat_format.parse_completion(policy.generate(prompt, SAMPLING).token_ids).content == "late"
    server.answer = lambda _request: Reply(status=500)
    with pytest.raises(UserError, match=r"no answer after 6 attempts \(HTTP 500"):
        policy.generate(prompt, SAMPLING)
    for status, part in [(401, "OPENAI_API_KEY"), (404, "HTTP 404")]:
        server.answer = lambda _request, status=status: Reply(status=status, body={"error": "x"})
        with pytest.raises(UserError, match=part) as raised:
            policy.generate(prompt, SAMPLING)
        assert "secret-key" not in str(raised.value)
    server.answer = lambda _request: Reply(body={"choices": []})
    with pytest.raises(UserError, match="no chat completion"):
        policy.generate(prompt, SAMPLING)


def test_waiting_is_told_once_until_an_answer_comes(server: FakeSearchServer, caplog: pytest.LogCaptureFixture) -> None:
    policy = policy_for(server)
    prompt = policy.chat_format.render_prompt([Message.user("u")])
    for _outage in range(2):
        server.replies += [Reply(status=503), Reply(status=503), said()]
        policy.generate(prompt, SAMPLING)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert all(server.address in line and "HTTP 503" in line and "6 times" in line for line in told)


@pytest.mark.parametrize(
    "message",
    [
        "maximum context length is 10 tokens",
        "request (9412 tokens) exceeds the available context size (8192 tokens), try increasing it",
        "exceed_context_size_error",
        "litellm.ContextWindowExceededError: window of 10",
        "Prompt is too long: 208310 tokens > 200000 maximum",
        "context_length_exceeded",
        "Your input exceeds the context window of this model.",
    ],
)
def test_a_conversation_over_the_window_ends_as_one_over_the_limit(server: FakeSearchServer, message: str) -> None:
    server.answer = lambda _request: Reply(status=400, body={"error": message})
    policy = policy_for(server)
    completion = policy.generate(policy.chat_format.render_prompt([Message.user("u")]), SAMPLING)
    assert completion.finish_reason is FinishReason.LENGTH


def test_a_refusal_that_speaks_of_a_context_is_no_window(server: FakeSearchServer) -> None:
    server.answer = lambda _request: Reply(status=400, body={"error": "temperature is not supported in this context"})
    policy = policy_for(server)
    with pytest.raises(UserError, match="HTTP 400"):
        policy.generate(policy.chat_format.render_prompt([Message.user("u")]), SAMPLING)


def test_a_server_is_waited_for_a_minute_at_most_at_a_time(
    server: FakeSearchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        now[0] += seconds
        slept.append(seconds)

    monkeypatch.setattr(chat_policy.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(chat_policy.time, "sleep", sleep)
    monkeypatch.setattr("tenacity.nap.time.sleep", sleep)
    server.answer = lambda _request: Reply(status=429, headers={"retry-after": "86400"})
    policy = policy_for(server)
    with pytest.raises(UserError, match="no answer"):
        policy.generate(policy.chat_format.render_prompt([Message.user("u")]), SAMPLING)
    assert sum(slept) == pytest.approx(5 * MAX_WAIT_S)


def test_a_cancelled_request_is_not_waited_for(server: FakeSearchServer) -> None:
    server.answer = lambda _request: Reply(status=503, headers={"retry-after": "5"})
    policy, cancel = policy_for(server), threading.Event()
    threading.Timer(0.2, cancel.set).start()
    started = time.monotonic()
    completion = policy.generate(policy.chat_format.render_prompt([Message.user("u")]), SAMPLING, cancel)
    assert (completion.finish_reason, completion.token_ids) == (FinishReason.CANCELLED, ())
    assert time.monotonic() - started < 4.0 and len(server.requests) == 1


def test_calls_without_ids_are_given_some(server: FakeSearchServer) -> None:
    calls = [{"type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("add", "mul")]
    server.replies += [said(None, tool_calls=calls), said("done")]
    policy = policy_for(server)
    ids = policy.chat_format.render_prompt([Message.user("u")], [ADD])
    ids += policy.generate(ids, SAMPLING).token_ids
    ids += policy.chat_format.render_env_messages([Message.tool("3", name="mul")])
    policy.generate(ids, SAMPLING)
    sent = server.requests[1].body["messages"]
    assert [each["id"] for each in sent[1]["tool_calls"]] == ["call_1_0", "call_1_1"]
    assert [(each["tool_call_id"], each["content"]) for each in sent[2:]] == [
        ("call_1_1", "3"),
        ("call_1_0", "not run"),
    ]


ODD_MESSAGES = [
    {"tool_calls": [None]},
    {"tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "f", "input": "x"}}]},
    {"tool_calls": {"a": 1}},
    {"tool_calls": 5},
    {"tool_calls": [{"id": "a", "function": {"name": 5}}]},
    {"content": 5},
    {"content": [{"type": "thinking", "thinking": "x"}]},
]


@pytest.mark.parametrize(
    "body",
    [
        *[json.dumps({"choices": [{"message": message}]}).encode() for message in ODD_MESSAGES],
        b'{"choices": [{"message": {"content": "a"}}], "usage": {"completion_tokens": Infinity}}',
        b'{"choices": [{"message": [1]}]}',
        b"[" * 100_000,
        b"\xff\xfe{",
    ],
)
def test_an_answer_of_another_shape_is_one_sentence(server: FakeSearchServer, body: bytes) -> None:
    server.answer = lambda _request: Reply(body=body)
    policy = policy_for(server)
    with pytest.raises(UserError, match="no chat completion"):
        policy.generate(policy.chat_format.render_prompt([Message.user("u")]), SAMPLING)


def test_newer_models_are_given_their_own_limit(server: FakeSearchServer) -> None:
    server.replies += [Reply(status=400, body={"error": "use max_completion_tokens"}), said(), said()]
    policy = policy_for(server)
    prompt = policy.chat_format.render_prompt([Message.user("u")])
    policy.generate(prompt, SAMPLING), policy.generate(prompt, SAMPLING)
    assert ["max_tokens" in each.body for each in server.requests] == [True, False, False]


def test_a_name_without_a_key_or_an_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        ApiPolicy(ApiModel.parse("openai:gpt"))
    with pytest.raises(ConfigError, match="expected openai:MODEL"):
        ApiModel.parse("openai:gpt@localhost")


def solving(request: Request) -> Reply:
    """Calls the calculator first, then answers with what it gave."""
    last = request.body["messages"][-1]
    if last["role"] == "tool":
        return said(f"Answer: {last['content']}", tokens=5)
    words = last["content"].split()
    return said(None, tokens=7, tool_calls=[call("calculator", json.dumps({"expression": " ".join(words[2:5])}), "1")])


@pytest.fixture
def questions(tmp_path: Path) -> list[str]:
    rows = [{"question": f"What is {n} + 3 ?", "answer": str(n + 3)} for n in range(4)]
    (tmp_path / "tasks.json").write_text(json.dumps(rows))
    return ["eval", "--config", "configs/math_grpo.yaml", "--tasks", f"{tmp_path}/tasks.json"]


def test_a_model_behind_an_address_is_evaluated_like_any_other(
    server: FakeSearchServer, questions: list[str], tmp_path: Path
) -> None:
    server.answer = solving
    name = f"openai:tiny@{server.address}/v1"
    done = run_here(*questions, "--checkpoint", name, "--output-dir", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out/report.json").read_text(encoding="utf-8"))
    assert report["settings"]["model"]["name"] == name
    episodes = [json.loads(line) for line in (tmp_path / "out/episodes.jsonl").read_text().splitlines()]
    assert [each["reward"] for each in episodes] == [1.0] * 4
    assert {each["num_tokens"] for each in episodes} == {12}
    assert "secret-key" not in "".join(path.read_text() for path in (tmp_path / "out").glob("*.json*"))


def test_a_server_that_refuses_ends_the_evaluation_with_a_sentence(
    server: FakeSearchServer, questions: list[str], tmp_path: Path
) -> None:
    server.answer = lambda _request: Reply(status=404, body={"error": "no such model"})
    words = [*questions, "--checkpoint", f"openai:tiny@{server.address}/v1", "--output-dir", tmp_path / "out"]
    assert "no such model" in one_line_error(run_here(*words))
    assert "agent.type" in one_line_error(run_here(*words, "agent.type=react"))
