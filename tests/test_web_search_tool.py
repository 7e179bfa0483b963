"""`search` on the web: what providers are asked, what becomes of their answers, and what happens when they fail."""

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from agent_rl.agent.messages import ToolCall
from agent_rl.config import ToolsConfig
from agent_rl.config.tools import SearchToolConfig
from agent_rl.errors import ConfigError
from agent_rl.tools.base import ToolRegistry, ToolResult
from agent_rl.tools.search_tool import SearchTool
from agent_rl.tools.toolset import Toolset
from agent_rl.tools.web_search_tool import RateLimit, WebSearch, seconds_asked
from tests.fake_search_server import FakeSearchServer, Reply, Request
from tests.waiting import free_port

KEY = "tvly-Abc/123+x"
TAVILY = {"query": "q", "results": [{"title": "Velm", "url": "https://a.example", "content": "A river.", "score": 0.9}]}
SERPER = {
    "searchParameters": {"q": "q", "type": "search"},
    "organic": [{"title": "Velm", "link": "https://a.example", "snippet": "A river.", "position": 1}],
}
BING = {
    "_type": "SearchResponse",
    "webPages": {"value": [{"id": "1", "name": "Velm", "url": "https://a.example", "snippet": "A river."}]},
}


@pytest.fixture
def server() -> Iterator[FakeSearchServer]:
    with FakeSearchServer() as fake:
        yield fake


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TAVILY_API_KEY", "SERPER_API_KEY", "BING_SEARCH_API_KEY", "MY_KEY"):
        monkeypatch.setenv(name, KEY)


def config_for(address: str, **values: Any) -> SearchToolConfig:
    return SearchToolConfig(**{"endpoint": address, "backoff_factor": 0.0, "rate_limit_per_min": 0} | values)


def tool_for(
    address: str, *, sleep: Any = time.sleep, rate_limit: RateLimit | None = None, **values: Any
) -> SearchTool:
    config = config_for(address, **values)
    return SearchTool(WebSearch(config, sleep=sleep, rate_limit=rate_limit), max_snippet_chars=config.max_snippet_chars)


def ask(server: FakeSearchServer, query: str = "river Velm", **values: Any) -> ToolResult:
    return tool_for(f"{server.address}/search", **values)(query=query)


def headers_of(request: Request, *names: str) -> dict[str, str | None]:
    return {name: request.headers.get(name) for name in names}


# ---------------------------------------------------------------------------------------------------------------------
# Providers


def test_tavily_is_asked_as_its_documentation_says(server: FakeSearchServer) -> None:
    server.replies.append(Reply(body=TAVILY))
    result = ask(server, default_params={"search_depth": "advanced"})
    assert (result.ok, result.text) == (True, "[1] Velm: A river.")
    assert result.facts == {
        "query": "river Velm",
        "results": [{"title": "Velm", "text": "A river.", "url": "https://a.example"}],
    }
    [request] = server.requests
    assert (request.method, request.path, request.params) == ("POST", "/search", {})
    assert request.body == {"query": "river Velm", "max_results": 5, "search_depth": "advanced"}
    assert headers_of(request, "authorization", "content-type", "accept", "x-api-key") == {
        "authorization": f"Bearer {KEY}",
        "content-type": "application/json",
        "accept": "application/json",
        "x-api-key": None,
    }


def test_serper_is_asked_as_its_documentation_says(server: FakeSearchServer) -> None:
    server.replies.append(Reply(body=SERPER))
    result = ask(server, provider="serper", max_results=3, default_params={"gl": "us"})
    assert result.text == "[1] Velm: A river."
    assert result.facts["results"] == [{"title": "Velm", "text": "A river.", "url": "https://a.example"}]
    [request] = server.requests
    assert (request.method, request.path, request.params) == ("POST", "/search", {})
    assert request.body == {"q": "river Velm", "num": 3, "gl": "us"}
    assert headers_of(request, "x-api-key", "content-type", "authorization") == {
        "x-api-key": KEY,
        "content-type": "application/json",
        "authorization": None,
    }


