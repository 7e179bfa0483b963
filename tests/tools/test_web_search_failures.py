"""`search` on the web when it fails: what the model reads, what ends an episode, waiting, limits, and the key."""

import logging
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from fake_search_server import FakeSearchServer, Reply, Request
from fakes import ScriptedPolicy
from waiting import free_port
from web_search import KEY, TAVILY, failure, tool_for, web_search

from agent_rl.agent.messages import Message
from agent_rl.config.tools import SearchToolConfig
from agent_rl.envs.base import EnvFactory, StepResult, Task, ToolEnv
from agent_rl.errors import SandboxError, ServiceError
from agent_rl.records import StopReason
from agent_rl.rollout.rollout import RolloutRequest, RolloutWorker
from agent_rl.rollout.turns import EpisodeLimits
from agent_rl.tools.base import ToolRegistry
from agent_rl.tools.search_tool import SearchTool
from agent_rl.tools.web_search_tool import RateLimit, WebSearch, requested_delay_s


@pytest.fixture
def server() -> Iterator[FakeSearchServer]:
    with FakeSearchServer() as fake:
        yield fake


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TAVILY_API_KEY", "SERPER_API_KEY", "BING_SEARCH_API_KEY", "MY_KEY"):
        monkeypatch.setenv(name, KEY)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_passing_failure_is_tried_again(server: FakeSearchServer, status: int) -> None:
    server.replies.extend([Reply(status=status), Reply(status=status), Reply(body=TAVILY)])
    assert web_search(server).text == "[1] Velm: A river."
    assert len(server.requests) == 3
    assert [request.body for request in server.requests] == [{"query": "river Velm", "max_results": 5}] * 3


def test_broken_connections_and_late_answers_are_tried_again(server: FakeSearchServer) -> None:
    server.replies.extend([Reply(is_drop=True), Reply(delay_s=5), Reply(body=b"x" * 9, drip_s=0.1), Reply(body=TAVILY)])
    assert web_search(server, timeout_s=0.3).text == "[1] Velm: A river."
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("reply", "what"),
    [
        (Reply(status=503, body=b"overloaded"), "HTTP 503"),
        (Reply(status=429), "HTTP 429"),
        (Reply(delay_s=5), "timed out"),
        (Reply(body=b"x" * 9, drip_s=0.1), "timed out"),
        (Reply(header_drip_s=0.05), "timed out"),
        (Reply(is_drop=True), "no connection"),
    ],
)
def test_after_the_last_attempt_the_episode_ends_with_what_happened(
    server: FakeSearchServer, reply: Reply, what: str
) -> None:
    server.answer = lambda _request: reply
    message = failure(server, timeout_s=0.2, max_retries=1)
    remedy = "; check the connection, or set tools.search.mode to corpus" if what == "no connection" else ""
    assert message == f"no answer from tavily after 2 attempts ({what}){remedy}"
    assert len(server.requests) == 2


def test_a_refused_connection_ends_the_episode() -> None:
    with pytest.raises(ServiceError) as caught:
        tool_for(f"http://127.0.0.1:{free_port()}", max_retries=0)(query="q")
    assert str(caught.value) == (
        "no answer from tavily after 1 attempt (no connection); check the connection, or set tools.search.mode to "
        "corpus"
    )


def test_an_answer_with_slow_headers_times_out(server: FakeSearchServer) -> None:
    server.answer = lambda _request: Reply(header_drip_s=0.1)
    started = time.monotonic()
    assert failure(server, timeout_s=0.4, max_retries=0) == "no answer from tavily after 1 attempt (timed out)"
    assert time.monotonic() - started < 4.5


@pytest.mark.parametrize("status", [400, 413, 414, 422])
def test_a_refused_query_is_reported_to_the_model(server: FakeSearchServer, status: int) -> None:
    server.replies.append(Reply(status=status, body={"detail": KEY}))
    result = web_search(server)
    assert (result.ok, result.facts) == (False, {"query": "river Velm", "results": []})
    assert result.text == f"error: search: tavily refused the request (HTTP {status}); try other words"
    assert len(server.requests) == 1


class SearchingEnv(ToolEnv):
    """Any question; a reply without a call earns a point."""

    def __init__(self, tool: SearchTool) -> None:
        self.registry = ToolRegistry([tool])
        self.tools = self.registry.specs

    def reset(self, task: Task) -> list[Message]:
        return [Message.user("Where is Velm?")]

    def on_terminal(self, tool_name: str) -> StepResult:
        raise AssertionError("no tool here is terminal")

    def no_call(self, message: Message) -> StepResult:
        return StepResult(reward=1.0, terminated=True)


