"""Searching on the web: one provider asked over HTTP, with a limit per minute, repeated attempts and deadlines.

One `WebSearch` serves all episodes of a process. What is wrong with a query is a sentence for the model
(`SearchError`). All else is no fault of the model's and ends the episode unscored (`ServiceError`): a refused key, no
answer after the last attempt, an answer that is none, no turn under the limit. Both name the provider, what happened
and how often it was tried; bodies of failed answers, addresses and the key are in none. Not here: what providers are
asked and answer (`web_providers.py`), the tool and its text (`search_tool.py`).
"""

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx
from pyrate_limiter import InMemoryBucket, Rate, RateItem
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential_jitter

from agent_rl.config.tools import SearchToolConfig
from agent_rl.errors import ServiceError
from agent_rl.loop_thread import shared_loop
from agent_rl.redacted import Secrets, secret_values, secrets_of_address
from agent_rl.sandbox.guest.bounded_json import UnreadableJSON, read_json
from agent_rl.tools.passages import Passage, SearchError
from agent_rl.tools.web_body import UNPACKED, WebBodyError, read_web_body
from agent_rl.tools.web_providers import (
    BadAnswerError,
    address_of,
    key_name,
    provider_of,
    read_answer,
    read_key,
    request_of,
)

_MAX_QUERY_CHARS = 400
"""Tavily refuses longer ones."""
_MAX_ANSWER_BYTES = 4_000_000
_MAX_ANSWER_VALUES = 50_000
_MAX_TURN_S = 120.0
"""Longest wait for a first turn under the limit per minute."""
_OFFLINE = "no connection"
_ABOUT_THE_QUERY = (400, 413, 414, 422)
"""HTTP statuses by which a provider refuses what it is asked, not who asks."""


