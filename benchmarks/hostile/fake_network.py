"""A stand-in for httpx that answers the requests of API clients from the world of a tool's rules.

Only what the references use: one client with a base address and headers, GET, the status, the text and two exceptions.
"""

import json
from typing import Any

import httpx

from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.families.base import Exchange
from agent_rl.envs.nat.spec import Inputs, Tool

UNKNOWN_REQUEST = 599
_URLS: dict[str, str] = {}


class FakeNetwork:
    """Stands for the module httpx in a reference; `connect` chooses the world."""

    TransportError = httpx.TransportError
    TimeoutException = httpx.TimeoutException

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self._exchanges: dict[str, Exchange] = {}

    def connect(self, inputs: Inputs, config: dict[str, int]) -> None:
        """From now on answer as the service does when a right tool is asked this."""
        key = json.dumps([self._tool.rules, inputs, config], sort_keys=True)
        if key not in _WORLDS:
            _WORLDS[key] = FAMILIES[self._tool.family].exchanges(self._tool, inputs, config)
        self._exchanges = _WORLDS[key]

    def AsyncClient(self, *, base_url: str, timeout: float = 5.0, headers: Any = None) -> "_Client":
        return _Client(self._exchanges, base_url, headers or {})


_WORLDS: dict[str, dict[str, Exchange]] = {}


class _Client:
    def __init__(self, exchanges: dict[str, Exchange], base_url: str, headers: dict[str, str]) -> None:
        self._exchanges, self._base_url, self._headers = exchanges, base_url, headers

    async def __aenter__(self) -> "_Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def get(self, path: str) -> "_Response":
        url = f"{self._base_url}{path}"
        if url not in _URLS:
            # The real client writes an address in its own way, and sends no fragment.
            _URLS[url] = str(httpx.URL(url).copy_with(fragment=None))
        found = self._exchanges.get(f"GET {_URLS[url]}")
        if found is None or any(self._headers.get(name) != text for name, text in found.headers.items()):
            return _Response(UNKNOWN_REQUEST, "unknown request")
        if found.failure:
            kinds = {"timeout": httpx.ReadTimeout, "connection": httpx.ConnectError}
            raise kinds[found.failure](found.failure)
        return _Response(found.status, found.body)


class _Response:
    def __init__(self, status_code: int, text: str) -> None:
        self.status_code, self.text = status_code, text
