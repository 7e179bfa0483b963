"""What the tests of `search` on the web share: a key, answers of providers, and the tool calling a fake server."""

import time
from typing import Any

import pytest
from fake_search_server import FakeSearchServer

from agent_rl.config.tools import SearchToolConfig
from agent_rl.errors import ServiceError
from agent_rl.tools.base import ToolResult
from agent_rl.tools.search_tool import SearchTool
from agent_rl.tools.web_search_tool import RateLimit, WebSearch

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


def config_for(address: str, **values: Any) -> SearchToolConfig:
    return SearchToolConfig(**{"endpoint": address, "backoff_factor": 0.0, "rate_limit_per_min": 0} | values)


def tool_for(
    address: str, *, sleep: Any = time.sleep, rate_limit: RateLimit | None = None, **values: Any
) -> SearchTool:
    config = config_for(address, **values)
    return SearchTool(WebSearch(config, sleep=sleep, rate_limit=rate_limit), max_snippet_chars=config.max_snippet_chars)


def web_search(server: FakeSearchServer, query: str = "river Velm", **values: Any) -> ToolResult:
    return tool_for(f"{server.address}/search", **values)(query=query)


def failure(server: FakeSearchServer, query: str = "river Velm", **values: Any) -> str:
    """What ends the episode."""
    with pytest.raises(ServiceError) as caught:
        web_search(server, query, **values)
    return str(caught.value)
