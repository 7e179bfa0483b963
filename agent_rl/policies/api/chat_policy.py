"""A model behind an OpenAI-compatible address as a policy that can be evaluated, not trained: a baseline.

Named `openai:MODEL` or `openai:MODEL@ADDRESS`, such as `openai:Qwen/Qwen2.5-32B-Instruct@http://127.0.0.1:8000/v1`.
Not here: a server of this library's own weights (`served_policy.py`), log-probs.
"""

import json
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from agent_rl.errors import ConfigError, DataError, UserError
from agent_rl.inference.base import Cancel
from agent_rl.policies.api.numbered_messages import PAD, NumberedMessages, read_reply
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import Completion, FinishReason, SamplingParams
from agent_rl.tools.web_search_tool import requested_delay_s

PREFIX = "openai:"
KEY_VARIABLE = "OPENAI_API_KEY"
ADDRESS_VARIABLE = "OPENAI_BASE_URL"
DEFAULT_ADDRESS = "https://api.openai.com/v1"
MAX_ATTEMPTS = 6
MAX_WAIT_S = 60.0
"""Longest pause before another attempt, whatever the server asks for."""
_POLL_S = 0.1
_TOO_LONG = re.compile(r"context[ _]?(size|length|window)|prompt is too long", re.IGNORECASE)
_SHOWN_CHARS = 300
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiModel:
    """Which model, where."""

    model: str
    address: str

    @classmethod
    def parse(cls, name: str) -> "ApiModel":
        """`openai:MODEL[@ADDRESS]`; without an address that of OPENAI_BASE_URL, else OpenAI's. ConfigError."""
        model, _, address = name.removeprefix(PREFIX).partition("@")
        address = address or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
        if not model or not address.startswith(("http://", "https://")):
            raise ConfigError(f"{name}: expected {PREFIX}MODEL, or {PREFIX}MODEL@http://HOST:PORT/v1")
        return cls(model=model, address=address.rstrip("/"))


class _MomentaryError(Exception):
    """Another attempt may help."""

    def __init__(self, what: str, retry_after_s: float = 0.0) -> None:
        super().__init__(what)
        self.retry_after_s = min(retry_after_s, MAX_WAIT_S)


class _CancelledError(Exception):
    """Nobody waits for the reply any more."""