def test_episodes_whose_search_fails_are_dropped_and_a_step_of_nothing_else_stops(server: FakeSearchServer) -> None:
    server.replies.append(Reply(body=TAVILY))
    server.answer = lambda _request: Reply(status=401)
    tool = tool_for(server.address)
    policy = ScriptedPolicy(['<tool_call>{"name": "search", "arguments": {"query": "q"}}</tool_call>', "There."])
    worker = RolloutWorker(
        policy, EnvFactory(lambda: SearchingEnv(tool)), limits=EpisodeLimits(max_new_tokens=200), seed=0
    )
    [group] = worker.collect(RolloutRequest(tasks=[{"task_id": "t"}], group_size=2, step=0, temperature=1.0))
    assert [episode.reward for episode in group.trajectories] == [1.0, None]
    assert group.trajectories[1].stop_reason is StopReason.ENV_ERROR
    with pytest.raises(
        SandboxError, match=r"all 2 episodes failed .* tavily refused the key \(HTTP 401\); check TAVILY"
    ):
        worker.collect(RolloutRequest(tasks=[{"task_id": "t"}], group_size=2, step=1, temperature=1.0))


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (Reply(status=401), "tavily refused the key (HTTP 401); check TAVILY_API_KEY"),
        (Reply(status=403), "tavily refused the key (HTTP 403); check TAVILY_API_KEY"),
        (Reply(status=432), "tavily refused the request (HTTP 432); check tools.search"),
        (
            Reply(status=307, headers={"location": "http://127.0.0.1:9/"}),
            "tavily refused the request (HTTP 307); check tools.search",
        ),
        (Reply(body=b"<html>"), "tavily gave an answer that is not JSON"),
        (Reply(body=b""), "tavily gave an answer that is not JSON"),
        (Reply(body=b"\xff\xfe{"), "tavily gave an answer that is not JSON"),
        (Reply(body=b"[" * 200_000), "tavily gave an answer with too many values"),
        (Reply(body={}), "tavily gave an answer without results"),
        (Reply(body={"results": "none"}), "tavily gave an answer without results"),
        (Reply(body=[1]), "tavily gave an answer without results"),
        (Reply(body={"results": [1]}), "tavily gave an answer whose results are not objects"),
        (
            Reply(body={"results": [{"title": ["a"]}]}),
            "tavily gave an answer whose title, url or content is not text",
        ),
        (Reply(body=b"x" * 4_000_001), "tavily gave an answer of more than 4000000 bytes"),
        (
            Reply(body=b"not gzip", headers={"content-encoding": "gzip"}),
            "tavily packed its answer although it was asked not to",
        ),
    ],
)
def test_a_permanent_error_is_not_retried(server: FakeSearchServer, reply: Reply, text: str) -> None:
    server.replies.append(reply)
    assert failure(server) == text
    assert len(server.requests) == 1


def test_a_custom_service_that_needs_a_key_names_the_setting(server: FakeSearchServer) -> None:
    server.replies.append(Reply(status=401))
    assert failure(server, provider="wiki") == "wiki wants a key (HTTP 401); set tools.search.api_key_env"


def test_bing_without_pages_and_without_its_mark_is_another_shape(server: FakeSearchServer) -> None:
    server.replies.append(Reply(body={"error": {}}))
    assert failure(server, provider="bing") == "bing gave an answer without webPages.value"


def test_a_query_beyond_the_providers_limit_is_not_sent(server: FakeSearchServer) -> None:
    assert web_search(server, "a" * 400).ok
    assert web_search(server, "a" * 401).text == "error: search: the query has 401 characters; use at most 400"
    assert len(server.requests) == 1


def test_half_characters_are_neither_sent_nor_answered(server: FakeSearchServer) -> None:
    server.replies.append(Reply(body=b'{"results": [{"title": "\\ud800", "content": "b"}]}'))
    assert web_search(server, "a\ud800").text == "[1] ?: b"
    assert server.requests[0].body["query"] == "a?"


# ---------------------------------------------------------------------------------------------------------------------
# Waiting


