"""Two hundred episodes at once, most clients bad ones: no turn is lost or doubled, and nothing stays behind."""

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx
import psutil
from fakes import ScriptedPolicy

from agent_rl.endpoint.endpoint import Endpoint
from agent_rl.endpoint.session import EpisodeSession, SessionSpec
from agent_rl.inference.base import Cancel
from agent_rl.records import Completion, SamplingParams, StopReason
from agent_rl.rollout.turns import EpisodeLimits

NUM_TURNS = 3
LONG = 4000


class SlowPolicy(ScriptedPolicy):
    """Replies with "hello" after 20 ms."""

    def __init__(self) -> None:
        super().__init__(lambda _turn, _sampling: "hello", max_context=100_000)

    def generate(self, prompt_ids: Any, sampling: SamplingParams, cancel: Cancel | None = None) -> Completion:
        time.sleep(0.02)
        self.prompts.clear()
        return super().generate(prompt_ids, sampling, cancel)


def conversation(turn: int) -> list[dict[str, str]]:
    rows = [{"role": "user", "content": "x" * LONG}]
    for number in range(turn):
        rows += [{"role": "assistant", "content": "hello"}, {"role": "user", "content": f"more {number}"}]
    return rows


async def post(
    client: httpx.AsyncClient, url: str, turn: int, *, stream: bool = False, retry: int = 0, timeout: float = 60.0
) -> httpx.Response:
    body = {"messages": conversation(turn), "stream": stream}
    return await client.post(url, json=body, headers={"x-stainless-retry-count": str(retry)}, timeout=timeout)


async def plays(client: httpx.AsyncClient, url: str) -> None:
    for turn in range(NUM_TURNS):
        assert (await post(client, url, turn)).status_code == 200


async def streams_slowly(client: httpx.AsyncClient, url: str) -> None:
    for turn in range(NUM_TURNS):
        body = {"messages": conversation(turn), "stream": True, "logprobs": True}
        async with client.stream("POST", url, json=body) as answer:
            text = ""
            async for part in answer.aiter_text(chunk_size=200):
                text += part
                await asyncio.sleep(0.01)
        assert text.rstrip().endswith("[DONE]")


async def leaves_and_comes_again(client: httpx.AsyncClient, url: str) -> None:
    for turn in range(NUM_TURNS):
        for attempt in range(3):
            with suppress(httpx.TransportError):
                await post(client, url, turn, retry=attempt, timeout=0.01 * (attempt + 1))
        assert (await post(client, url, turn, retry=9)).status_code == 200


async def leaves_streams(client: httpx.AsyncClient, url: str) -> None:
    for turn in range(NUM_TURNS):
        async with client.stream("POST", url, json={"messages": conversation(turn), "stream": True}):
            pass
        assert (await post(client, url, turn, stream=True, retry=1)).status_code == 200


async def sends_garbage(client: httpx.AsyncClient, url: str) -> None:
    for turn in range(NUM_TURNS):
        for content in (b"", b"{", b'{"messages": [{"role": "user", "content": 5}]}', b"\xff" * 1000):
            assert (await client.post(url, content=content)).status_code == 400
        assert (await post(client, url, turn)).status_code == 200


async def replays(client: httpx.AsyncClient, url: str) -> None:
    for turn in range(NUM_TURNS):
        answers = await asyncio.gather(post(client, url, turn), *(post(client, url, turn, retry=n) for n in (1, 2, 3)))
        again = await post(client, url, turn, retry=4)
        assert {answer.json()["id"] for answer in answers} == {again.json()["id"]}


async def exceeds_its_budget(client: httpx.AsyncClient, url: str) -> None:
    await plays(client, url)
    for _ in range(3):
        assert (await post(client, url, NUM_TURNS)).status_code == 400


KINDS: list[Callable[[httpx.AsyncClient, str], Awaitable[None]]] = [
    plays,
    streams_slowly,
    leaves_and_comes_again,
    leaves_streams,
    sends_garbage,
    exceeds_its_budget,
]


def open_all(endpoint: Endpoint, number: int) -> list[tuple[str, EpisodeSession]]:
    limits = EpisodeLimits(max_new_tokens=50, max_turns=NUM_TURNS)
    return [endpoint.sessions.open(SessionSpec(seed=n, group=n, temperature=1.0, limits=limits)) for n in range(number)]


async def run_all(urls: list[str]) -> None:
    limits = httpx.Limits(max_connections=400, max_keepalive_connections=400)
    async with httpx.AsyncClient(trust_env=False, timeout=60.0, limits=limits) as client:
        await asyncio.gather(*(KINDS[index % len(KINDS)](client, url) for index, url in enumerate(urls)))


def test_no_turn_is_lost_or_doubled_and_nothing_stays_behind() -> None:
    num_threads, process = threading.active_count(), psutil.Process()
    sizes = []
    with Endpoint(SlowPolicy()) as endpoint:
        for _ in range(3):
            opened = open_all(endpoint, 200)
            asyncio.run(run_all([f"{endpoint.base_url(key)}/chat/completions" for key, _ in opened]))
            for key, _ in opened:
                endpoint.sessions.conclude(key)
            for index, (_, session) in enumerate(opened):
                turns = session.turns
                assert [turn.new_context for turn in turns] == [False] * NUM_TURNS, KINDS[index % len(KINDS)]
                is_over = KINDS[index % len(KINDS)] is exceeds_its_budget
                assert session.stop_reason is (StopReason.MAX_TURNS if is_over else None)
            assert (endpoint.sessions.num_sampling, endpoint.sessions.num_open) == (0, 0)
            del opened, session, turns
            gc.collect()
            sizes.append(process.memory_info().rss / 2**20)
    assert sizes[-1] - sizes[0] < 60, sizes
    deadline = time.monotonic() + 10
    while threading.active_count() > num_threads and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() <= num_threads


def test_requests_that_repeat_each_other_side_by_side_are_one_turn() -> None:
    with Endpoint(SlowPolicy()) as endpoint:
        opened = open_all(endpoint, 30)

        async def run() -> None:
            async with httpx.AsyncClient(trust_env=False, timeout=60.0) as client:
                await asyncio.gather(
                    *(replays(client, f"{endpoint.base_url(key)}/chat/completions") for key, _ in opened)
                )

        asyncio.run(run())
        for key, session in opened:
            endpoint.sessions.conclude(key)
            assert len(session.turns) == NUM_TURNS


def test_a_client_that_never_ends_its_body_keeps_no_other_from_its_reply() -> None:
    with Endpoint(SlowPolicy()) as endpoint:
        ((key, session),) = open_all(endpoint, 1)
        host, port = endpoint.base_url(key).removeprefix("http://").split("/")[0].split(":")
        head = f"POST /s/{key}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n".encode()
        waiting = [socket.create_connection((host, int(port))) for _ in range(100)]
        for connection in waiting:
            connection.sendall(head + b"{")
        answer = httpx.post(
            f"{endpoint.base_url(key)}/chat/completions", json={"messages": conversation(0)}, trust_env=False
        )
        assert answer.status_code == 200
        for connection in waiting:
            connection.close()
    assert session.num_turns == 1
