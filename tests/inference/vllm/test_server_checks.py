"""Setting up servers for a run, and checking them, against a server without a model."""

import threading

import pytest
from fake_vllm_clients import PROMPT, SAMPLING, client_of
from fake_vllm_server import FakeVLLMServer

from agent_rl.errors import ConfigError, EngineError
from agent_rl.inference.vllm import server_pool
from agent_rl.inference.vllm.server.settings import ServerSettings, name_of

NEEDED = {"max_context": 2048, "dtype": "float32", "lora_rank": 0, "weight_transfer": "files"}


def test_a_post_to_all_goes_to_those_that_are_up_and_a_failure_names_the_server(server, other):
    with client_of(server, other) as client:
        assert set(client.post_all("/resume")) == {server.address, other.address}
        other.without["/collective_rpc"] = 500
        with pytest.raises(EngineError, match=f"POST {other.address}/collective_rpc was answered 500: not here"):
            client.post_all("/collective_rpc", {"method": "x"})
        assert server.calls[-1] == ("/collective_rpc", {"method": "x"})
        other.stop()
        with pytest.raises(EngineError, match=f"POST {other.address}/resume failed: ConnectError"):
            client.post_all("/resume")
        assert set(client.post_all("/resume")) == {server.address}
        assert client.get(server.address, "/weight_info") == {"weight_version": "default"}


def test_a_probe_goes_to_the_server_it_names_and_reports_what_was_cached(server, other):
    other.label, other.num_cached = "9/4", 128
    with client_of(server, other) as client:
        probe = client.probe(other.address, PROMPT, num_tokens=2, temperature=0.0, seed=5)
        assert (probe.where, probe.version, probe.num_cached) == (other.address, 9, 128)
        assert (probe.token_ids, probe.logprobs) == ((5, 6), (-1.0, -1.01))
        assert not server.bodies
        other.num_cached = None
        with pytest.raises(EngineError, match="how many prompt tokens came from its cache"):
            client.probe(other.address, PROMPT, num_tokens=2, temperature=0.0, seed=5)
        other.behave = lambda body: (200, other.sample(body, limit=1))
        with pytest.raises(EngineError, match="sampled 1 of 2 probe tokens"):
            client.probe(other.address, PROMPT, num_tokens=2, temperature=0.0, seed=5)


def test_servers_that_can_serve_are_up_and_one_left_paused_by_a_dead_run_is_resumed(server, other):
    other.is_paused = True
    with client_of(server, other) as client:
        client.wait_until_up(**NEEDED | {"max_context": 4096})
    assert (server.calls, other.calls, other.is_paused) == ([], [("/resume", {})], False)


def raw_logprobs(body):
    """Of the whole vocabulary, whatever is sampled from."""
    answer = FakeVLLMServer().sample(body)
    answer["choices"][0]["logprobs"]["content"][0]["logprob"] = -0.01
    return (200, answer)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"without": {"/is_paused": 404}}, "not a server that `agent-rl serve-vllm` started"),
        ({"without": {"/inference/v1/generate": 403}}, "not a server that `agent-rl serve-vllm` started"),
        ({"window": 2047}, "window of 2047 tokens, policy.max_context is 2048; .* --max-context 2048"),
        ({"names": ["policy"]}, "serve-vllm` started .*what it was started with"),
        ({"vocab_size": 0}, "not a server that `agent-rl serve-vllm` started"),
        ({"behave": raw_logprobs}, "processed_logprobs"),
        ({"behave": lambda body: (200, b"[]")}, "not a completion"),
    ],
)
def test_a_server_that_cannot_serve_this_run_is_a_mistake_in_the_config(server, change, expected):
    for name, value in change.items():
        setattr(server, name, value)
    with client_of(server) as client, pytest.raises(ConfigError, match=f"vllm.servers: .*{expected}") as caught:
        client.wait_until_up(**NEEDED)
    assert server.address in str(caught.value)


def test_a_server_that_cannot_be_reached_is_a_mistake_in_the_config(server):
    expected = r"http://127.0.0.1:9 did not answer within 0.5 s.*serve-vllm"
    with (
        client_of(server, "http://127.0.0.1:9", start_timeout_s=0.5) as client,
        pytest.raises(ConfigError, match=expected),
    ):
        client.wait_until_up(**NEEDED)


def test_a_server_that_is_still_starting_is_waited_for_and_then_belongs_to_all(server, other, monkeypatch):
    """Also where the watcher of its health looks again later than the thread that waits for it."""
    monkeypatch.setattr(server_pool, "_DOWN_CHECK_S", 2.0)
    server.stop()
    threading.Timer(0.3, server.start).start()
    with client_of(server, other) as client:
        client.wait_until_up(**NEEDED)
        assert len(client.post_all("/resume")) == 2
        assert client.complete(PROMPT, SAMPLING).token_ids == (41, 42, 43)


@pytest.mark.parametrize(
    ("needed", "expected"),
    [
        ({"dtype": "bfloat16"}, "samples in float32, this run expects bfloat16; .* --dtype bfloat16"),
        ({"head_dtype": "bfloat16"}, "computes its output layer in float32, .* with --head-dtype bfloat16"),
        ({"lora_rank": 17}, "serves adapters up to rank 16, model.lora.rank is 17; .* --lora-rank 17"),
        ({"weight_transfer": "nccl"}, "takes weights as files, this run sends them by nccl .* --weight-transfer nccl"),
    ],
)
def test_a_server_with_other_settings_is_refused_with_the_flag_it_needs(server, needed, expected):
    with client_of(server) as client, pytest.raises(ConfigError, match=f"{server.address} {expected}"):
        client.wait_until_up(**NEEDED | needed)


def test_a_server_may_offer_more_than_a_run_needs(server):
    settings = ServerSettings(dtype="float32", head_dtype="float32", lora_rank=16, weight_transfer="nccl")
    server.names = ["policy", name_of(settings), "adapter-3"]
    with client_of(server) as client:
        for lora_rank, weight_transfer in [(0, "files"), (16, "nccl")]:
            client.wait_until_up(**NEEDED | {"lora_rank": lora_rank, "weight_transfer": weight_transfer})


def test_a_server_without_adapters_is_refused(server):
    server.names = ["policy", "settings/dtype=float32/head_dtype=float32/lora_rank=0/weight_transfer=files"]
    with client_of(server) as client, pytest.raises(ConfigError, match=r"serves no adapters \(rank 0\), .* 1`"):
        client.wait_until_up(**NEEDED | {"lora_rank": 1})
