"""Completions through an external router, everything else to each server, with servers and a router without a model."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from fake_router import FakeRouter, serving
from fake_vllm_clients import PROMPT, SAMPLING, client_of
from fake_vllm_server import FakeVLLMServer
from pydantic import ValidationError
from waiting import free_port, wait_for

from agent_rl.config.vllm import VLLMConfig
from agent_rl.errors import ConfigError, EngineError
from agent_rl.inference.vllm import router as router_module
from agent_rl.inference.vllm.server_answers import RequestRefusedError
from agent_rl.inference.vllm.servers import MAX_ATTEMPTS

NEEDED = {"max_context": 64, "dtype": "float32", "lora_rank": 0, "weight_transfer": "files"}
GENERATE = "/inference/v1/generate"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "_FIRST_WAIT_S", 0.05)


@pytest.fixture
def router(server: FakeVLLMServer, other: FakeVLLMServer) -> FakeRouter:
    return FakeRouter(server, other)


@pytest.fixture
def address(router: FakeRouter) -> Iterator[str]:
    with serving(router) as address:
        yield address


def of_session(session: int | None):
    return replace(SAMPLING, session=session)


def test_a_conversation_stays_where_the_router_sends_it_and_its_name_is_in_the_header(server, other, router, address):
    with client_of(server, other, router=address) as client:
        for session in (7, 8, 7, 8, 7):
            assert client.complete(PROMPT, of_session(session)).token_ids == (41, 42, 43)
    assert [headers["x-session-id"] for _, headers in router.passed] == ["7", "8", "7", "8", "7"]
    assert {path for path, _ in router.passed} == {GENERATE}
    assert [len(server.bodies), len(other.bodies)] == [3, 2]


def test_without_a_session_or_without_a_router_there_is_no_header(server, router, address):
    with client_of(server, router=address) as client:
        client.complete(PROMPT, of_session(None))
    with client_of(server) as client:
        client.complete(PROMPT, of_session(7))
    assert ["x-session-id" in headers for _, headers in router.passed] == [False]
    assert server.bodies[0] == server.bodies[1]


def test_everything_but_completions_goes_to_each_server(server, other, router, address):
    with client_of(server, other, router=address) as client:
        client.wait_until_up(**NEEDED)
        assert len(router.passed) == 1  # the trial
        client.post_all("/pause")
        client.probe(other.address, PROMPT, num_tokens=2, temperature=1.0, seed=5)
        client.get(server.address, "/weight_info")
    assert (server.pauses, other.pauses) == (1, 1)
    assert len(router.passed) == 1
    assert other.bodies[-1]["sampling_params"]["seed"] == 5


def test_a_key_is_sent_to_the_router_too(server, router, address, monkeypatch):
    monkeypatch.setenv("AGENT_RL_VLLM_KEY", "k" * 16)
    with client_of(server, router=address) as client:
        client.complete(PROMPT, SAMPLING)
    assert router.passed[0][1]["authorization"] == "Bearer " + "k" * 16


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_completion_that_is_lost_behind_the_router_is_sent_again_with_its_seed(server, router, address, status):
    router.failing = [status, status]
    with client_of(server, router=address) as client:
        assert client.complete(PROMPT, of_session(7)).token_ids == (41, 42, 43)
    assert len(router.passed) == 3
    assert server.counts["served"] + router.behind[1].counts["served"] == 1


def test_a_completion_that_is_always_lost_fails_after_as_many_attempts_as_with_servers(server, router, address):
    router.failing = [502] * 50
    with client_of(server, router=address) as client, pytest.raises(EngineError, match="no upstream"):
        client.complete(PROMPT, SAMPLING)
    assert len(router.passed) == MAX_ATTEMPTS


def test_a_refused_prompt_is_not_sent_again(server, other, router, address):
    with client_of(server, other, router=address) as client, pytest.raises(RequestRefusedError):
        client.complete((5000,), SAMPLING)
    assert len(router.passed) == 1


def test_completions_wait_for_a_router_that_is_down_and_go_on_when_it_is_back(server, router):
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with client_of(server, router=address) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.complete, PROMPT, SAMPLING)
        wait_for(lambda: not client._router.is_up)
        assert client.get(server.address, "/is_paused") == {"is_paused": False}  # weights can be sent meanwhile
        assert not waiting.done() and not server.bodies
        with serving(router, port=port):
            assert waiting.result(timeout=9.0).token_ids == (41, 42, 43)


def test_a_router_that_stays_away_is_named_with_the_limit(server):
    address = f"http://127.0.0.1:{free_port()}"
    with client_of(server, router=address, start_timeout_s=0.5) as client, pytest.raises(EngineError) as caught:
        client.complete(PROMPT, SAMPLING)
    assert address in str(caught.value) and "0.5 s (vllm.start_timeout_s)" in str(caught.value)


def test_without_any_server_nothing_is_sent_to_the_router(server, router, address):
    server.stop()
    with client_of(server, router=address, start_timeout_s=1.0) as client:
        with pytest.raises(EngineError):
            client.get(server.address, "/health")
        with pytest.raises(EngineError, match=server.address):
            client.complete(PROMPT, SAMPLING)
    assert router.passed == []


def test_a_router_without_a_page_of_health_counts_as_up(server, router, address):
    router.health = 404
    router.failing = [502]
    with client_of(server, router=address) as client:
        assert client.complete(PROMPT, SAMPLING).token_ids == (41, 42, 43)


@pytest.mark.parametrize("label", ["default", "4/8", "5/3"])
def test_old_weights_behind_the_router_are_not_believed(server, other, router, address, label):
    """The router sends the conversation to the server with them until it was brought up to date."""
    server.label, other.label = label, "4/9"
    brought = []

    def rejoin(at):
        brought.append(at)
        client.post(at, "/update_weight_version", {"new_version": "4/9"})
        return True

    with client_of(server, other, router=address) as client:
        client.pool.weight_label, client.pool.rejoin = "4/9", rejoin
        assert client.complete(PROMPT, of_session(7)).weight_version == 4
        wait_for(lambda: all(each.is_up for each in client.pool.servers.values()))
    assert brought == [server.address]
    assert router.sessions["7"] is server


def test_a_router_that_does_not_pass_the_route_on_is_refused_at_the_start(server, router, address):
    server.without[GENERATE] = 404
    with client_of(server, router=address, start_timeout_s=0.5) as client:
        with pytest.raises(ConfigError, match=r"vllm\.servers"):
            client.wait_until_up(**NEEDED)
        server.without = {}
        router.failing = [404] * 50
        with pytest.raises(ConfigError) as caught:
            client.wait_until_up(**NEEDED)
    assert "vllm.router" in str(caught.value) and address in str(caught.value) and GENERATE in str(caught.value)


def test_the_router_is_a_key_of_runs_with_servers():
    assert VLLMConfig(servers=("http://a:1",), router="http://r:80/").router == "http://r:80"
    for wrong in ({"router": "http://r:80"}, {"servers": ("http://a:1",), "router": "r:80"}):
        with pytest.raises(ValidationError, match="router"):
            VLLMConfig(**wrong)