class _PassingError(ServiceError):
    """A failure that may pass, so that the same request is worth another attempt."""

    def __init__(self, what: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(what)
        self.retry_after_s = retry_after_s


class RateLimit:
    """At most `num` turns in any `interval_s`, for all threads together, in the order in which they were asked for."""

    def __init__(self, num: int, *, interval_s: float = 60.0, sleep: Callable[[float], None] = time.sleep) -> None:
        # The bucket alone: pyrate-limiter's Limiter keeps a thread, and waits out a time limit it cannot meet.
        self._bucket = InMemoryBucket([Rate(num, round(interval_s * 1000))])
        self._lock = threading.Lock()
        self._sleep = sleep

    def take(self, within_s: float) -> bool:
        """Wait for the next free turn. False, at once and without taking it, when it is more than `within_s` away."""
        with self._lock:
            now_ms = self._bucket.now()
            self._bucket.leak(now_ms)
            wait_ms = 0
            # Turns that are waited for stand in the bucket too, at the time at which they come.
            while not (turn := self._bucket.put_decision(RateItem("search", now_ms + wait_ms))).allowed:
                wait_ms += turn.retry_after_ms
                if wait_ms > within_s * 1000:
                    return False
        if wait_ms:
            self._sleep(wait_ms / 1000)
        return True


class WebSearch:
    """A `Find` that asks the configured provider. All attempts of one call, and the waits between them, end within
    about `2 * (1 + max_retries) * timeout_s` seconds of its first turn under the limit per minute."""

    def __init__(
        self,
        config: SearchToolConfig,
        *,
        rate_limit: RateLimit | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """ConfigError for an unknown provider, a bad endpoint and a missing key. `rate_limit` replaces the one of the
        configuration."""
        self._config = config
        self._provider = provider_of(config)
        self._address = address_of(config, self._provider)
        self._key = read_key(config, self._provider)
        self._key_name = key_name(config, self._provider)
        values = [*secrets_of_address(self._address), *secret_values(config.default_params)]
        self._secrets = Secrets([*values, self._key] if self._key else values)
        self._rate_limit = rate_limit or _own_share(config.rate_limit_per_min)
        self._sleep = sleep
        self._loop = shared_loop("web search")
        headers = {self._provider.key_header: self._provider.key_prefix + self._key} if self._key else {}
        no_limit = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self._client = httpx.AsyncClient(
            headers={**headers, **UNPACKED, "accept": "application/json"},
            timeout=None,
            limits=no_limit,
        )

    def __call__(self, query: str) -> list[Passage]:
        """SearchError when the query is at fault, ServiceError when anything else is."""
        if len(query) > _MAX_QUERY_CHARS:
            raise SearchError(f"the query has {len(query)} characters; use at most {_MAX_QUERY_CHARS}")
        query = query.encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent
        self._await_turn(_MAX_TURN_S)
        # Twice what the attempts may take leaves room for the waits: own ones, and those that a provider asks for.
        deadline = time.monotonic() + 2 * (1 + self._config.max_retries) * self._config.timeout_s
        attempts = self._attempts(deadline)
        try:
            for attempt in attempts:
                with attempt:
                    if attempt.retry_state.attempt_number > 1:
                        self._await_turn(deadline - time.monotonic())
                    found = self._ask(query, min(self._config.timeout_s, deadline - time.monotonic()))
        except _PassingError as error:
            raise ServiceError(self._no_answer(error, attempts.statistics["attempt_number"])) from error
        return [self._without_secrets(passage) for passage in found[: self._config.max_results]]

    def _attempts(self, deadline: float) -> Retrying:
        config = self._config
        backoff = wait_exponential_jitter(initial=config.backoff_factor, jitter=config.backoff_factor / 2)

        def wait_s(state: RetryCallState) -> float:
            return max(backoff(state), state.outcome.exception().retry_after_s)

        def is_enough(state: RetryCallState) -> bool:
            is_last = state.attempt_number > config.max_retries
            return is_last or time.monotonic() + state.upcoming_sleep >= deadline

        is_passing = retry_if_exception_type(_PassingError)
        return Retrying(retry=is_passing, wait=wait_s, stop=is_enough, sleep=self._sleep, reraise=True)

    def _await_turn(self, within_s: float) -> None:
        if self._rate_limit is not None and not self._rate_limit.take(within_s):
            raise ServiceError(
                f"too many searches at once: tools.search.rate_limit_per_min allows {self._config.rate_limit_per_min}, "
                "and no turn was free in time; raise it, or play fewer episodes at a time"
            )

    def _ask(self, query: str, within_s: float) -> list[Passage]:
        """One attempt. Raises _PassingError; ServiceError or SearchError where another attempt would not help."""
        name = self._config.provider
        try:
            body = self._loop.result(self._body(query, within_s))
        except TimeoutError:
            raise _PassingError("timed out") from None
        except (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ProxyError):
            raise _PassingError(_OFFLINE) from None
        except httpx.HTTPError as error:  # its message may quote headers
            raise ServiceError(f"the request to {name} failed ({type(error).__name__})") from None
        try:
            answer = read_json(body, max_values=_MAX_ANSWER_VALUES)
        except UnreadableJSON as error:
            what = "with too many values" if error.is_too_large else "that is not JSON"
            raise ServiceError(f"{name} gave an answer {what}") from None
        try:
            return read_answer(self._provider, answer)
        except BadAnswerError as error:
            raise ServiceError(f"{name} gave {error}") from None

    async def _body(self, query: str, within_s: float) -> bytes:
        method, values, url = self._provider.method, request_of(self._provider, self._config, query), self._address
        if method == "GET":
            url, values = httpx.URL(url).copy_merge_params(values), None
        # A limit on the whole of it: those of httpx start anew with every byte that comes.
        async with asyncio.timeout(within_s), self._client.stream(method, url, json=values) as response:
            self._check_status(response)
            try:
                return await read_web_body(response, _MAX_ANSWER_BYTES)
            except WebBodyError as error:
                raise ServiceError(f"{self._config.provider} {error}") from None

    def _check_status(self, response: httpx.Response) -> None:
        name, status = self._config.provider, response.status_code
        if status == 429 or status >= 500:
            raise _PassingError(f"HTTP {status}", retry_after_s=requested_delay_s(response.headers.get("retry-after")))
        if status in (401, 403) and self._key_name:
            raise ServiceError(f"{name} refused the key (HTTP {status}); check {self._key_name}")
        if status in (401, 403):
            raise ServiceError(f"{name} wants a key (HTTP {status}); set tools.search.api_key_env")
        if status in _ABOUT_THE_QUERY:
            raise SearchError(f"{name} refused the request (HTTP {status}); try other words")
        if not response.is_success:
            raise ServiceError(f"{name} refused the request (HTTP {status}); check tools.search")

    def _no_answer(self, error: _PassingError, num_attempts: int) -> str:
        times = "1 attempt" if num_attempts == 1 else f"{num_attempts} attempts"
        asks = f", it asks to wait {math.ceil(error.retry_after_s)} s" if error.retry_after_s else ""
        remedy = "; check the connection, or set tools.search.mode to corpus" if str(error) == _OFFLINE else ""
        return f"no answer from {self._config.provider} after {times} ({error}{asks}){remedy}"

    def _without_secrets(self, passage: Passage) -> Passage:
        """An endpoint that repeats its request would put keys into transcripts."""
        parts = {"title": passage.title, "text": passage.text, "url": passage.url}
        return replace(passage, **{name: part and self._secrets.hide(part) for name, part in parts.items()})


def _own_share(num_per_min: int) -> RateLimit | None:
    """This process's part of the limit, where a launcher says that it is one of several."""
    if not num_per_min:
        return None
    num_processes = max(int(os.environ.get("WORLD_SIZE", "1")), 1)
    num = max(num_per_min // num_processes, 1)
    return RateLimit(num, interval_s=60.0 * num * num_processes / num_per_min)


def requested_delay_s(retry_after: str | None) -> float:
    """The seconds that a `Retry-After` header asks to wait, given as a number or as a date; 0 where there is none."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])  # of a longer number so much is enough
    try:
        asked = parsedate_to_datetime(text).astimezone(UTC) - datetime.now(UTC)
    except (ValueError, OverflowError):
        return 0.0
    return max(asked.total_seconds(), 0.0)
