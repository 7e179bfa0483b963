"""The endpoint over real sockets: keys, replies, streams, hostile bodies, clients that leave."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from endpoint_agents import ask_by_http
from fakes import ScriptedPolicy

from agent_rl.endpoint.endpoint import Endpoint
from agent_rl.endpoint.session import EpisodeSession, SessionSpec
from agent_rl.inference.base import Cancel
from agent_rl.records import Completion, SamplingParams
from agent_rl.rollout.turns import EpisodeLimits

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
BODY = {"model": "policy", "messages": [{"role": "user", "content": "a"}]}


class CountingPolicy(ScriptedPolicy):
    """Replies with its script after `delay_s`."""

    def __init__(self, reply: str = "hello", *, delay_s: float = 0.0) -> None:
        super().__init__(lambda _turn, _sampling: reply, max_context=400)
        self.delay_s = delay_s

    def generate(self, prompt_ids: Any, sampling: SamplingParams, cancel: Cancel | None = None) -> Completion:
        time.sleep(self.delay_s)
        return super().generate(prompt_ids, sampling, cancel)


@pytest.fixture
def policy() -> CountingPolicy:
    return CountingPolicy()


@pytest.fixture
def endpoint(policy: CountingPolicy) -> Iterator[Endpoint]:
    with Endpoint(policy) as running:
        yield running


def open_one(endpoint: Endpoint, **limits: Any) -> tuple[str, EpisodeSession]:
    limits = {"max_new_tokens": 50} | limits
    return endpoint.sessions.open(SessionSpec(seed=1, group=1, temperature=1.0, limits=EpisodeLimits(**limits)))


def root(endpoint: Endpoint) -> str:
    return endpoint.base_url("x").removesuffix("/s/x/v1")


def post(endpoint: Endpoint, key: str | None, body: Any = BODY, **headers: str) -> httpx.Response:
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(
        f"{root(endpoint)}/v1/chat/completions", content=content, headers=headers, timeout=30.0, trust_env=False
    )


def test_a_reply_has_what_clients_read(endpoint: Endpoint) -> None:
    key, session = open_one(endpoint)
    body = post(endpoint, key, BODY | {"logprobs": True, "return_token_ids": True}).json()
    choice, turn = body["choices"][0], session.turns[0]
    assert choice["message"] == {"role": "assistant", "content": "hello"}
    assert (choice["finish_reason"], body["object"], body["model"]) == ("stop", "chat.completion", "policy")
    assert [entry["token_id"] for entry in choice["logprobs"]["content"]] == list(turn.completion.token_ids)
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == list(turn.completion.logprobs)
    assert (tuple(body["prompt_token_ids"]), tuple(choice["token_ids"])) == (
        turn.prompt_token_ids,
        turn.completion.token_ids,
    )
    assert body["usage"]["total_tokens"] == len(turn.prompt_token_ids) + len(turn.completion.token_ids)
    assert body["system_fingerprint"] == "weights-0"


def test_calls_have_ids_and_arguments_as_text() -> None:
    with Endpoint(CountingPolicy(CALL)) as endpoint:
        key, _ = open_one(endpoint, max_new_tokens=100)
        choice = post(endpoint, key).json()["choices"][0]
    call = choice["message"]["tool_calls"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("add", {"a": 1})


def test_the_key_may_stand_in_the_path_or_in_either_header(endpoint: Endpoint) -> None:
    key, session = open_one(endpoint)
    path = f"{endpoint.base_url(key)}/chat/completions"
    assert httpx.post(path, json=BODY, headers={"Authorization": "Bearer whatever"}, trust_env=False).status_code == 200
    in_header = httpx.post(
        f"{root(endpoint)}/v1/chat/completions", json=BODY, headers={"x-api-key": key}, trust_env=False
    )
    assert in_header.status_code == 200
    assert post(endpoint, key).status_code == 200
    assert session.num_turns == 3


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/v1/reward"])
def test_without_a_key_nothing_is_read_or_sampled(endpoint: Endpoint, policy: CountingPolicy, path: str) -> None:
    open_one(endpoint)
    method = "GET" if path == "/v1/models" else "POST"
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eDp5"}, {"x-api-key": "wrong"}):
        answer = httpx.request(method, root(endpoint) + path, headers=headers, content=b"{", trust_env=False)
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
    assert policy.prompts == []


def test_a_stream_adds_up_to_the_reply(endpoint: Endpoint) -> None:
    key, session = open_one(endpoint)
    body = BODY | {"stream": True, "logprobs": True, "stream_options": {"include_usage": True}}
    answer = post(endpoint, key, body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    first, last, usage = map(json.loads, events)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "hello"}
    assert [entry["token_id"] for entry in first["choices"][0]["logprobs"]["content"]] == list(
        session.turns[0].completion.token_ids
    )
    assert (last["choices"][0]["finish_reason"], usage["choices"]) == ("stop", [])
    assert usage["usage"]["completion_tokens"] == 6


def test_a_stream_that_fails_says_so_in_an_event() -> None:
    def fail(_turn: int, _sampling: SamplingParams) -> str:
        raise RuntimeError("engine down")

    with Endpoint(ScriptedPolicy(fail)) as endpoint:
        key, session = open_one(endpoint)
        text = post(endpoint, key, BODY | {"stream": True}).text
    assert json.loads(text.strip().removeprefix("data: "))["error"]["code"] == "policy_failed"
    assert isinstance(session.failure, RuntimeError)


@pytest.mark.parametrize(
    "body",
    [b"", b"\x00" * 100, b"[" * 50_000, b'{"messages": 5}', b'{"messages": [{"role": "user", "content": "\\ud800"}]}'],
)
def test_garbage_is_refused_and_the_episode_goes_on(endpoint: Endpoint, body: bytes) -> None:
    key, session = open_one(endpoint)
    answer = post(endpoint, key, body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert post(endpoint, key).status_code == 200
    assert session.num_turns == 1


def test_a_body_beyond_the_bound_is_refused(endpoint: Endpoint, policy: CountingPolicy) -> None:
    key, _ = open_one(endpoint)
    assert post(endpoint, key, b" " * (2**20 + 256 * 400 + 1)).status_code == 413
    assert policy.prompts == []


def test_a_retried_request_is_sampled_once() -> None:
    policy = CountingPolicy(delay_s=0.3)
    with Endpoint(policy) as endpoint:
        key, session = open_one(endpoint)
        answers: list[Any] = []
        threads = [
            threading.Thread(
                target=lambda count=count: answers.append(
                    post(endpoint, key, BODY, **{"x-stainless-retry-count": str(count)}).json()
                )
            )
            for count in range(3)
        ]
        for thread in threads:
            thread.start()
            time.sleep(0.05)
        for thread in threads:
            thread.join()
        answers.append(post(endpoint, key, BODY, **{"x-stainless-retry-count": "3"}).json())
    assert len({answer["id"] for answer in answers}) == 1
    assert (len(policy.prompts), session.num_turns) == (1, 1)


def test_a_client_that_leaves_loses_nothing_and_gets_its_reply_when_it_comes_again() -> None:
    policy = CountingPolicy(delay_s=0.3)
    with Endpoint(policy) as endpoint:
        key, session = open_one(endpoint)
        host, port = root(endpoint).removeprefix("http://").split(":")
        raw = json.dumps(BODY).encode()
        with socket.create_connection((host, int(port))) as connection:
            head = f"POST /s/{key}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
            connection.sendall(head.encode() + raw)
            time.sleep(0.1)
        assert post(endpoint, key, BODY, **{"x-stainless-retry-count": "1"}).status_code == 200
    assert (len(policy.prompts), session.num_turns) == (1, 1)


def test_a_late_call_hears_that_the_episode_is_concluded(endpoint: Endpoint, policy: CountingPolicy) -> None:
    key, session = open_one(endpoint)
    post(endpoint, key)
    endpoint.sessions.conclude(key)
    answer = post(endpoint, key)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "episode_concluded")
    assert (len(policy.prompts), session.num_turns) == (1, 1)


def test_rewards_are_posted_with_the_episodes_key(endpoint: Endpoint) -> None:
    key, session = open_one(endpoint)
    url = f"{endpoint.base_url(key)}/reward"
    assert httpx.post(url, json={"reward": "much"}, trust_env=False).status_code == 400
    body = {"reward": 0.5, "success": True, "parts": {"tests": 1}}
    assert httpx.post(url, json=body, trust_env=False).status_code == 204
    assert session.posted is not None
    assert (session.posted.value, session.posted.reward_parts()) == (0.5, {"tests": 1.0, "success": 1.0})


def test_models_are_listed(endpoint: Endpoint) -> None:
    key, _ = open_one(endpoint)
    answer = httpx.get(f"{endpoint.base_url(key)}/models", trust_env=False).json()
    assert [row["id"] for row in answer["data"]] == ["policy"]


def test_an_agent_without_any_sdk_plays(endpoint: Endpoint) -> None:
    key, session = open_one(endpoint)
    for stream in (False, True):
        ask = ask_by_http(root(endpoint) + "/v1", key, stream=stream)
        assert ask([{"role": "user", "content": f"a{stream}"}], [])["content"] == "hello"
    assert session.num_turns == 2


@pytest.mark.parametrize(("host", "root"), [("0.0.0.0", "http://127.0.0.1:"), ("127.0.0.1", "http://127.0.0.1:")])
def test_an_endpoint_on_all_addresses_names_one_that_can_be_reached(host: str, root: str) -> None:
    with Endpoint(ScriptedPolicy(["b"]), host=host) as endpoint:
        key, _ = open_one(endpoint)
        assert endpoint.base_url(key).startswith(root)
        assert httpx.get(f"{endpoint.base_url(key)}/models", trust_env=False).status_code == 200
