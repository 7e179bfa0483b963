"""Parts of the plug-in without the command: clients, names and seeds, statistics, the example's calculator."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from conftest import KEY, free_port
from fake_trainer import Server, serve
from math_example import last_number, text_of, value_of
from nat.builder.context import Context
from nat_agent_rl.episodes import EPISODE, Episode, seed_of
from nat_agent_rl.errors import FinetuneError
from nat_agent_rl.held_out import HeldOut, mcnemar_p, paired_change, paired_interval, wilson_interval
from nat_agent_rl.llm import chat_model

from nat_agent_rl import episode_headers, policy_client

ASKED = [{"role": "user", "content": "What is 3 * 4?"}]
BODY = {"model": "policy", "messages": ASKED, "logprobs": True}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("AGENT_RL_KEY", KEY)
    with serve(free_port(), KEY, {"p_right": 1.0}) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def url_of(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def trainer_of(server: Server) -> Any:
    return server.RequestHandlerClass.trainer


def recorded(server: Server, episode: Episode) -> list[list[int]]:
    return [turn["token_ids"] for turn in trainer_of(server).episodes[episode.id]["turns"]]


def played(coroutine: Any, **fields: Any) -> Episode:
    """Run it inside of an episode, which is returned."""
    episode = Episode(id="run/0/1/2", seed=5, **fields)

    async def inside() -> None:
        EPISODE.set(episode)
        await coroutine

    asyncio.run(inside())
    return episode


def test_headers_name_the_episode_and_outside_of_a_training_the_run() -> None:
    with Context.scope(workflow_run_id="run-1", function_path_stack=["<workflow>", "sub/ä"]):
        assert episode_headers() == {"X-Agent-RL-Episode": "run-1", "X-Agent-RL-Function": "<workflow>/sub%2F%C3%A4"}
    token = EPISODE.set(Episode(id="a/0/1/2", seed=5, temperature=0.0))
    named = {"X-Agent-RL-Episode": "a/0/1/2", "X-Agent-RL-Seed": "5", "X-Agent-RL-Temperature": "0.0"}
    assert episode_headers() == named
    EPISODE.reset(token)
    assert episode_headers() == {}


def test_seeds_depend_on_all_their_parts_and_on_nothing_else() -> None:
    assert seed_of(0, "3", "1", "2") == seed_of("0", 3, 1, 2)
    assert len({seed_of(0, 1), seed_of(1, 0), seed_of(0, 11), seed_of("01")}) == 4
    assert all(0 <= seed_of(number) < 2**63 for number in range(100))


def test_a_plain_client_keeps_the_ids_and_waits_while_weights_change(server: Server) -> None:
    trainer_of(server).knobs["busy"] = 3

    async def ask() -> None:
        async with policy_client(url_of(server)) as client:
            for _ in range(2):
                assert (await client.post("/v1/chat/completions", json=BODY)).status_code == 200

    episode = played(ask())
    assert episode.num_answers == 2
    assert episode.token_ids == recorded(server, episode) != []


def test_a_plain_client_gives_up_waiting_after_its_patience(server: Server) -> None:
    trainer_of(server).knobs["busy"] = 1000

    async def ask() -> None:
        async with policy_client(url_of(server), patience_s=0.2) as client:
            assert (await client.post("/v1/chat/completions", json=BODY)).status_code == 429

    assert played(ask()).endpoint_error == "HTTP 429"


@pytest.mark.parametrize("way", ["ainvoke", "astream", "invoke in a thread", "stream in a thread"])
def test_langchain_keeps_the_ids_of_every_way_to_call(server: Server, way: str) -> None:
    async def ask() -> None:
        made = chat_model(
            url_of(server), model="policy", api_key_env="AGENT_RL_KEY", max_tokens=None, request_timeout_s=10
        )
        async with made as model:
            if way == "ainvoke":
                text = (await model.ainvoke(ASKED)).content
            elif way == "astream":
                text = "".join([chunk.content async for chunk in model.astream(ASKED)])
            elif way == "invoke in a thread":
                text = (await asyncio.to_thread(model.invoke, ASKED)).content
            else:
                text = "".join(chunk.content for chunk in await asyncio.to_thread(lambda: list(model.stream(ASKED))))
            assert text == "Answer: 12"

    episode = played(ask())
    assert (episode.num_answers, episode.endpoint_error) == (1, None)
    assert episode.token_ids == recorded(server, episode) != []


def test_a_concluded_episode_is_not_asked_again(server: Server) -> None:
    trainer_of(server).concluded.add("run/0/1/2")

    async def ask() -> None:
        made = chat_model(
            url_of(server), model="policy", api_key_env="AGENT_RL_KEY", max_tokens=8, request_timeout_s=10
        )
        async with made as model:
            with pytest.raises(Exception, match="is concluded"):
                await model.ainvoke(ASKED)

    episode = played(ask())
    assert (trainer_of(server).num_chats, episode.num_answers, episode.endpoint_error) == (1, 0, None)


def test_a_lost_connection_is_noted_until_the_next_answer(server: Server) -> None:
    trainer_of(server).knobs["break_after"] = 0
    noted = []

    async def ask() -> None:
        async with policy_client(url_of(server)) as client:
            with pytest.raises(httpx.TransportError):
                await client.post("/v1/chat/completions", json=BODY)
            noted.append(EPISODE.get().endpoint_error)
            await client.post("/v1/chat/completions", json=BODY)

    assert played(ask()).endpoint_error is None
    assert noted[0].startswith("RemoteProtocolError")


def test_no_request_without_a_key(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_RL_KEY")

    async def ask() -> None:
        async with policy_client(url_of(server)) as client:
            with pytest.raises(FinetuneError, match="AGENT_RL_KEY"):
                await client.post("/v1/chat/completions", json=BODY)

    played(ask())
    assert trainer_of(server).num_chats == 0


def test_intervals_are_those_of_the_papers() -> None:
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, 17:857
    assert (wilson_interval(0, 0), wilson_interval(0, 9)[0], wilson_interval(9, 9)[1]) == ((0.0, 1.0), 0.0, 1.0)
    assert paired_interval(36, 2, 12, 0) == pytest.approx((-0.340, -0.057), abs=5e-4)  # Newcombe 1998, 17:2635
    assert (mcnemar_p(6, 0), mcnemar_p(0, 6), mcnemar_p(0, 0), mcnemar_p(3, 3)) == (0.03125, 0.03125, 1.0, 1.0)


def test_a_change_counts_the_rows_that_both_sides_scored() -> None:
    def held_out(**solved: bool | None) -> HeldOut:
        return HeldOut(solved=solved, reward=0.0, num_failed=0, first_error=None, weight_version=0)

    change = paired_change(held_out(a=False, b=True, c=True, d=None), held_out(a=True, b=True, c=False, d=True))
    assert (change["rows"], change["gained"], change["lost"], change["change"]) == (3, 1, 1, 0.0)
    assert paired_change(held_out(a=None), held_out(a=True)) == {}
    assert held_out(a=True, b=False, c=None).text.startswith("50.0 % [9.5, 90.5] of 2 rows")


def test_the_example_calculates_exactly_and_compares_by_value() -> None:
    assert [text_of(value_of(text)) for text in ("0.1 + 0.2", "15% of 80", "-(7 - 9) * 6", "1/3")] == [
        "0.3",
        "12",
        "12",
        "0.3333333333",
    ]
    for text in ("", "2 ** 9", "os.getcwd()", "(" * 95 + "1" + ")" * 96, "1 +", "True"):
        with pytest.raises(ValueError, match="cannot read"):
            value_of(text)
    assert last_number("7 of 9. Answer: 1,200.50 dollars") == last_number("Answer: 3\nanswer: 1200.5")
    assert last_number("no number") is None
