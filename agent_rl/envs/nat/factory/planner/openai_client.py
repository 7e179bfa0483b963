"""One structured call to any OpenAI-compatible endpoint (`POST BASE_URL/chat/completions`), as a `Generate`.

A local vLLM with an instruct model, a gateway and the hosted services speak it. The schema goes into `response_format`;
a server that refuses `json_schema` is asked for `json_object`, with the schema in the prompt, from then on.
Not here: pacing and repeating (`client.py`), what an answer means (`planner.py`).
"""

import json
import os
from typing import Any
from urllib.parse import urlsplit

import httpx

from agent_rl.envs.nat.errors import PlannerError
from agent_rl.envs.nat.factory.planner.client import CallError, Usage
from agent_rl.redacted import shown

DEFAULT_KEY_NAME = "OPENAI_API_KEY"
_MAX_ANSWER_BYTES = 2**20
_WITHOUT_SCHEMA = (400, 415, 422, 501)
"""What servers answer to a `response_format` that they do not know."""
_SHOWN_CHARS = 200


class OpenAIClient:
    """A `Generate` on chat completions. PlannerError when the address is none or the named key is not set."""

    def __init__(self, *, base_url: str, model: str, timeout_s: float, key_name: str | None = None) -> None:
        """`key_name` is the environment variable with the key; None sends `OPENAI_API_KEY` where it is set, so that a
        server of one's own needs none."""
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PlannerError(
                f"the planner's base URL {base_url!r:.100} is no address; write it as http://127.0.0.1:8000/v1"
            )
        key = os.environ.get(key_name or DEFAULT_KEY_NAME)
        if key_name and not key:
            raise PlannerError(f"the planner's key is read from {key_name}, which is not set; set it, or name another")
        self._model = model
        self._where = shown(base_url)
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._timeout_s = timeout_s
        self.takes_schemas = True
        """Whether schemas go into `response_format`; False once the server refused one."""

    def __call__(self, prompt: str, schema: dict[str, Any]) -> tuple[str, Usage]:
        if self.takes_schemas:
            named = {"name": "answer", "schema": without_ordering(schema)}
            answer = self._post(prompt, {"type": "json_schema", "json_schema": named})
            if answer.status_code not in _WITHOUT_SCHEMA:
                return self._read(answer)
            refusal = answer
        text = f"{prompt}\n\nAnswer with one JSON object of this schema and nothing else:\n{json.dumps(schema)}"
        answer = self._post(text, {"type": "json_object"})
        if self.takes_schemas and answer.status_code in _WITHOUT_SCHEMA:
            return self._read(refusal)  # it was not the schema: what the server said first is the reason
        self.takes_schemas = False
        return self._read(answer)

    def _post(self, prompt: str, response_format: dict[str, Any]) -> httpx.Response:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "response_format": response_format,
        }
        try:
            # A redirect could carry the key to another host, so none is followed.
            with httpx.stream(
                "POST", self._url, json=body, headers=self._headers, timeout=self._timeout_s, follow_redirects=False
            ) as response:
                content = bytearray()
                for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > _MAX_ANSWER_BYTES:
                        raise CallError(
                            f"{self._where} answered more than {_MAX_ANSWER_BYTES} bytes", is_transient=False
                        )
                return httpx.Response(response.status_code, content=bytes(content))
        except (httpx.HTTPError, OSError) as error:
            raise CallError(
                f"no answer from {self._where}: {type(error).__name__}: {error}", is_transient=True
            ) from error

    def _read(self, response: httpx.Response) -> tuple[str, Usage]:
        if response.status_code != httpx.codes.OK:
            raise self._refused(response)
        try:
            answer = response.json()
            text = answer["choices"][0]["message"]["content"]
            usage = answer.get("usage") or {}
            tokens = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise CallError(
                f"{self._where} answered no chat completion ({type(error).__name__}); the base URL ends with /v1 on "
                "most servers",
                is_transient=False,
            ) from error
        # Half of a surrogate pair could be written into no file and sent in no request.
        text = text.encode("utf-8", "replace").decode() if isinstance(text, str) else ""
        return _unfenced(text), Usage(num_tokens_in=tokens[0], num_tokens_out=tokens[1])

    def _refused(self, response: httpx.Response) -> CallError:
        status, advice = response.status_code, ""
        if status in (401, 403):
            advice = "; set the key that this server expects, and name its variable"
        elif status == httpx.codes.NOT_FOUND:
            advice = f"; check the base URL and the model {self._model!r:.80}"
        is_transient = status in (408, 409, 429) or status >= 500
        return CallError(f"{self._where} answered {status}: {_said(response)}{advice}", is_transient=is_transient)


def without_ordering(schema: Any) -> Any:
    """A schema without the keyword that Gemini alone knows; properties keep their order."""
    if isinstance(schema, dict):
        return {key: without_ordering(value) for key, value in schema.items() if key != "propertyOrdering"}
    return [without_ordering(each) for each in schema] if isinstance(schema, list) else schema


def _said(response: httpx.Response) -> str:
    """The server's reason, short and printable."""
    text = response.text
    try:
        error = response.json()["error"]
        text = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    return "".join(char if char.isprintable() else " " for char in str(text)[:_SHOWN_CHARS]).strip() or "nothing"


def _unfenced(text: str) -> str:
    """The text within a Markdown fence, where a model put its JSON into one."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text[text.index("\n") + 1 : -3]
    return text
