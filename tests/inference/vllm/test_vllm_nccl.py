"""What can be known without GPUs of sending weights by NCCL: ranks, the order of the calls to servers, failures.

vLLM's own trainer engine runs; the group is made and the broadcast done by hand-written ones.
"""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from agent_rl.distributed.backend import Backend
from agent_rl.distributed.checksums import checksum
from agent_rl.distributed.weight_stream import WeightStream
from agent_rl.errors import ConfigError, EngineError
from agent_rl.inference.vllm.server.members import Members
from agent_rl.inference.vllm.transports import NCCLTransport

pytestmark = pytest.mark.vllm

A, B = "http://127.0.0.1:8301", "http://127.0.0.1:8302"
SIZES = {A: 2, B: 4}


class FakeGroup:
    """Broadcasts to workers that take part in it; `destroy` ends one that waits for others."""

    def __init__(self, world_size: int, addresses: tuple[str, ...]) -> None:
        self.world_size = world_size
        self.sent: dict[str, torch.Tensor] = {}
        self.receiving = {address: threading.Event() for address in addresses}
        self.is_destroyed = threading.Event()

    def destroy(self) -> None:
        self.is_destroyed.set()


class FakeServers:
    def __init__(self) -> None:
        self.addresses = (A, B)
        self.calls: list[tuple[str, str]] = []
        self.init_infos: dict[str, dict[str, Any]] = {}
        self.labels = {A: "default", B: "default"}
        self.failing: str | None = None
        """Path that fails at B."""
        self.absent: str | None = None
        """A server that takes the call and never joins the group."""
        self.group: FakeGroup | None = None
        self.joined: dict[str, threading.Event] = {}
        self.gpus = {A: ["GPU-1", "GPU-2"], B: ["GPU-3", "GPU-4", "GPU-5", "GPU-6"]}
        self.is_over = threading.Event()
        """Ends what would hang for ever."""
        self.received: dict[str, dict[str, str]] = {}
        self.announced: dict[str, Any] = {}

    def reset_group(self) -> int:
        """A port for a new group, without members."""
        self.joined = {address: threading.Event() for address in self.addresses}
        return 8301

    def join(self) -> None:
        """Wait as NCCL does for all ranks, however long that is."""
        for joined in self.joined.values():
            while not joined.wait(0.01):
                if self.is_over.is_set():
                    raise RuntimeError("the test is over")

    def get(self, address: str, path: str, **options: Any) -> Any:
        info = {"weight_version": self.labels[address]}
        return {"/get_world_size": {"world_size": SIZES[address]}, "/weight_info": info}[path]

    def post(self, address: str, path: str, json: Any = None, **options: Any) -> Any:
        self.calls.append((address, path))
        if path == self.failing and address == B:
            raise EngineError(f"{address} failed: ConnectError")
        if path == "/init_weight_transfer_engine":
            self.init_infos[address] = json["init_info"]
            if self.absent != address:
                self.joined[address].set()
            self.join()
        elif path == "/update_weights":
            self.announced = json["update_info"]
            self.group.receiving[address].set()
            if self.failing == path:
                assert self.group.is_destroyed.wait(10)  # B never comes
        elif path == "/collective_rpc":
            if json == {"method": "agent_rl_device"}:
                return {"results": self.gpus[address]}
            assert json == {"method": "agent_rl_received"}
            return {"results": [{name: checksum(t) for name, t in self.group.sent.items()}] * SIZES[address]}
        return {}

    def paths(self, address: str) -> list[str]:
        return [path for called, path in self.calls if called == address]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServers]:
    from vllm.distributed.weight_transfer import nccl_engine

    from agent_rl.inference.vllm import nccl_sender

    servers = FakeServers()

    def open_endpoint(info: Any) -> FakeGroup:
        servers.group = FakeGroup(info.world_size, servers.addresses)
        servers.join()
        return servers.group

    def broadcast(engine: Any, source: Any, meta: Any) -> None:
        """As the real one, it waits until every server takes part, and stops waiting when the group is destroyed."""
        group = engine.model_update_group
        for receiving in group.receiving.values():
            while not receiving.wait(0.01):
                if group.is_destroyed.is_set():
                    return
        # As vLLM packs them: several are held.
        group.sent = dict(engine._checked_iter(source, meta))

    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", open_endpoint)
    monkeypatch.setattr(nccl_engine.NCCLTrainerWeightTransferEngine, "_broadcast", broadcast)
    monkeypatch.setattr(nccl_sender, "free_port", servers.reset_group)
    yield servers
    servers.is_over.set()


def stream_of(factor: float = 1.0) -> WeightStream:
    model = nn.ParameterDict({"a": factor * torch.ones(2, 3), "b": torch.arange(4.0)})
    return WeightStream(Backend("cpu"), model, dtype=torch.bfloat16)


def test_the_gpus_of_all_servers_follow_the_trainers(servers: FakeServers) -> None:
    NCCLTransport(timeout_s=5).send(Members(servers, [A, B]), stream_of(), 1)
    infos = servers.init_infos
    assert {address: info["rank_offset"] for address, info in infos.items()} == {A: 1, B: 3}
    assert {info["world_size"] for info in infos.values()} == {servers.group.world_size} == {7}
    assert {info["master_address"] for info in infos.values()} == {"127.0.0.1"}
    assert {info["master_port"] for info in infos.values()} == {8301}
    assert all(info["packed"] for info in infos.values())
    assert {info["packed_buffer_size_bytes"] for info in infos.values()} == {128 * 2**20}


