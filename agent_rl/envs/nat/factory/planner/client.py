"""One structured call to Gemini, and a caller that paces calls and repeats those that failed for a passing reason.

The SDK (requirements-gemini.txt) is imported when the client is made, never before. Its own retries stay off, so that
every attempt is paced. Does not: decide what to send or what an answer means (`planner.py`).
"""

import json
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agent_rl.envs.nat.errors import PlannerError
from agent_rl.errors import AgentRLError
from agent_rl.resources import install_command

_BASE_DELAY_S = 2.0
_MAX_DELAY_S = 60.0
_KEY_NAMES = ("GEMINI_API_KEY", "GOOGLE_API_KEY")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one call; tokens of thought are counted as output, as they are billed."""

    num_tokens_in: int
    num_tokens_out: int


Generate = Callable[[str, dict[str, Any]], tuple[str, Usage]]
"""(prompt, JSON schema) -> the answer's text, "" when the model gave none, and its tokens. Raises `CallError`."""


class CallError(AgentRLError):
    """A call gave no answer; `is_transient` says whether the same call may succeed later."""

    def __init__(self, message: str, *, is_transient: bool) -> None:
        super().__init__(message)
        self.is_transient = is_transient


class GeminiClient:
    """A `Generate` on the google-genai SDK. Raises PlannerError when the SDK or the API key is missing."""

    def __init__(self, *, model: str, timeout_s: float, base_url: str | None = None) -> None:
        try:
            import httpx2
            from google import genai
            from google.genai import errors, types
        except ImportError as error:
            raise PlannerError(
                f"the Gemini planner needs the google-genai SDK ({error}); {install_command('gemini')}"
            ) from None
        key = next((os.environ[name] for name in _KEY_NAMES if os.environ.get(name)), None)
        if key is None:
            raise PlannerError("the Gemini planner needs an API key; set GEMINI_API_KEY or GOOGLE_API_KEY")
        self._model = model
        self._config_type = types.GenerateContentConfig
        self._errors = errors
        self._http_errors = (httpx2.HTTPError, OSError)
        # enterprise=False: variables of the environment could send the key to another service.
        self._client = genai.Client(
            api_key=key,
            enterprise=False,
            http_options=types.HttpOptions(base_url=base_url, timeout=round(timeout_s * 1000)),
        )

    def __call__(self, prompt: str, schema: dict[str, Any]) -> tuple[str, Usage]:
        config = self._config_type(response_mime_type="application/json", response_json_schema=schema)
        try:
            answer = self._client.models.generate_content(model=self._model, contents=prompt, config=config)
        except self._errors.APIError as error:
            is_transient = error.code in (408, 429) or error.code >= 500
            raise CallError(f"Gemini answered {error.code}: {error.message}", is_transient=is_transient) from error
        except (self._errors.UnknownApiResponseError, json.JSONDecodeError) as error:
            raise CallError(f"Gemini's answer is no JSON: {error}", is_transient=True) from error
        except self._http_errors as error:
            raise CallError(f"no answer from Gemini: {type(error).__name__}: {error}", is_transient=True) from error
        usage = answer.usage_metadata
        return answer.text or "", Usage(
            num_tokens_in=(usage and usage.prompt_token_count) or 0,
            num_tokens_out=((usage and usage.candidates_token_count) or 0)
            + ((usage and usage.thoughts_token_count) or 0),
        )


@dataclass(slots=True, kw_only=True)
class PatientCaller:
    """A `Generate` that starts at most `requests_per_minute` calls, and repeats transient failures.

    The waits double from two seconds up to a minute, each shortened at random by up to a half.
    """

    generate: Generate
    requests_per_minute: float
    max_attempts: int
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _next_start_s: float = field(default=float("-inf"), init=False)
    _turns: threading.Lock = field(default_factory=threading.Lock, init=False)
    """Held while a caller waits for its turn; several threads may call."""

    def __call__(self, prompt: str, schema: dict[str, Any]) -> tuple[str, Usage]:
        for attempt in range(1, self.max_attempts + 1):
            self._await_turn()
            try:
                return self.generate(prompt, schema)
            except CallError as error:
                if not error.is_transient or attempt == self.max_attempts:
                    raise
            self.sleep(min(_MAX_DELAY_S, _BASE_DELAY_S * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0))
        raise AssertionError("max_attempts must be at least 1")

    def _await_turn(self) -> None:
        with self._turns:
            wait_s = self._next_start_s - self.clock()
            if wait_s > 0:
                self.sleep(wait_s)
            self._next_start_s = self.clock() + 60 / self.requests_per_minute
