"""Who reaches a vLLM server but does not know its key can do nothing with it."""

import asyncio
from typing import Any

import pytest

from agent_rl.errors import ConfigError
from agent_rl.inference.vllm.server.key_guard import KEY_VARIABLE, KeyGuard, key_header
from agent_rl.inference.vllm.server.launch_plan import _check_key

KEY = "0123456789abcdef"


def status(path: str, *authorization: bytes, kind: str = "http") -> int | str:
    """What a client gets: the status of the answer, or how a socket was closed."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": kind, "path": path, "headers": [(b"authorization", value) for value in authorization]}
    asyncio.run(KeyGuard(app)(scope, None, send))
    return sent[0].get("status", sent[0]["type"])


@pytest.mark.parametrize(
    "path", ["/collective_rpc", "/v1/models", "/pause", "/health/../pause", "/healthy", "//health"]
)
def test_only_who_knows_the_key_is_answered(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    assert status(path, f"Bearer {KEY}".encode()) == 200
    for wrong in (
        [],
        [b""],
        [KEY.encode()],
        [b"Bearer "],
        [f"Bearer {KEY}x".encode()],
        [f"bearer {KEY}".encode()],
        [f"Bearer {KEY}".encode(), b"Bearer x"],
        ["Bearer é".encode()],
    ):
        assert status(path, *wrong) == 401
    assert status(path, kind="websocket") == "websocket.close"


def test_health_is_open_and_without_a_key_everything_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    assert status("/health") == 200
    assert key_header() == {"authorization": f"Bearer {KEY}"}
    monkeypatch.delenv(KEY_VARIABLE)
    assert status("/collective_rpc") == 200
    assert key_header() == {}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.2", "node-2", "example.org", ""])
def test_other_addresses_than_the_machines_own_need_a_key(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=KEY_VARIABLE):
        _check_key(host)
    for short in ("x", "x" * 15, "x" * 20 + " ", "é" * 20, "x" * 20 + "\n"):
        monkeypatch.setenv(KEY_VARIABLE, short)
        with pytest.raises(ConfigError, match="is no key"):
            _check_key(host)
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    _check_key(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.3.2.1"])
def test_the_machines_own_addresses_need_none(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    _check_key(host)