def test_waits_double_and_are_a_little_longer_at_random(server: FakeSearchServer) -> None:
    server.answer = lambda _request: Reply(status=500)
    slept: list[float] = []
    message = failure(server, sleep=slept.append, backoff_factor=0.5, max_retries=4)
    assert message == "no answer from tavily after 5 attempts (HTTP 500)"
    for wait_s, least_s in zip(slept, (0.5, 1.0, 2.0, 4.0), strict=True):
        assert least_s <= wait_s <= least_s + 0.25
    assert len({wait_s % 0.5 for wait_s in slept}) == 4


@pytest.mark.parametrize("named", ["7", "date"])
def test_a_wait_that_the_provider_requests_is_respected(server: FakeSearchServer, named: str) -> None:
    asked = format_datetime(datetime.now(UTC) + timedelta(seconds=8), usegmt=True) if named == "date" else named
    server.replies.extend([Reply(status=429, headers={"retry-after": asked}), Reply(body=TAVILY)])
    slept: list[float] = []
    assert web_search(server, sleep=slept.append).ok
    [wait_s] = slept
    assert 6 <= wait_s <= 8


def test_a_wait_beyond_the_deadline_ends_the_call_at_once(server: FakeSearchServer) -> None:
    server.replies.append(Reply(status=429, headers={"retry-after": "3600"}))
    slept: list[float] = []
    message = failure(server, sleep=slept.append)
    assert message == "no answer from tavily after 1 attempt (HTTP 429, it asks to wait 3600 s)"
    assert slept == []


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, 0), ("", 0), ("soon", 0), ("-5", 0), ("nan", 0), ("12", 12), (" 3 ", 3), ("9" * 400, 999_999_999),
     ("Wed, 21 Oct 2015 07:28:00 GMT", 0), ("Wed, 21 Oct 99999 07:28:00 GMT", 0)],
)  # fmt: skip
def test_what_retry_after_may_hold(header: str | None, seconds: float) -> None:
    assert requested_delay_s(header) == seconds


def test_all_attempts_of_a_call_end_within_its_deadline(server: FakeSearchServer) -> None:
    server.answer = lambda _request: Reply(delay_s=5)
    start_s = time.monotonic()
    message = failure(server, timeout_s=0.3, max_retries=2, backoff_factor=0.45)
    assert time.monotonic() - start_s >= 1.0  # a third attempt would begin after 0.3 + 0.45 + 0.3 + 0.9 s
    assert message == "no answer from tavily after 2 attempts (timed out)"


def test_an_attempt_gets_what_is_left_of_the_deadline(server: FakeSearchServer) -> None:
    server.replies.extend([Reply(status=500), Reply(delay_s=0.2)])
    message = failure(server, timeout_s=0.3, max_retries=1, sleep=lambda _s: time.sleep(1.21))
    assert message == "no answer from tavily after 2 attempts (timed out)"


def test_a_wait_into_the_deadline_is_not_begun(server: FakeSearchServer) -> None:
    server.answer = lambda _request: Reply(status=500)
    start_s = time.monotonic()
    message = failure(server, timeout_s=0.2, max_retries=2, backoff_factor=30.0)
    assert time.monotonic() - start_s < 10.0
    assert message == "no answer from tavily after 1 attempt (HTTP 500)"


def test_turns_are_limited_for_all_threads_together() -> None:
    limit = RateLimit(4, interval_s=0.4)
    taken_s: list[float] = []

    def take(_index: int) -> None:
        assert limit.take(10.0)
        taken_s.append(time.monotonic())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(take, range(10)))
    taken_s.sort()
    for first_s, fifth_s in zip(taken_s, taken_s[4:], strict=False):
        assert fifth_s - first_s >= 0.39
    assert taken_s[-1] - taken_s[0] < 3.0


def test_a_turn_that_comes_too_late_is_refused_at_once() -> None:
    slept: list[float] = []
    limit = RateLimit(1, interval_s=30.0, sleep=slept.append)
    assert limit.take(0.0)
    assert not limit.take(20.0)
    assert slept == []


def test_turns_come_in_order_of_request_and_the_rest_is_refused_at_once() -> None:
    slept: list[float] = []
    limit = RateLimit(2, interval_s=10.0, sleep=slept.append)  # no call waits here, so no time passes
    started = time.monotonic()
    assert [limit.take(25.0) for _ in range(8)] == [True] * 6 + [False] * 2
    assert [round(wait_s) for wait_s in slept] == [10, 10, 20, 20]
    assert not limit.take(25.0)
    assert limit.take(35.0), "those that were refused took no turn"
    assert round(slept[-1]) == 30
    assert time.monotonic() - started < 1.0