def test_bing_is_asked_as_its_documentation_says(server: FakeSearchServer) -> None:
    server.replies.append(Reply(body=BING))
    result = tool_for(
        f"{server.address}/v7.0/search?code=1",
        provider="bing",
        default_params={"mkt": "en-US", "textDecorations": False},
    )(query="a & b=ü")
    assert result.text == "[1] Velm: A river."
    assert result.facts["results"] == [{"title": "Velm", "text": "A river.", "url": "https://a.example"}]
    [request] = server.requests
    assert (request.method, request.path, request.body) == ("GET", "/v7.0/search", None)
    assert request.params == {"code": "1", "q": "a & b=ü", "count": "5", "mkt": "en-US", "textDecorations": "false"}
    assert headers_of(request, "ocp-apim-subscription-key", "authorization", "content-type") == {
        "ocp-apim-subscription-key": KEY,
        "authorization": None,
        "content-type": None,
    }


def test_a_service_of_ones_own_is_asked_without_a_key_or_with_the_one_that_is_named(server: FakeSearchServer) -> None:
    server.answer = lambda _request: Reply(body={"results": [{"title": "", "content": "A river.", "url": None}]})
    result = ask(server, provider="wiki", default_params={"index": "2018", "max_results": 2})
    assert result.text == "[1] A river."
    assert result.facts["results"] == [{"title": "", "text": "A river."}]
    ask(server, provider="wiki", api_key_env="MY_KEY")
    without, with_key = server.requests
    assert (without.method, without.body) == ("POST", {"query": "river Velm", "max_results": 2, "index": "2018"})
    assert without.headers.get("authorization") is None
    assert with_key.headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("provider", "address"),
    [
        ("tavily", "https://api.tavily.com/search"),
        ("serper", "https://google.serper.dev/search"),
        ("bing", "https://api.bing.microsoft.com/v7.0/search"),
    ],
)
def test_providers_have_their_public_addresses(provider: str, address: str) -> None:
    assert WebSearch(SearchToolConfig(provider=provider))._address == address


@pytest.mark.parametrize(
    ("provider", "name", "most"), [("tavily", "max_results", 20), ("serper", "num", 100), ("bing", "count", 50)]
)
def test_no_provider_is_asked_for_more_than_it_gives(
    server: FakeSearchServer, provider: str, name: str, most: int
) -> None:
    ask(server, provider=provider, max_results=1000)
    [request] = server.requests
    assert (request.body or request.params)[name] in (most, str(most))


def test_results_and_snippets_are_capped_whatever_the_provider_sends(server: FakeSearchServer) -> None:
    results = [{"title": f"T{n}", "url": "", "content": "word\n" * 50} for n in range(30)]
    server.replies.append(Reply(body={"results": results}))
    result = ask(server, max_results=2, max_snippet_chars=13)
    assert result.text == "[1] T0: word word...\n[2] T1: word word..."
    assert len(result.facts["results"]) == 2


@pytest.mark.parametrize(
    ("provider", "answer"),
    [
        ("tavily", {"results": []}),
        ("serper", {"searchParameters": {}, "organic": []}),
        ("serper", {"searchParameters": {}}),
        ("bing", {"_type": "SearchResponse"}),
        ("bing", {"_type": "SearchResponse", "webPages": {"value": []}}),
        ("wiki", {"results": [{"title": None, "url": "https://a.example"}]}),
    ],
)
def test_an_answer_without_results_says_so(server: FakeSearchServer, provider: str, answer: Any) -> None:
    server.replies.append(Reply(body=answer))
    assert ask(server, provider=provider).text == "no results; try other words"


