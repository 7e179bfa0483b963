"""`search` on the web: requests to providers, their answers, and invalid settings."""

from collections.abc import Iterator
from typing import Any

import pytest
from fake_search_server import FakeSearchServer, Reply, Request
from web_search import BING, KEY, SERPER, TAVILY, tool_for, web_search

from agent_rl.agent.messages import ToolCall
from agent_rl.config import ToolsConfig
from agent_rl.config.tools import SearchToolConfig
from agent_rl.errors import ConfigError
from agent_rl.tools.base import ToolRegistry
from agent_rl.tools.toolset import Toolset
from agent_rl.tools.web_search_tool import WebSearch


@pytest.fixture
def server() -> Iterator[FakeSearchServer]:
    with FakeSearchServer() as fake:
        yield fake


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TAVILY_API_KEY", "SERPER_API_KEY", "BING_SEARCH_API_KEY", "MY_KEY"):
        monkeypatch.setenv(name, KEY)


def headers_of(request: Request, *names: str) -> dict[str, str | None]:
    return {name: request.headers.get(name) for name in names}


# ---------------------------------------------------------------------------------------------------------------------
# Providers


def test_tavily_gets_the_documented_request(server: FakeSearchServer) -> None:
    server.replies.append(Reply(body=TAVILY))
    result = web_search(server, default_params={"search_depth": "advanced"})
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


def test_serper_gets_the_documented_request(server: FakeSearchServer) -> None:
    server.replies.append(Reply(body=SERPER))
    result = web_search(server, provider="serper", max_results=3, default_params={"gl": "us"})
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


def test_bing_gets_the_documented_request(server: FakeSearchServer) -> None:
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


def test_a_custom_service_is_called_without_a_key_or_with_the_named_one(server: FakeSearchServer) -> None:
    server.answer = lambda _request: Reply(body={"results": [{"title": "", "content": "A river.", "url": None}]})
    result = web_search(server, provider="wiki", default_params={"index": "2018", "max_results": 2})
    assert result.text == "[1] A river."
    assert result.facts["results"] == [{"title": "", "text": "A river."}]
    web_search(server, provider="wiki", api_key_env="MY_KEY")
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
def test_no_provider_gets_a_request_beyond_its_limit(
    server: FakeSearchServer, provider: str, name: str, most: int
) -> None:
    server.replies.append(Reply(body={"tavily": TAVILY, "serper": SERPER, "bing": BING}[provider]))
    web_search(server, provider=provider, max_results=1000)
    [request] = server.requests
    assert (request.body or request.params)[name] in (most, str(most))


def test_results_and_snippets_are_capped_whatever_the_provider_sends(server: FakeSearchServer) -> None:
    results = [{"title": f"T{n}", "url": "", "content": "word\n" * 50} for n in range(30)]
    server.replies.append(Reply(body={"results": results}))
    result = web_search(server, max_results=2, max_snippet_chars=13)
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
def test_an_answer_without_results_is_reported(server: FakeSearchServer, provider: str, answer: Any) -> None:
    server.replies.append(Reply(body=answer))
    assert web_search(server, provider=provider).text == "no results; try other words"


# ---------------------------------------------------------------------------------------------------------------------
# Settings that a user can fix


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
