"""The gate in front of every request: where it comes from, whose key it has, how much it sends and how slowly.

Nothing of a body is read before the key is known. Every answer gets headers that keep browsers from running or framing
it, and is counted. Not here: what a key may do with a job (`app.py`).
"""

import asyncio
import re
import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_rl.envs.nat.service.keys import ApiKey, KeyRing, local_key
from agent_rl.envs.nat.service.metrics import ServiceMetrics
from agent_rl.envs.nat.service.problems import ServiceProblem, problem
from agent_rl.errors import ConfigError

OPEN_PATHS = frozenset({"/", "/docs", "/openapi.json", "/healthz", "/readyz"})
"""Nobody's secret, so no key is asked for."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_METHODS = frozenset({"GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH"})


class Gate:
    """ASGI middleware."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: KeyRing,
        metrics: ServiceMetrics,
        max_bytes: int,
        any_host: bool = False,
        body_timeout_s: float,
    ) -> None:
        self._app, self._keys, self._metrics = app, keys, metrics
        self._checks_source = keys.is_open and not any_host
        self._max_bytes, self._body_timeout_s = max_bytes, body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        start_s = time.monotonic()
        status = 500

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            try:
                headers = Headers(scope=scope)
                self._check_source(headers)
                scope.setdefault("state", {})["key"] = self._caller(scope, headers)
                self._check_length(headers)
            except ServiceProblem as refusal:
                answer = problem(refusal.status_code, refusal.detail, refusal.headers)
                await answer(scope, receive, send_marked)
                return
            await self._app(scope, self._bounded(receive), send_marked)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.http(route, method, status, time.monotonic() - start_s)

    def _check_source(self, headers: Headers) -> None:
        """Without keys, a page of another site could reach a service on loopback through its visitor's browser.

        Such requests carry that site's name: as their host, where it points its name at this machine, or as origin.
        """
        if not self._checks_source:
            return
        host = headers.get("host", "")
        if not _is_this_machine(host):
            raise ServiceProblem(403, "this service does not go by that name; use 127.0.0.1, or give it keys")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            raise ServiceProblem(403, "a page of another site may not call this service")

    def _caller(self, scope: Scope, headers: Headers) -> ApiKey | None:
        """Whose key it is; None on paths that are open to all."""
        if self._keys.is_open:
            if "authorization" not in headers:  # the chat endpoint does not ask who, but asks for something
                scope["headers"] = [*scope["headers"], (b"authorization", b"Bearer local")]
            return local_key()
        if scope["path"] in OPEN_PATHS:
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        secret = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not secret:
            raise ServiceProblem(401, "this service needs a key; send Authorization: Bearer KEY")
        try:
            key = self._keys.find(secret)
        except ConfigError:  # it was edited, and is none now
            raise ServiceProblem(503, "the file of the keys cannot be read; its operator has to correct it") from None
        if key is None:
            raise ServiceProblem(401, "this key is not known here; ask the service's operator for one")
        return key

    def _check_length(self, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length) > self._max_bytes:
            raise self._too_large()

    def _too_large(self) -> ServiceProblem:
        return ServiceProblem(413, f"the body has more than {self._max_bytes} bytes; send less")

    def _bounded(self, receive: Receive) -> Receive:
        """`receive` for a body that is bounded in size and time."""
        size, is_whole = 0, False
        deadline = time.monotonic() + self._body_timeout_s

        async def bounded() -> Message:
            nonlocal size, is_whole
            if is_whole:
                return await receive()  # waits for the client to leave
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise ServiceProblem(
                    408, f"the body did not arrive within {self._body_timeout_s:g} s; send it at once"
                ) from None
            size += len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            if size > self._max_bytes:
                raise self._too_large()
            return message

        return bounded


def needs(scope_name: str) -> Callable[..., Any]:
    """A dependency: the caller's key, which has to have that scope. 403 otherwise."""

    def caller(request: Request) -> ApiKey:
        key = request.state.key
        assert isinstance(key, ApiKey)
        if scope_name not in key.scopes:
            raise ServiceProblem(403, f"the key {key.name!r} may not {scope_name}; ask the operator for that scope")
        return key

    return caller


def _is_this_machine(host: str) -> bool:
    name = re.sub(r":\d+$", "", host).lower()
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return name == "localhost"
    return True