# ---------------------------------------------------------------------------------------------------------------------
# Settings that a person can mend


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (
            {"provider": "tavilly"},
            "tools.search.provider is 'tavilly', not one of tavily, serper, bing; did you mean 'tavily'?; "
            "for a service of your own set tools.search.endpoint",
        ),
        (
            {"default_params": {"query": "x"}},
            "tools.search.default_params holds 'query', which is the model's query; remove it",
        ),
        (
            {"endpoint": "localhost:80/search"},
            "tools.search.endpoint is 'localhost:80/search'; expected an address such as https://host/search",
        ),
        (
            {"endpoint": "http://a b/"},
            "tools.search.endpoint is 'http://a b/'; expected an address such as https://host/search",
        ),
        (
            {"endpoint": "http://a:99999/"},
            "tools.search.endpoint is 'http://a:99999/'; expected an address such as https://host/search",
        ),
    ],
)
def test_wrong_settings_are_sentences(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WebSearch(SearchToolConfig(**values))
    assert str(caught.value) == complaint


@pytest.mark.parametrize("held", [None, "", "  "])
@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, "TAVILY_API_KEY"),
        ({"provider": "serper"}, "SERPER_API_KEY"),
        ({"provider": "bing"}, "BING_SEARCH_API_KEY"),
        ({"api_key_env": "MY_KEY"}, "MY_KEY"),
        ({"provider": "wiki", "endpoint": "http://h/", "api_key_env": "MY_KEY"}, "MY_KEY"),
    ],
)
def test_a_missing_key_stops_the_run_at_its_start(
    monkeypatch: pytest.MonkeyPatch, held: str | None, values: dict[str, Any], name: str
) -> None:
    monkeypatch.delenv(name)
    if held is not None:
        monkeypatch.setenv(name, held)
    tools = Toolset(ToolsConfig(use=("search",), search=values))
    with pytest.raises(ConfigError) as caught:
        tools.start()
    assert str(caught.value) == (
        f"tools.search: provider {values.get('provider', 'tavily')!r} needs a key, and the environment variable {name} "
        f"is not set; set {name}, or search the tasks' own documents with tools.search.mode: corpus"
    )


def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAVILY_API_KEY", "tvly-“quoted”")
    with pytest.raises(ConfigError) as caught:
        WebSearch(SearchToolConfig())
    assert str(caught.value) == "tools.search: TAVILY_API_KEY holds characters that no key has; copy the key again"


def test_the_toolset_opens_it_and_all_episodes_share_it(server: FakeSearchServer) -> None:
    server.replies.append(Reply(body=TAVILY))
    tools = Toolset(ToolsConfig(use=("search",), search={"endpoint": server.address}))
    tools.start()
    [first], [second] = tools.make({"task_id": "a"}), tools.make({"task_id": "b"})
    assert first is second
    result = ToolRegistry([first]).run(ToolCall(name="search", arguments={"query": "q"}))
    assert result.text == "[1] Velm: A river."


# ---------------------------------------------------------------------------------------------------------------------
# Failures


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_passing_failure_is_tried_again(server: FakeSearchServer, status: int) -> None:
    server.replies.extend([Reply(status=status), Reply(status=status), Reply(body=TAVILY)])
    assert ask(server).text == "[1] Velm: A river."
    assert len(server.requests) == 3
    assert [request.body for request in server.requests] == [{"query": "river Velm", "max_results": 5}] * 3


def test_broken_connections_and_late_answers_are_tried_again(server: FakeSearchServer) -> None:
    server.replies.extend([Reply(is_drop=True), Reply(delay_s=5), Reply(body=b"x" * 9, drip_s=0.1), Reply(body=TAVILY)])
    assert ask(server, timeout_s=0.3).text == "[1] Velm: A river."
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("reply", "what"),
    [
        (Reply(status=503, body=b"overloaded"), "HTTP 503"),
        (Reply(status=429), "HTTP 429"),
        (Reply(delay_s=5), "timed out"),
        (Reply(body=b"x" * 9, drip_s=0.1), "timed out"),
        (Reply(is_drop=True), "no connection"),
    ],
)
def test_after_the_last_attempt_the_model_reads_what_happened(
    server: FakeSearchServer, reply: Reply, what: str
) -> None:
    server.answer = lambda _request: reply
    result = ask(server, timeout_s=0.2, max_retries=1)
    remedy = "; check the connection, or set tools.search.mode to corpus" if what == "no connection" else ""
    assert result.text == f"error: search: no answer from tavily after 2 attempts ({what}){remedy}"
    assert (result.ok, result.facts) == (False, {"query": "river Velm", "results": []})
    assert len(server.requests) == 2