def test_turns_that_are_over_are_forgotten() -> None:
    limit = RateLimit(2, interval_s=0.02)
    assert all(limit.take(1.0) for _ in range(20))
    assert limit._bucket.count() <= 4


def test_calls_beyond_the_limit_are_refused(server: FakeSearchServer) -> None:
    limit = RateLimit(2, interval_s=1000.0)
    tool = tool_for(server.address, rate_limit=limit, rate_limit_per_min=2)
    assert [tool(query="q").text for _ in range(2)] == ["no results; try other words"] * 2
    with pytest.raises(
        ServiceError, match=r"too many searches at once: tools\.search\.rate_limit_per_min allows 2, and"
    ):
        tool(query="q")
    assert len(server.requests) == 2


def test_further_attempts_take_turns_too(server: FakeSearchServer) -> None:
    server.answer = lambda _request: Reply(status=500)
    assert "too many searches at once" in failure(server, rate_limit=RateLimit(2, interval_s=1000.0))
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("per_min", "num_processes", "rate"),
    [(60, None, "limit=60/60000"), (60, "8", "limit=7/56000"), (4, "8", "limit=1/120000")],
)
def test_processes_share_the_limit(
    monkeypatch: pytest.MonkeyPatch, per_min: int, num_processes: str | None, rate: str
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if num_processes:
        monkeypatch.setenv("WORLD_SIZE", num_processes)
    search = WebSearch(SearchToolConfig(rate_limit_per_min=per_min))
    assert [repr(each) for each in search._rate_limit._bucket.rates] == [rate]


def test_eight_threads_search_at_once_and_get_their_own_answers(server: FakeSearchServer) -> None:
    together = threading.Barrier(8)

    def answer(request: Request) -> Reply:
        together.wait(10)
        return Reply(body={"results": [{"title": "T", "url": "", "content": f"about {request.body['query']}"}]})

    server.answer = answer
    tool = tool_for(server.address)
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda n: tool(query=f"q{n}").text, range(32)))
    assert texts == [f"[1] T: about q{n}" for n in range(32)]


# ---------------------------------------------------------------------------------------------------------------------
# The key


LEAKS = (
    Reply(status=401, body={"detail": f"unknown key {KEY}"}, headers={"x-key": KEY}),
    Reply(status=400, body=KEY.encode()),
    Reply(status=500, body=KEY.encode(), headers={"retry-after": KEY}),
    Reply(body=KEY.encode()),
    Reply(body={KEY: KEY}),
    Reply(is_drop=True),
)


@pytest.mark.parametrize("provider", ["tavily", "serper", "bing", "wiki"])
def test_the_key_is_in_no_text_fact_repr_or_log(
    server: FakeSearchServer, caplog: pytest.LogCaptureFixture, provider: str
) -> None:
    caplog.set_level(logging.DEBUG)
    tool = tool_for(server.address, provider=provider, api_key_env="MY_KEY", max_retries=0)
    seen = [repr(tool), repr(tool._find), repr(vars(tool))]
    for reply in LEAKS:
        server.replies.append(reply)
        try:
            result = tool(query="q")
            assert not result.ok
            seen += [result.text, repr(result.facts)]
        except ServiceError as error:
            seen += traceback.format_exception(error)
    assert all(any(KEY in value for value in request.headers.values()) for request in server.requests)
    assert len(server.requests) == len(LEAKS)
    # The server's own headers, which here repeat the key, are logged by httpcore at DEBUG.
    seen += [each.getMessage() for each in caplog.records if "receive_response_headers" not in each.getMessage()]
    assert any("connect_tcp" in text for text in seen)
    assert not any(KEY in text for text in seen)


def test_an_endpoint_that_repeats_its_request_does_not_get_the_key_into_a_transcript(server: FakeSearchServer) -> None:
    def echo(request: Request) -> Reply:
        sent = request.headers["authorization"]
        return Reply(body={"results": [{"title": sent, "url": f"http://h/{sent}", "content": f"you sent {sent}"}]})

    server.answer = echo
    result = web_search(server)
    assert result.text == "[1] Bearer [key]: you sent Bearer [key]"
    assert result.facts["results"] == [
        {"title": "Bearer [key]", "text": "you sent Bearer [key]", "url": "http://h/Bearer [key]"}
    ]
