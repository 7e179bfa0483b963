"""The client of `agent-rl serve-trainer`: groups in, updates out, and records of episodes.

Every failure is a FinetuneError with one sentence. Not here: completions (`transport.py`).
"""

import asyncio
import time
from typing import Any
from urllib.parse import quote

import httpx

from nat_agent_rl.errors import FinetuneError, one_line
from nat_agent_rl.transport import LIMITS, retry_after_s

Record = dict[str, Any]


class TrainerServer:
    """One running server. `timeout_s` is for one answer, and for completions to end before an update."""

    def __init__(self, server: str, key: str, timeout_s: float) -> None:
        self.address = server.rstrip("/")
        self.timeout_s = timeout_s
        self._client = httpx.AsyncClient(
            base_url=self.address,
            headers={"Authorization": f"Bearer {key}"},
            timeout=timeout_s,
            transport=httpx.AsyncHTTPTransport(limits=LIMITS),
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def health(self) -> Record:
        """`status`, `model`, `weight_version`, `updates`, `in_flight`. FinetuneError too where the key is refused."""
        health = self._body(await self._send("GET", "/health"), "/health")
        if "updates" not in health:  # what is told to those without the key
            raise self._refused()
        return health

    async def num_turns(self, episode: str) -> int:
        """Turns that the server recorded of an episode; 0 of one that it does not know."""
        path = f"/v1/episodes/{quote(episode)}"
        response = await self._send("GET", path)
        return 0 if response.status_code == httpx.codes.NOT_FOUND else len(self._body(response, path)["turns"])

    async def forget(self, episode: str) -> None:
        """Conclude an episode that nothing is learned from. One that the server does not know is as good."""
        path = f"/v1/episodes/{quote(episode)}"
        response = await self._send("DELETE", path)
        if response.status_code != httpx.codes.NOT_FOUND:
            self._body(response, path)

    async def submit(self, groups: list[Record], target_functions: list[str] | None) -> int:
        """Start an update with the groups of an epoch; its number. Waits for completions that are in flight."""
        give_up = time.monotonic() + self.timeout_s
        body = {"groups": groups, "target_functions": target_functions}
        while True:
            response = await self._send("POST", "/v1/groups", json=body)
            code = _error_of(response).get("code")
            is_busy = response.status_code == httpx.codes.TOO_MANY_REQUESTS or code == "completions_in_flight"
            if not is_busy or time.monotonic() > give_up:
                break
            await asyncio.sleep(retry_after_s(response))
        if code == "training_finished":
            raise FinetuneError(
                f"the trainer at {self.address} has made all its updates and takes no more groups; "
                "start it again with a larger train.steps, or run fewer epochs"
            )
        return int(self._body(response, "/v1/groups")["update"])

    async def update(self, number: int) -> Record:
        """`update`, `state` (running, completed, failed), `weight_version`, `metrics`, `error`."""
        path = f"/v1/updates/{number}"
        return self._body(await self._send("GET", path), path)

    async def _send(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        try:
            response = await self._client.request(method, path, **kwargs)
        except httpx.TransportError as error:
            raise FinetuneError(
                f"the trainer at {self.address} does not answer {method} {path} ({one_line(error)}); see whether "
                "`agent-rl serve-trainer` still runs and what it printed, start it again, then repeat the command"
            ) from error
        if response.status_code == httpx.codes.UNAUTHORIZED:
            raise self._refused()
        return response

    def _refused(self) -> FinetuneError:
        return FinetuneError(
            f"the trainer at {self.address} refuses the key; set the variable that api_key_env names to the key that "
            "`agent-rl serve-trainer` was started with"
        )

    def _body(self, response: httpx.Response, path: str) -> Record:
        if response.is_success:
            return response.json() if response.content else {}
        told = one_line(_error_of(response).get("message") or response.text or "no reason given")
        raise FinetuneError(
            f"the trainer at {self.address} answered {path} with HTTP {response.status_code}: {told}; "
            "fix that, then repeat the command"
        )


def _error_of(response: httpx.Response) -> Record:
    """The `error` of an answer that is none of success; empty where there is none that can be read."""
    try:
        error = response.json().get("error") if not response.is_success else None
    except (ValueError, AttributeError):
        return {}
    return error if isinstance(error, dict) else {}
