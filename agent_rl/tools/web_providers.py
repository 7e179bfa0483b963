"""What search providers on the web are asked and what they answer, as data: one row per provider.

The requests and answers are those of the providers' public documentation:

- Tavily, docs.tavily.com/api-reference/endpoint/search: `POST https://api.tavily.com/search`, `Authorization: Bearer
  KEY`, JSON `query`, `max_results` (up to 20); answers `results` with `title`, `url`, `content`.
- Serper, serper.dev: `POST https://google.serper.dev/search`, `X-API-KEY: KEY`, JSON `q`, `num` (up to 100); answers
  `organic` with `title`, `link`, `snippet`. Its answer boxes and knowledge graphs are not read.
- Bing Web Search v7, learn.microsoft.com/bing/search-apis: `GET https://api.bing.microsoft.com/v7.0/search`,
  `Ocp-Apim-Subscription-Key: KEY`, parameters `q`, `count` (up to 50); answers `webPages.value` with `name`, `url`,
  `snippet`, and no `webPages` where it found none. Microsoft retired the service on 11 August 2025; what is left are
  services that speak as it did, given by `tools.search.endpoint`.
- Any other name is a service of one's own at `tools.search.endpoint`: `POST`, `Authorization: Bearer KEY` where
  `tools.search.api_key_env` is set, JSON `query`, `max_results`; answers `results` with `title`, `url`, `content`.

Not here: sending, repeating, waiting (`web_search_tool.py`).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from agent_rl.config.tools import SearchToolConfig
from agent_rl.errors import AgentRLError, ConfigError, nearest
from agent_rl.redacted import shown
from agent_rl.tools.passages import Passage


class BadAnswerError(AgentRLError):
    """An answer of another shape than the provider's; the message goes on where "gave" ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """How one provider is asked and what it answers."""

    endpoint: str | None = None
    method: Literal["GET", "POST"] = "POST"
    """GET sends the parameters in the address, POST as a JSON object."""
    key_env: str | None = None
    key_header: str = "Authorization"
    key_prefix: str = "Bearer "
    query: str = "query"
    count: str = "max_results"
    max_count: int | None = None
    """More may not be asked for."""
    results: tuple[str, ...] = ("results",)
    """Keys that lead to the list of results."""
    sign: str = "results"
    """A key that every answer has, also one without results."""
    title: str = "title"
    url: str = "url"
    text: str = "content"


CUSTOM = Provider()
PROVIDERS = {
    "tavily": Provider(endpoint="https://api.tavily.com/search", key_env="TAVILY_API_KEY", max_count=20),
    "serper": Provider(
        endpoint="https://google.serper.dev/search",
        key_env="SERPER_API_KEY",
        key_header="X-API-KEY",
        key_prefix="",
        query="q",
        count="num",
        max_count=100,
        results=("organic",),
        sign="searchParameters",
        url="link",
        text="snippet",
    ),
    "bing": Provider(
        endpoint="https://api.bing.microsoft.com/v7.0/search",
        method="GET",
        key_env="BING_SEARCH_API_KEY",
        key_header="Ocp-Apim-Subscription-Key",
        key_prefix="",
        query="q",
        count="count",
        max_count=50,
        results=("webPages", "value"),
        sign="_type",
        title="name",
        text="snippet",
    ),
}


def provider_of(config: SearchToolConfig) -> Provider:
    """The provider that the configuration names. ConfigError for an unknown one without an endpoint."""
    provider = PROVIDERS.get(config.provider, CUSTOM)
    if provider.query in config.default_params:
        raise ConfigError(
            f"tools.search.default_params holds {provider.query!r}, which is the model's query; remove it"
        )
    if provider is CUSTOM and config.endpoint is None:
        hint = nearest(config.provider, PROVIDERS)
        raise ConfigError(
            f"tools.search.provider is {config.provider!r}, not one of {', '.join(PROVIDERS)}{hint}; "
            "for a service of your own set tools.search.endpoint"
        )
    return provider


def address_of(config: SearchToolConfig, provider: Provider) -> str:
    """Where requests go. ConfigError for an endpoint that is no http(s) address."""
    address = config.endpoint or provider.endpoint or ""
    try:
        parts = urlsplit(address)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or not address.isascii() or any(character.isspace() for character in address):
        raise ConfigError(
            f"tools.search.endpoint is {shown(address)!r:.300}; expected an address such as https://host/search"
        )
    return address


def key_name(config: SearchToolConfig, provider: Provider) -> str | None:
    """The environment variable that holds the key; None where no key is sent."""
    return config.api_key_env or provider.key_env


def read_key(config: SearchToolConfig, provider: Provider) -> str | None:
    """The key out of the environment. ConfigError, which does not show it, when it is missing or cannot be one."""
    name = key_name(config, provider)
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    if not key:
        raise ConfigError(
            f"tools.search: provider {config.provider!r} needs a key, and the environment variable {name} is not set; "
            f"set {name}, or search the tasks' own documents with tools.search.mode: corpus"
        )
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"tools.search: {name} holds characters that no key has; copy the key again")
    return key


def request_of(provider: Provider, config: SearchToolConfig, query: str) -> dict[str, Any]:
    """The parameters of a request; `tools.search.default_params` may ask for another number of results."""
    count = min(config.max_results, provider.max_count or config.max_results)
    return {provider.query: query, provider.count: count, **config.default_params}


def read_answer(provider: Provider, answer: Any) -> list[Passage]:
    """The passages of a provider's JSON answer, in its order. BadAnswerError for another shape."""
    found = answer
    for key in provider.results:
        found = found.get(key) if isinstance(found, Mapping) else None
    if found is None and isinstance(answer, Mapping) and provider.sign in answer:
        found = []
    if not isinstance(found, list):
        raise BadAnswerError(f"an answer without {'.'.join(provider.results)}")
    passages = [_read_result(provider, each) for each in found]
    return [passage for passage in passages if passage.title or passage.text]


def _read_result(provider: Provider, result: Any) -> Passage:
    """A part that is missing or null is empty: providers leave out what they do not have."""
    if not isinstance(result, Mapping):
        raise BadAnswerError(f"an answer whose {'.'.join(provider.results)} are not objects")
    title, url, text = (result.get(key) or "" for key in (provider.title, provider.url, provider.text))
    if not (isinstance(title, str) and isinstance(url, str) and isinstance(text, str)):
        raise BadAnswerError(f"an answer whose {provider.title}, {provider.url} or {provider.text} is not text")
    return Passage(title=title, text=text, url=url or None)