def test_where_nobody_listens_the_model_reads_of_the_connection() -> None:
    result = tool_for(f"http://127.0.0.1:{free_port()}", max_retries=0)(query="q")
    assert result.text == (
        "error: search: no answer from tavily after 1 attempt (no connection); check the connection, or set "
        "tools.search.mode to corpus"
    )


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (Reply(status=401), "tavily refused the key (HTTP 401); check TAVILY_API_KEY"),
        (Reply(status=403), "tavily refused the key (HTTP 403); check TAVILY_API_KEY"),
        (Reply(status=400, body={"detail": KEY}), "tavily refused the request (HTTP 400)"),
        (Reply(status=432), "tavily refused the request (HTTP 432)"),
        (Reply(status=307, headers={"location": "http://127.0.0.1:9/"}), "tavily refused the request (HTTP 307)"),
        (Reply(body=b"<html>"), "tavily gave an answer that is not JSON"),
        (Reply(body=b""), "tavily gave an answer that is not JSON"),
        (Reply(body=b"\xff\xfe{"), "tavily gave an answer that is not JSON"),
        (Reply(body=b"[" * 200_000), "tavily gave an answer that is not JSON"),
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
            "the request to tavily failed (DecodingError)",
        ),
    ],
)
def test_what_another_attempt_would_not_mend_is_asked_once(server: FakeSearchServer, reply: Reply, text: str) -> None:
    server.replies.append(reply)
    result = ask(server)
    assert (result.ok, result.text) == (False, f"error: search: {text}")
    assert len(server.requests) == 1


def test_a_service_of_ones_own_that_wants_a_key_says_where_to_name_it(server: FakeSearchServer) -> None:
    server.replies.append(Reply(status=401))
    assert (
        ask(server, provider="wiki").text == "error: search: wiki wants a key (HTTP 401); set tools.search.api_key_env"
    )


def test_bing_without_pages_and_without_its_mark_is_another_shape(server: FakeSearchServer) -> None:
    server.replies.append(Reply(body={"error": {}}))
    assert ask(server, provider="bing").text == "error: search: bing gave an answer without webPages.value"


def test_a_query_beyond_the_providers_limit_is_not_sent(server: FakeSearchServer) -> None:
    assert ask(server, "a" * 400).ok
    assert ask(server, "a" * 401).text == "error: search: the query has 401 characters; use at most 400"
    assert len(server.requests) == 1


def test_half_characters_are_neither_sent_nor_answered(server: FakeSearchServer) -> None:
    server.replies.append(Reply(body=b'{"results": [{"title": "\\ud800", "content": "b"}]}'))
    assert ask(server, "a\ud800").text == "[1] ?: b"
    assert server.requests[0].body["query"] == "a?"


# ---------------------------------------------------------------------------------------------------------------------
# Waiting


def test_waits_double_and_are_a_little_longer_at_random(server: FakeSearchServer) -> None:
    server.answer = lambda _request: Reply(status=500)
    slept: list[float] = []
    result = ask(server, sleep=slept.append, backoff_factor=0.5, max_retries=4)
    assert result.text == "error: search: no answer from tavily after 5 attempts (HTTP 500)"
    for wait_s, least_s in zip(slept, (0.5, 1.0, 2.0, 4.0), strict=True):
        assert least_s <= wait_s <= least_s + 0.25
    assert len({wait_s % 0.5 for wait_s in slept}) == 4


@pytest.mark.parametrize("named", ["7", "date"])
def test_a_wait_that_the_provider_asks_for_is_kept(server: FakeSearchServer, named: str) -> None:
    asked = format_datetime(datetime.now(UTC) + timedelta(seconds=8), usegmt=True) if named == "date" else named
    server.replies.extend([Reply(status=429, headers={"retry-after": asked}), Reply(body=TAVILY)])
    slept: list[float] = []
    assert ask(server, sleep=slept.append).ok
    [wait_s] = slept
    assert 6 <= wait_s <= 8


