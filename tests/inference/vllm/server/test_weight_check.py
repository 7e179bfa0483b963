"""Whether servers have a model's weights: what their workers know against the model's files; the servers are fakes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_vllm_clients import client_of
from fake_vllm_server import FakeVLLMServer
from safetensors.torch import save_file

from agent_rl.distributed.checksums import checksum
from agent_rl.errors import ConfigError
from agent_rl.inference.vllm.servers import VLLMServers
from agent_rl.inference.vllm.weight_check import WeightCheck, check_weights

TENSORS = {"embed": torch.tensor([1.0, 2.0]), "norm": torch.tensor([3.0])}
SUMS = {name: checksum(tensor) for name, tensor in TENSORS.items()}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path


@pytest.fixture
def client(server: FakeVLLMServer, other: FakeVLLMServer) -> Iterator[VLLMServers]:
    server.weights = other.weights = [{"checksums": SUMS}] * 2
    with client_of(server, other) as servers:
        yield servers


def look(client: VLLMServers, model: Path | str) -> WeightCheck:
    return check_weights(client, model, name="my model", dtype=torch.float32)


def test_servers_with_the_models_weights_are_named(client: VLLMServers, model: Path, server: FakeVLLMServer) -> None:
    found = look(client, model)
    assert (found.servers, found.label, found.unknown) == (client.addresses, "default", {})
    assert server.address in found.sentence and "my model" in found.sentence
    assert server.calls == [("/collective_rpc", {"method": "agent_rl_weights"})]  # nothing is sent, loaded or paused


@pytest.mark.parametrize(
    ("answer", "clause"),
    [
        ({"checksums": SUMS | {"norm": checksum(torch.tensor([4.0]))}}, "norm float32 .1. .* there, float32 .1. "),
        ({"checksums": {"embed": SUMS["embed"]}}, "norm is missing there"),
        ({"checksums": SUMS | {"more": "x"}}, "more x there, is missing in my model"),
        ({"torn": "a load that was not finished"}, "not whole .a load that was not finished."),
    ],
)
def test_other_weights_on_one_worker_of_one_server_are_refused(
    client: VLLMServers, model: Path, other: FakeVLLMServer, answer: dict[str, Any], clause: str
) -> None:
    other.weights = [{"checksums": SUMS}, answer]
    with pytest.raises(ConfigError, match=f"{other.address} has other weights than my model: .*{clause}"):
        look(client, model)


def test_what_cannot_be_compared_is_said_of_whom_it_is(
    client: VLLMServers, model: Path, server: FakeVLLMServer, other: FakeVLLMServer
) -> None:
    other.weights = None  # plain vLLM, or an earlier version
    found = look(client, model)
    assert list(found.unknown) == [other.address]
    assert "no such method" in found.sentence and f"of {other.address} are my model" in found.sentence
    server.weights = [{"unknown": "m/model.safetensors was changed"}]
    assert set(look(client, model).unknown) == {server.address, other.address}
    only_named = look(client, "nobody/has-this-model")
    assert set(only_named.unknown) == {server.address, other.address}
    assert "neither a folder" in only_named.sentence


def test_servers_with_weights_of_several_names_are_refused(
    client: VLLMServers, model: Path, other: FakeVLLMServer
) -> None:
    other.label = "7/3"
    with pytest.raises(ConfigError, match="several names"):
        look(client, model)