class ApiPolicy(BasePolicy):
    """Asks for one reply at a time; ids are numbers of messages, as many in a completion as the API counted tokens."""

    chat_format: NumberedMessages  # type: ignore[assignment]
    max_context = 2**31
    """The window is the server's; a conversation that it refuses as too long ends as at the limit of tokens."""

    def __init__(self, model: ApiModel, *, timeout_s: float = 120.0, backoff_s: float = 1.0) -> None:
        """`timeout_s` is the longest wait for one reply, `backoff_s` the first one between attempts."""
        self.chat_format = NumberedMessages()
        self._model = model
        self._backoff_s = backoff_s
        key = os.environ.get(KEY_VARIABLE, "")
        if not key and model.address == DEFAULT_ADDRESS:
            raise ConfigError(f"{PREFIX}{model.model}: {model.address} wants a key; set {KEY_VARIABLE}")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.Client(headers=headers, timeout=timeout_s, limits=httpx.Limits(max_connections=None))
        self._limit_key = "max_tokens"
        self._is_waited_for = False

    def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, cancel: Cancel | None = None) -> Completion:
        """UserError where the server refuses, or does not answer `MAX_ATTEMPTS` times."""
        if cancel is not None and cancel.is_set():
            return _completion((), FinishReason.CANCELLED)
        messages, tools = self.chat_format.conversation(prompt_ids)
        body: dict[str, Any] = {
            "model": self._model.model,
            "messages": messages,
            "temperature": sampling.temperature,
            "seed": sampling.seed % 2**31,
            **({"tools": tools} if tools else {}),
        }
        try:
            choice, num_tokens = self._ask(body, sampling.max_new_tokens, cancel)
        except _CancelledError:
            return _completion((), FinishReason.CANCELLED)
        number = self.chat_format.add(choice["message"])
        ids = (number, *(PAD,) * (max(num_tokens, 1) - 1))
        return _completion(ids, FinishReason.LENGTH if choice.get("finish_reason") == "length" else FinishReason.STOP)

    def _ask(self, body: dict[str, Any], max_new_tokens: int, cancel: Cancel | None) -> tuple[Mapping[str, Any], int]:
        """The first choice, and how many tokens it has."""
        backoff = wait_exponential_jitter(initial=self._backoff_s, max=30.0, jitter=self._backoff_s)

        def wait_s(state: RetryCallState) -> float:
            return max(backoff(state), state.outcome.exception().retry_after_s)

        def sleep(seconds: float) -> None:
            end = time.monotonic() + seconds
            while (left_s := end - time.monotonic()) > 0:
                if cancel is not None and cancel.is_set():
                    raise _CancelledError
                time.sleep(min(_POLL_S, left_s))

        attempts = Retrying(
            retry=retry_if_exception_type(_MomentaryError),
            wait=wait_s,
            sleep=sleep,
            stop=stop_after_attempt(MAX_ATTEMPTS),
            before_sleep=self._tell_of_waiting,
            reraise=True,
        )
        try:
            response = attempts(self._post, body, max_new_tokens)
        except _MomentaryError as error:
            raise UserError(f"{self._name}: no answer after {MAX_ATTEMPTS} attempts ({error})") from None
        self._is_waited_for = False
        if response is None:
            return {"message": {"role": "assistant", "content": ""}, "finish_reason": "length"}, 1
        try:
            return _read(response, max_new_tokens)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError, DataError):
            shown = response.text[:_SHOWN_CHARS]
            raise UserError(f"{self._name}: the answer is no chat completion: {shown!r}") from None

    def _tell_of_waiting(self, state: RetryCallState) -> None:
        """Once for all requests that wait, until one is answered."""
        if not self._is_waited_for:
            self._is_waited_for = True
            error, waits = state.outcome.exception(), MAX_ATTEMPTS - 1
            seconds = max(self._backoff_s * (2**waits - 1), waits * error.retry_after_s)
            _LOGGER.warning("%s: %s; asking up to %d times, for about %.0f s", self._name, error, MAX_ATTEMPTS, seconds)

    def _post(self, body: dict[str, Any], max_new_tokens: int) -> httpx.Response | None:
        """One attempt; None where the conversation is longer than the model's window."""
        limit_key = self._limit_key
        try:
            response = self._client.post(
                f"{self._model.address}/chat/completions",
                content=_as_json({**body, limit_key: max_new_tokens}),
                headers={"content-type": "application/json"},
            )
        except httpx.TransportError as error:
            raise _MomentaryError(type(error).__name__) from None
        status, text = response.status_code, response.text
        if status == 429 or status >= 500:
            raise _MomentaryError(f"HTTP {status}", requested_delay_s(response.headers.get("retry-after")))
        if status == 400 and limit_key == "max_tokens" and "max_completion_tokens" in text:
            self._limit_key = "max_completion_tokens"
            return self._post(body, max_new_tokens)
        if status == 400 and _TOO_LONG.search(text):
            return None
        if status in (401, 403):
            raise UserError(f"{self._name} refused the key (HTTP {status}); check {KEY_VARIABLE}")
        if not response.is_success:
            raise UserError(f"{self._name} refused the request (HTTP {status}): {text[:_SHOWN_CHARS]!r}")
        return response

    @property
    def _name(self) -> str:
        return f"{PREFIX}{self._model.model} at {self._model.address}"

    def close(self) -> None:
        self._client.close()


def _as_json(body: dict[str, Any]) -> bytes:
    """A body to send. Half of a surrogate pair, which a message or an earlier reply may hold, becomes `?`."""
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def _read(response: httpx.Response, max_new_tokens: int) -> tuple[Mapping[str, Any], int]:
    """The first choice of a chat completion and its number of tokens; one of many errors for what is none."""
    answer = response.json()
    choice = answer["choices"][0]
    message = {key: value for key, value in choice["message"].items() if value is not None}
    for call in message.get("tool_calls", ()):
        if not isinstance(call["function"]["name"], str):
            raise TypeError
    read_reply(message)
    num_tokens = int((answer.get("usage") or {}).get("completion_tokens") or 1)
    return {**choice, "message": message}, min(num_tokens, max_new_tokens)


def _completion(ids: tuple[int, ...], reason: FinishReason) -> Completion:
    return Completion(token_ids=ids, logprobs=(0.0,) * len(ids), finish_reason=reason, weight_version=0)
