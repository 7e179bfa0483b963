"""What the agents of all frameworks share: their episodes as JSON on standard input, an environment over HTTP.

Runs in an interpreter without the library.
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx

AT_ONCE = 16


@dataclass
class Episode:
    base_url: str
    key: str
    env_url: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    temperature: float
    stream: bool
    is_over: bool = False

    async def step(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Act with an assistant's message; what the environment answers."""
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
            answer = (await client.post(self.env_url, json=message)).json()
        self.is_over = answer["terminated"]
        return answer["rows"]


def main(play: Callable[[Episode], Awaitable[None]]) -> None:
    """Play all episodes and print how they ended, by the name of the error."""
    episodes = [Episode(**row) for row in json.load(sys.stdin)]

    async def run() -> Counter[str]:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(episode: Episode) -> str:
            async with gate:
                try:
                    await play(episode)
                except Exception as error:
                    return f"{type(error).__name__}: {error}"[:300]
                return "played"

        return Counter(await asyncio.gather(*map(one, episodes)))

    print(json.dumps(asyncio.run(run())))
