"""HTTP to the policy: every request has the key, names its episode, waits while weights change, and leaves a trace of
failures.

Not here: what is no completion (`server.py`), frameworks (`llm.py`).
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from nat_agent_rl.episodes import EPISODE, episode_headers, keep_token_ids
from nat_agent_rl.errors import KEY_VARIABLE, key_of, one_line

LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=1.0)
"""Idle connections are given up before a server's usual 5 s: one that it closes while a request is under way fails."""
SPEAKS_OF_THE_ENDPOINT = (401, 403, 429)
"""Statuses below 500 that say nothing about what the model wrote."""


def retry_after_s(response: httpx.Response) -> float:
    """Seconds that an answer asks to wait; 1 where it gives no number."""
    try:
        return max(0.0, float(response.headers.get("retry-after", "1")))
    except ValueError:
        return 1.0


@contextmanager
def _noting_failures() -> Iterator[None]:
    """What the transport raises is noted in the episode that runs."""
    try:
        yield
    except httpx.TransportError as error:
        if (episode := EPISODE.get()) is not None:
            episode.endpoint_error = one_line(error)
        raise


def _note(response: httpx.Response) -> httpx.Response:
    if response.status_code == httpx.codes.CONFLICT:
        # The SDKs of OpenAI's kind repeat a 409; an episode that is concluded stays so.
        response.headers["x-should-retry"] = "false"
    if (episode := EPISODE.get()) is None:
        return response
    if response.status_code == httpx.codes.OK:
        episode.num_answers += 1
        episode.endpoint_error = None
    elif response.status_code >= 500 or response.status_code in SPEAKS_OF_THE_ENDPOINT:
        episode.endpoint_error = f"HTTP {response.status_code}"
    return response


def _must_wait(response: httpx.Response, give_up: float) -> bool:
    is_busy = response.status_code == httpx.codes.TOO_MANY_REQUESTS
    return is_busy and time.monotonic() + retry_after_s(response) < give_up


def _headers(api_key_env: str) -> dict[str, str]:
    """Read with each request: a workflow is built before anybody can be told that the key is missing."""
    return {"Authorization": f"Bearer {key_of(api_key_env)}", **episode_headers()}


class PolicyTransport(httpx.AsyncHTTPTransport):
    """Answers of 429 are waited out for at most `patience_s` seconds. FinetuneError when the environment has no key."""

    def __init__(self, api_key_env: str, patience_s: float) -> None:
        super().__init__(limits=LIMITS)
        self.api_key_env, self.patience_s = api_key_env, patience_s

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.headers.update(_headers(self.api_key_env))
        give_up = time.monotonic() + self.patience_s
        while True:
            with _noting_failures():
                response = await super().handle_async_request(request)
            if not _must_wait(response, give_up):
                return _note(response)
            await response.aread()
            await asyncio.sleep(retry_after_s(response))


class BlockingPolicyTransport(httpx.HTTPTransport):
    """The same for clients that block a thread."""

    def __init__(self, api_key_env: str, patience_s: float) -> None:
        super().__init__(limits=LIMITS)
        self.api_key_env, self.patience_s = api_key_env, patience_s

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.headers.update(_headers(self.api_key_env))
        give_up = time.monotonic() + self.patience_s
        while True:
            with _noting_failures():
                response = super().handle_request(request)
            if not _must_wait(response, give_up):
                return _note(response)
            response.read()
            time.sleep(retry_after_s(response))


async def _keep_ids(response: httpx.Response) -> None:
    """Keep the ids of a completion that comes as one JSON text."""
    if response.status_code == httpx.codes.OK and "json" in response.headers.get("content-type", ""):
        await response.aread()
        for choice in response.json().get("choices") or ():
            keep_token_ids(choice.get("logprobs"))


def policy_client(
    server: str, *, api_key_env: str = KEY_VARIABLE, timeout_s: float = 600.0, patience_s: float = 600.0
) -> httpx.AsyncClient:
    """An HTTP client for workflows without a framework: `await client.post("/v1/chat/completions", json=...)`.

    Its requests name the episode of the workflow that runs, and where they ask for `logprobs` the sampled ids are kept
    for the server's check. `timeout_s` is for one answer, `patience_s` for waiting while weights change. A request
    raises FinetuneError when the environment has no key.
    """
    return httpx.AsyncClient(
        base_url=server,
        timeout=timeout_s,
        transport=PolicyTransport(api_key_env, patience_s),
        event_hooks={"response": [_keep_ids]},
    )