def test_a_wait_beyond_the_deadline_ends_the_call_at_once(server: FakeSearchServer) -> None:
    server.replies.append(Reply(status=429, headers={"retry-after": "3600"}))
    slept: list[float] = []
    result = ask(server, sleep=slept.append)
    assert result.text == "error: search: no answer from tavily after 1 attempt (HTTP 429, it asks to wait 3600 s)"
    assert slept == []


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, 0), ("", 0), ("soon", 0), ("-5", 0), ("nan", 0), ("12", 12), (" 3 ", 3), ("9" * 400, 999_999_999),
     ("Wed, 21 Oct 2015 07:28:00 GMT", 0), ("Wed, 21 Oct 99999 07:28:00 GMT", 0)],
)  # fmt: skip
def test_what_retry_after_may_hold(header: str | None, seconds: float) -> None:
    assert seconds_asked(header) == seconds


def test_all_attempts_of_a_call_end_within_its_deadline(server: FakeSearchServer) -> None:
    server.answer = lambda _request: Reply(delay_s=5)
    start_s = time.monotonic()
    result = ask(server, timeout_s=0.3, max_retries=2, backoff_factor=0.45)
    assert 1.0 <= time.monotonic() - start_s <= 1.8  # a third attempt would begin after 0.3 + 0.45 + 0.3 + 0.9 s
    assert result.text == "error: search: no answer from tavily after 2 attempts (timed out)"


def test_an_attempt_gets_what_is_left_of_the_deadline(server: FakeSearchServer) -> None:
    server.replies.extend([Reply(status=500), Reply(delay_s=0.2)])
    result = ask(server, timeout_s=0.3, max_retries=1, sleep=lambda _s: time.sleep(1.21))
    assert result.text == "error: search: no answer from tavily after 2 attempts (timed out)"


def test_a_wait_into_the_deadline_is_not_begun(server: FakeSearchServer) -> None:
    server.answer = lambda _request: Reply(status=500)
    start_s = time.monotonic()
    result = ask(server, timeout_s=0.2, max_retries=2, backoff_factor=30.0)
    assert time.monotonic() - start_s < 0.5
    assert result.text == "error: search: no answer from tavily after 1 attempt (HTTP 500)"


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


def test_turns_that_are_over_are_forgotten() -> None:
    limit = RateLimit(2, interval_s=0.02)
    assert all(limit.take(1.0) for _ in range(20))
    assert limit._bucket.count() <= 4


def test_calls_beyond_the_limit_are_told_so(server: FakeSearchServer) -> None:
    limit = RateLimit(2, interval_s=1000.0)
    tool = tool_for(server.address, rate_limit=limit, rate_limit_per_min=2)
    texts = [tool(query="q").text for _ in range(3)]
    assert texts[:2] == ["no results; try other words"] * 2
    assert texts[2] == "error: search: too many searches at once, only 2 a minute are allowed; try again later"
    assert len(server.requests) == 2


def test_further_attempts_take_turns_too(server: FakeSearchServer) -> None:
    server.answer = lambda _request: Reply(status=500)
    result = tool_for(server.address, rate_limit=RateLimit(2, interval_s=1000.0), rate_limit_per_min=2)(query="q")
    assert result.text == "error: search: too many searches at once, only 2 a minute are allowed; try again later"
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
        result = tool(query="q")
        assert not result.ok
        seen += [result.text, repr(result.facts)]
    assert all(any(KEY in value for value in request.headers.values()) for request in server.requests)
    assert len(server.requests) == len(LEAKS)
    # The server's own headers, which here repeat the key, are logged by httpcore at DEBUG.
    seen += [each.getMessage() for each in caplog.records if "receive_response_headers" not in each.getMessage()]
    assert any("connect_tcp" in text for text in seen)
    assert not any(KEY in text for text in seen)


def test_an_endpoint_that_repeats_its_request_does_not_get_the_key_into_a_transcript(server: FakeSearchServer) -> None:
    def echo(request: Request) -> Reply:
        said = request.headers["authorization"]
        return Reply(body={"results": [{"title": said, "url": f"http://h/{said}", "content": f"you said {said}"}]})

    server.answer = echo
    result = ask(server)
    assert result.text == "[1] Bearer [key]: you said Bearer [key]"
    assert result.facts["results"] == [
        {"title": "Bearer [key]", "text": "you said Bearer [key]", "url": "http://h/Bearer [key]"}
    ]
