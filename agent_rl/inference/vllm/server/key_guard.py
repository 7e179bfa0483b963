"""Part of a vLLM server: answers nobody who does not know the key of `AGENT_RL_VLLM_KEY`, except about its health.

vLLM's own `--api-key` guards what begins with /v1, and not the routes by which weights are changed and code is called.
Imports no vLLM; the server loads it as an ASGI middleware. Not here: encryption of what travels.
"""

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

KEY_VARIABLE = "AGENT_RL_VLLM_KEY"
"""Environment variable with the key, for the servers and for those who sample from them."""
MIN_KEY_CHARS = 16
_OPEN_PATHS = ("/health",)
_Message = MutableMapping[str, Any]


def key_header() -> dict[str, str]:
    """The header that a client sends; none without a key."""
    key = os.environ.get(KEY_VARIABLE, "")
    return {"authorization": f"Bearer {key}"} if key else {}


class KeyGuard:
    """ASGI middleware. Without a key in the environment it lets everybody in."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        self._expected = key_header().get("authorization", "").encode()

    async def __call__(self, scope: _Message, receive: Any, send: Callable[[_Message], Awaitable[None]]) -> None:
        if not self._expected or scope["type"] == "lifespan" or self._knows_the_key(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send(
                {"type": "http.response.body", "body": b'{"error": "unknown key; set %s"}' % KEY_VARIABLE.encode()}
            )

    def _knows_the_key(self, scope: _Message) -> bool:
        if scope["type"] == "http" and scope["path"] in _OPEN_PATHS:
            return True
        given = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._expected)