def test_a_server_on_the_trainers_gpu_is_named_before_a_group_is_made(servers: FakeServers) -> None:
    from agent_rl.inference.vllm.nccl_sender import check_other_gpus

    both = Members(servers, [A, B])
    check_other_gpus(both, "GPU-0")
    with pytest.raises(ConfigError, match=r"8302 is on the GPU that process 0 trains on \(GPU-4\).*=files"):
        check_other_gpus(both, "GPU-4")
    assert servers.init_infos == {}


def test_names_are_announced_as_they_are_sent_and_receipts_come_back(servers: FakeServers) -> None:
    stream = stream_of()
    receipts = NCCLTransport(timeout_s=5).send(Members(servers, [A, B]), stream, 1)
    announced = {"names": ["a", "b"], "dtype_names": ["bfloat16"] * 2, "shapes": [[2, 3], [4]]}
    assert servers.announced == announced
    assert [(receipt.where, receipt.checksums) for receipt in receipts] == [
        (A, stream.checksums),
        (B, stream.checksums),
    ]
    assert servers.paths(A) == [
        "/init_weight_transfer_engine",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/collective_rpc",
    ]


def test_the_group_is_reused_and_recreated_for_other_servers(servers: FakeServers) -> None:
    transport = NCCLTransport(timeout_s=5)
    both = Members(servers, [A, B])

    def send(members: Members, factor: float) -> FakeGroup:
        transport.send(members, stream_of(factor), 1)
        assert float(servers.group.sent["a"][0, 0]) == factor
        return servers.group

    first = send(both, 1.0)
    servers.labels = {A: "1", B: "1"}
    first.sent.clear()
    assert send(both, 2.0) is first
    servers.labels = {A: "2", B: "default"}  # started again
    second = send(both, 3.0)
    assert second is not first
    assert first.is_destroyed.is_set()
    assert servers.paths(A).count("/shutdown_weight_transfer_engine") == 1
    servers.labels, servers.addresses = {A: "3", B: "3"}, (A,)
    third = send(Members(servers, [A]), 4.0)
    assert third is not second
    assert third.world_size == 3


@pytest.mark.timeout(30)
def test_a_server_that_fails_ends_the_broadcast_that_waits_for_it(servers: FakeServers) -> None:
    transport = NCCLTransport(timeout_s=5)
    servers.failing = "/update_weights"
    stream = stream_of()
    with pytest.raises(EngineError, match="8302 failed: ConnectError"):
        transport.send(Members(servers, [A, B]), stream, 1)
    assert servers.group.is_destroyed.is_set()
    assert "/finish_weight_update" not in servers.paths(A)
    stream.drain()  # as the caller does
    servers.failing = None
    assert len(transport.send(Members(servers, [A, B]), stream_of(), 2)) == 2


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "path", ["/init_weight_transfer_engine", "/start_weight_update", "/finish_weight_update", "/collective_rpc"]
)
def test_every_server_must_take_part(servers: FakeServers, path: str) -> None:
    transport = NCCLTransport(timeout_s=60)
    servers.failing = path
    with pytest.raises(EngineError, match="8302 failed"):
        transport.send(Members(servers, [A, B]), stream_of(), 1)
    assert path == "/init_weight_transfer_engine" or servers.group.is_destroyed.is_set()
    servers.failing = None
    assert len(transport.send(Members(servers, [A, B]), stream_of(), 2)) == 2


@pytest.mark.timeout(30)
def test_a_server_that_never_joins_is_waited_for_only_so_long(servers: FakeServers) -> None:
    servers.absent = B
    sentence = "NCCL group of 7 GPUs, of this process and .*8301, .*8302, could not be made: there is none after 0.2 s"
    with pytest.raises(EngineError, match=sentence):
        NCCLTransport(timeout_s=0.2).send(Members(servers, [A, B]), stream_of(), 1)


def test_what_is_packed_outlives_the_streams_memory() -> None:
    from agent_rl.inference.vllm.nccl_sender import StreamSource

    def one_buffer() -> Iterator[tuple[str, torch.Tensor]]:
        buffer = torch.zeros(1)
        for name in ("a", "b"):
            buffer += 1
            yield name, buffer

    source = StreamSource()
    source.stream = one_buffer()
    assert {name: tensor.item() for name, tensor in source} == {"a": 1.0, "b": 2.0}


@pytest.mark.timeout(30)
def test_the_group_is_left_after_any_failure(servers: FakeServers) -> None:
    transport = NCCLTransport(timeout_s=5)
    stream = stream_of()
    stream.kinds.reverse()  # the receivers would get another order
    with pytest.raises(ValueError, match="disagrees with iteration"):
        transport.send(Members(servers, [A, B]), stream, 1)
    assert servers.group.is_destroyed.is_set()
    assert "/shutdown_weight_transfer_engine" in servers.paths(A)
