"""The endpoint's HTTP side: keys, bodies, dialects and streams around sessions.

Paths work with and without `/s/KEY` in front, for clients that can only be given an address. Nothing is read of a
request without a key. Not here: what a request means (`requests.py`, `dialects/`), sampling (`session.py`), how a
server runs (`server.py`).
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse
from starlette.exceptions import HTTPException

from agent_rl.endpoint.dialects.table import CHAT, DIALECTS, Dialect
from agent_rl.endpoint.errors import EndpointError, bad_request, no_key
from agent_rl.endpoint.requests import ChatRequest, parse_body
from agent_rl.endpoint.session import ChatExchange, EpisodeSession, SampledReply
from agent_rl.endpoint.sessions import Sessions

_LOGGER = logging.getLogger(__name__)
MODEL_NAME = "policy"
KEEP_ALIVE_S = 5.0
"""Between comments in a stream whose completion is still sampled."""
BODY_TIMEOUT_S = 60.0
"""A request's body has to arrive within this time."""
BYTES_PER_TOKEN = 256
"""A body may have this many bytes per token of the window, and a mebibyte more."""


class FindSession(Protocol):
    """Finds the session that a request plays, by its key and headers; EndpointError where there is none."""

    def __call__(self, key: str, request: Request) -> EpisodeSession: ...


class EndpointApp:
    """The application and the threads it samples in."""

    def __init__(
        self,
        sessions: Sessions,
        *,
        num_threads: int,
        find_session: FindSession | None = None,
        check_key: Callable[[str], object] | None = None,
    ) -> None:
        """`find_session` finds sessions otherwise than by their own keys, which `check_key` knows too."""
        self.sessions = sessions
        self._find_session = find_session or (lambda key, _request: sessions.find(key))
        self._check_key = check_key or sessions.find
        self._samplers = ThreadPoolExecutor(num_threads, thread_name_prefix="endpoint-sample")
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="endpoint-read")
        self._max_bytes = 2**20 + BYTES_PER_TOKEN * sessions.policy.max_context
        self.app = FastAPI(title="agent_rl endpoint", docs_url=None, redoc_url=None, openapi_url=None)
        self.app.add_exception_handler(EndpointError, refuse)
        self.router = router = APIRouter()
        """The same without `/s/KEY`, for an application that has more than this."""
        for path, dialect in DIALECTS.items():
            router.add_api_route(path, self._answers(dialect), methods=["POST"])
        router.add_api_route("/v1/models", self._models, methods=["GET"])
        router.add_api_route("/v1/reward", self._reward, methods=["POST"])
        self.app.include_router(router)
        self.app.include_router(router, prefix="/s/{key}")

    def close(self) -> None:
        """Stop the threads; to be called when no session is open and no server runs."""
        self._samplers.shutdown(wait=False, cancel_futures=True)
        self._readers.shutdown(wait=False, cancel_futures=True)

    async def _models(self, request: Request) -> Response:
        self._check_key(key_of(request))
        row = {"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "agent_rl"}
        return JSONResponse({"object": "list", "data": [row]})

    async def _reward(self, request: Request) -> Response:
        session = self._find_session(key_of(request), request)
        session.post_reward(parse_body(await read_body(request, self._max_bytes)))
        return Response(status_code=204)

    def _answers(self, dialect: Dialect) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            try:
                return await self._answer(dialect, request)
            except EndpointError as error:
                refusal = error
            except HTTPException:  # an application around this one refuses the body while it is read
                raise
            except RecursionError:
                refusal = bad_request("the body is nested too deeply; send a flatter one")
            except Exception as error:  # the HTTP boundary: a bug here must not cost the agent its connection
                _LOGGER.exception("the endpoint failed at a request")
                refusal = EndpointError(500, "endpoint_failed", f"{type(error).__name__}: {error}")
            return JSONResponse(dialect.error(refusal), refusal.status, headers=refusal.headers)

        return answer

    async def _answer(self, dialect: Dialect, request: Request) -> Response:
        session = self._find_session(key_of(request), request)
        raw = await read_body(request, self._max_bytes)
        loop = asyncio.get_running_loop()
        headers = request.headers
        is_retry = headers.get("x-stainless-retry-count", "0") not in ("", "0")
        function = headers.get("x-agent-rl-function")

        def begin() -> tuple[ChatRequest, ChatExchange, bool]:
            parsed = dialect.parse(parse_body(raw))
            return parsed, *self.sessions.start(session, parsed, is_retry=is_retry, function=function)

        parsed, exchange, is_new = await loop.run_in_executor(self._readers, begin)
        if is_new:
            self._samplers.submit(self.sessions.sample, session, exchange)
        temperature = {"X-Agent-RL-Temperature": f"{session.spec.temperature:g}"}
        if parsed.stream:
            events = self._events(dialect, parsed, exchange)
            return EventSourceResponse(events, headers={"Cache-Control": "no-cache", **temperature})
        reply = await asyncio.shield(asyncio.wrap_future(exchange.future))
        return JSONResponse(self._body(dialect, reply, parsed), headers=temperature)

    async def _events(self, dialect: Dialect, request: ChatRequest, exchange: ChatExchange) -> AsyncIterator[bytes]:
        future = asyncio.wrap_future(exchange.future)
        while not future.done():
            await asyncio.wait([future], timeout=KEEP_ALIVE_S)
            if not future.done():
                yield KEEPALIVE_COMMENT
        try:
            reply = future.result()
        except EndpointError as error:
            yield dialect.error_event(error)
            return
        for event in dialect.events(self._body(dialect, reply, request), request):
            yield event

    def _body(self, dialect: Dialect, reply: SampledReply, request: ChatRequest) -> dict[str, Any]:
        return dialect.body(reply, request, self.sessions.policy.chat_format, created=int(time.time()))


def key_of(request: Request) -> str:
    """The key of a request: in its path, or as OpenAI's or Anthropic's clients send theirs; EndpointError without."""
    if key := request.path_params.get("key"):
        return key
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    key = token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
    if not key:
        raise no_key()
    return key


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body, bounded in size and time."""
    chunks, size = [], 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                size += len(chunk)
                if size > max_bytes:
                    raise EndpointError(413, "body_too_large", f"the body has more than {max_bytes} bytes")
                chunks.append(chunk)
    except TimeoutError as error:
        raise EndpointError(408, "timeout", f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from error
    return b"".join(chunks)


async def refuse(_request: Request, error: Exception) -> Response:
    """The answer to an EndpointError outside of a dialect, for `add_exception_handler`."""
    assert isinstance(error, EndpointError)
    return JSONResponse(CHAT.error(error), error.status, headers=error.headers)
