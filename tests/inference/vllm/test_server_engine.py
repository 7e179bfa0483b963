"""A change of weights as servers see it, and servers that are lost and come back, with servers written by hand."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_weight_servers import WEIGHTS, A, B, FakeServer, FakeServers, sums_of
from safetensors.torch import save_file

from agent_rl.distributed.checksums import checksum
from agent_rl.distributed.weight_verification import WeightSyncError
from agent_rl.errors import EngineError
from agent_rl.inference.base import Receipt
from agent_rl.inference.vllm.server import members
from agent_rl.inference.vllm.server.members import Members
from agent_rl.inference.vllm.server_engine import ServerEngine
from agent_rl.inference.vllm.transports import FileTransport, NCCLTransport

PROMPT = (5, 6, 7)
OPTIONS = {"num_tokens": 2, "temperature": 1.0, "seed": 3}


@pytest.fixture
def servers() -> FakeServers:
    return FakeServers()


@pytest.fixture
def sampler(servers: FakeServers, tmp_path: Path) -> ServerEngine:
    return ServerEngine(servers, FileTransport(tmp_path / "weights"), max_gap=1e-4)


def sync(sampler: ServerEngine, version: int, factor: float = 1.0) -> list[Receipt]:
    """All calls of one change of weights."""
    sampler.pause()
    receipts = sampler.load(iter([(name, factor * tensor) for name, tensor in WEIGHTS.items()]), version)
    sampler.flush()
    sampler.resume(version)
    sampler.probe(PROMPT, **OPTIONS)
    return receipts


def write_adapter(folder: Path, value: float) -> Path:
    folder.mkdir()
    save_file({"lora": torch.tensor([value])}, folder / "adapter_model.safetensors")
    return folder


def sync_adapter(sampler: ServerEngine, folder: Path, version: int) -> list[Receipt]:
    sampler.pause()
    receipts = sampler.load_adapter(write_adapter(folder, float(version)), version)
    sampler.flush()
    sampler.resume(version)
    sampler.probe(PROMPT, **OPTIONS)
    return receipts


# A change of weights


def test_servers_are_updated_in_order_and_end_up_the_same(servers: FakeServers, sampler: ServerEngine) -> None:
    receipts = sync(sampler, 4)
    assert receipts == [Receipt(where=address, checksums=sums_of(WEIGHTS)) for address in (A, B)]
    for server in servers.servers.values():
        order = ["/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume"]
        assert list(dict.fromkeys(server.calls)) == order
        assert (server.label, server.is_paused) == ("4/1", False)
    assert sampler.weight_version == servers.pool.weight_version == 4
    assert servers.pool.weight_label == "4/1"


def test_a_version_that_is_sent_again_has_another_label(servers: FakeServers, sampler: ServerEngine) -> None:
    for version, label in ((4, "4/1"), (5, "5/2"), (4, "4/3")):
        sync(sampler, version)
        assert servers.pool.weight_label == servers.servers[A].label == label


def test_completions_are_held_by_every_process(servers: FakeServers, sampler: ServerEngine) -> None:
    for one in (sampler, ServerEngine(servers, None, max_gap=1e-4)):
        one.hold()
        assert servers.is_held
        one.release()
        assert not servers.is_held


def test_a_flush_is_retried_and_then_fails(
    servers: FakeServers, sampler: ServerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers.servers[B].num_stuck_flushes = 2
    sync(sampler, 1)
    assert servers.servers[B].calls.count("/reset_prefix_cache") == 3
    monkeypatch.setattr("agent_rl.inference.vllm.server_engine._FLUSH_S", 0.0)
    servers.servers[B].num_stuck_flushes = 10**6
    with pytest.raises(EngineError, match="http://b:8000 still holds keys and values"):
        sync(sampler, 2)


@pytest.mark.parametrize("path", ["/pause", "/collective_rpc", "/update_weight_version", "/resume"])
def test_a_server_that_fails_and_lives_ends_the_change(servers: FakeServers, sampler: ServerEngine, path: str) -> None:
    servers.servers[B].failing[path] = "out of memory"
    with pytest.raises(EngineError, match="answered 500: out of memory"):
        sync(sampler, 1)


@pytest.mark.parametrize("path", ["/pause", "/collective_rpc", "/reset_prefix_cache", "/resume"])
def test_a_server_that_is_lost_leaves_the_others_to_it(servers: FakeServers, sampler: ServerEngine, path: str) -> None:
    lost, post = servers.servers[B], servers.servers[B].post

    def die(called: str, json: Any) -> Any:
        if called == path:
            lost.is_there = False
            raise EngineError("ConnectError")
        return post(called, json)

    lost.post = die
    sampler.pause()
    num_there = len(sampler.load(iter(WEIGHTS.items()), 1))
    sampler.flush()
    sampler.resume(1)
    assert [probe.where for probe in sampler.probe(PROMPT, **OPTIONS)] == [A]
    assert num_there == (1 if path in ("/pause", "/collective_rpc") else 2)


def test_with_all_servers_lost_a_weight_sync_fails(servers: FakeServers, sampler: ServerEngine) -> None:
    for server in servers.servers.values():
        server.is_there = False
    with pytest.raises(EngineError, match=r"http://.:8000 failed: ConnectError"):
        sampler.pause()
    with pytest.raises(
        EngineError, match=r"all vLLM servers were lost while their weights were changed; the last: .*b"
    ):
        Members(servers, [A, B]).post("/resume")


def test_a_server_that_was_lost_unseen_is_left_out(servers: FakeServers, sampler: ServerEngine) -> None:
    servers.servers[B].is_there = False
    assert [receipt.where for receipt in sync(sampler, 1)] == [A]


def test_another_process_takes_note(servers: FakeServers, tmp_path: Path) -> None:
    follower = ServerEngine(servers, None, max_gap=1e-4)
    assert follower.load(iter(WEIGHTS.items()), 3) == []
    follower.resume(3)
    assert (servers.pool.weight_version, servers.pool.weight_label, servers.adapter) == (3, "3/1", None)
    assert follower.load_adapter(tmp_path, 4) == []
    follower.resume(4)
    assert (servers.pool.weight_version, servers.pool.weight_label, servers.adapter) == (4, "4/2", "adapter-4")
    assert servers.pool.rejoin(A) is False
    assert servers.servers[A].calls == []


# Adapters


def test_an_adapter_takes_the_place_of_the_last_one(
    servers: FakeServers, sampler: ServerEngine, tmp_path: Path
) -> None:
    servers.servers[B].adapters = {"adapter-1": "of an earlier run", "adapter-0": "of an earlier run"}
    receipts = sync_adapter(sampler, tmp_path / "one", 1)
    assert receipts[1] == Receipt(where=B, checksums={"lora": checksum(torch.tensor([1.0]))})
    assert servers.servers[B].adapters == {"adapter-1": str(tmp_path / "one")}
    sync_adapter(sampler, tmp_path / "two", 2)
    for server in servers.servers.values():
        assert server.adapters == {"adapter-2": str(tmp_path / "two")}
        # Requests that came late, with the old name, must be gone before anything is sampled.
        order = ["/v1/unload_lora_adapter", "/abort_requests", "/update_weight_version", "/resume"]
        assert server.calls[-5:-1] == order
    assert servers.adapter == "adapter-2"


# Servers that come back


def test_a_server_that_comes_back_gets_the_present_weights(servers: FakeServers, sampler: ServerEngine) -> None:
    sync(sampler, 1)
    sync(sampler, 2, factor=3.0)
    servers.servers[B].start()
    assert servers.pool.rejoin(B) is True
    back = servers.servers[B]
    assert torch.equal(back.weights["embed"], torch.tensor([3.0, 6.0]))
    assert (back.label, back.is_paused) == ("2/2", False)
    order = ["/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume"]
    assert back.calls[-6:-1] == order


def test_a_server_that_comes_back_gets_the_present_adapter(
    servers: FakeServers, sampler: ServerEngine, tmp_path: Path
) -> None:
    sync_adapter(sampler, tmp_path / "one", 1)
    servers.servers[A].start()
    assert servers.pool.rejoin(A) is True
    assert servers.servers[A].adapters == {"adapter-1": str(tmp_path / "one")}


def test_a_server_does_not_rejoin_while_weights_change_nor_before_they_were_proven(
    servers: FakeServers, sampler: ServerEngine
) -> None:
    assert servers.pool.rejoin(B) is False
    sampler.pause()
    sampler.load(iter(WEIGHTS.items()), 1)
    sampler.flush()
    sampler.resume(1)
    assert servers.pool.rejoin(B) is False
    sampler.probe(PROMPT, **OPTIONS)
    assert servers.pool.rejoin(B) is True
    sampler.pause()
    assert servers.pool.rejoin(B) is False


def test_weights_change_only_when_a_server_has_rejoined(servers: FakeServers, sampler: ServerEngine) -> None:
    sync(sampler, 1)
    reached, may_go_on = threading.Event(), threading.Event()
    back, post = servers.servers[B], servers.servers[B].post

    def wait(called: str, json: Any) -> Any:
        if called == "/reset_prefix_cache":
            reached.set()
            assert may_go_on.wait(10)
        return post(called, json)

    back.post = wait
    rejoining = threading.Thread(target=servers.pool.rejoin, args=(B,))
    rejoining.start()
    assert reached.wait(10)
    changing = threading.Thread(target=sync, args=(sampler, 2))
    changing.start()
    changing.join(0.2)
    assert servers.servers[A].calls.count("/collective_rpc") == 2
    assert back.label == "1/1"
    may_go_on.set()
    rejoining.join(10), changing.join(10)
    assert (back.label, servers.servers[A].label) == ("2/2", "2/2")


def start_again_before(server: FakeServer, path: str) -> None:
    """A new process takes the server's place unseen, paused or not as the old one, and gets `path`."""
    post = server.post

    def after_start(called: str, json: Any) -> Any:
        if called == path and server.state is not None:
            server.start()
        return post(called, json)

    server.post = after_start


@pytest.mark.parametrize("path", ["/reset_prefix_cache", "/update_weight_version", "/resume"])
def test_a_server_that_starts_again_after_its_receipt_is_not_believed(
    servers: FakeServers, sampler: ServerEngine, path: str
) -> None:
    lost = servers.servers[B]
    start_again_before(lost, path)
    sampler.pause()
    receipts = sampler.load(iter(WEIGHTS.items()), 1)
    sampler.flush()
    sampler.resume(1)
    assert len(receipts) == 2
    assert [probe.where for probe in sampler.probe(PROMPT, **OPTIONS)] == [A]
    assert lost.label == "default"
    del lost.post
    assert servers.pool.rejoin(B) is True
    assert lost.label == servers.pool.weight_label == "1/1"


def test_with_every_server_started_again_the_change_fails(servers: FakeServers, sampler: ServerEngine) -> None:
    for server in servers.servers.values():
        start_again_before(server, "/resume")
    with pytest.raises(WeightSyncError, match="b:8000 no longer has weights 1, which it received: it was started"):
        sync(sampler, 1)


def test_a_server_that_starts_again_as_it_rejoins_stays_out(servers: FakeServers, sampler: ServerEngine) -> None:
    sync(sampler, 1)
    start_again_before(servers.servers[B], "/resume")
    with pytest.raises(WeightSyncError, match="no longer has weights 1"):
        servers.pool.rejoin(B)
    assert servers.servers[B].is_paused


def test_a_server_that_hangs_leaves_within_seconds(
    servers: FakeServers, sampler: ServerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "_HEALTH_S", 0.05)
    hanging, get, may_end = servers.servers[B], servers.get, threading.Event()
    limits: list[float] = []

    def hang(*_: Any) -> Any:
        assert may_end.wait(30)
        raise EngineError("too late")

    def ask_health(address: str, path: str, **options: Any) -> Any:
        if path == "/health":
            limits.append(options["timeout_s"])
            if address == B:
                raise EngineError("ReadTimeout")
        return get(address, path)

    hanging.post, servers.get = hang, ask_health
    with pytest.raises(EngineError, match=r"b:8000 hangs: .* within 0\.05 s"):
        Members(servers, [A, B]).call(lambda address: servers.post(address, "/resume"), may_leave=False)
    remaining = Members(servers, [A, B])
    assert remaining.post("/resume") == {A: {}}
    assert remaining.addresses == (A,)
    assert set(limits) == {0.05}
    may_end.set()


def test_a_slow_server_that_lives_is_waited_for(servers: FakeServers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "_HEALTH_S", 0.01)
    slow, post = servers.servers[B], servers.servers[B].post

    def wait(path: str, json: Any) -> Any:
        time.sleep(0.2)
        return post(path, json)

    slow.post = wait
    assert set(Members(servers, [A, B]).post("/resume")) == {A, B}


@pytest.mark.parametrize(
    ("shift", "sentence"),
    [
        (0.002, r"its probe begins with token 11 of log-prob -2\.998000, and began with 11 of -3\.000000 at"),
        (float("nan"), "nan"),
    ],
)
def test_a_server_that_samples_otherwise_stays_out_and_paused(
    servers: FakeServers, sampler: ServerEngine, shift: float, sentence: str
) -> None:
    sync(sampler, 1)
    servers.servers[B].start()
    servers.servers[B].logprob_shift = shift
    with pytest.raises(WeightSyncError, match=f"b:8000 came back and does not sample from weights 1: .*{sentence}"):
        servers.pool.rejoin(B)
    assert servers.servers[B].is_paused


def test_a_server_that_reads_other_weights_stays_out(
    servers: FakeServers, sampler: ServerEngine, tmp_path: Path
) -> None:
    sync(sampler, 1)
    save_file({"embed": torch.zeros(2)}, tmp_path / "weights/version_1/weights_00000.safetensors")
    with pytest.raises(WeightSyncError, match="b:8000 did not receive weights 1 as they were sent: embed has checksum"):
        servers.pool.rejoin(B)
    assert servers.servers[B].is_paused


def test_a_server_whose_weights_cannot_be_had_again_waits_paused(servers: FakeServers, sampler: ServerEngine) -> None:
    sync(sampler, 1)
    servers.servers[B].start()
    sampler._transport = NCCLTransport()
    assert servers.pool.rejoin(B) is False
    assert servers.servers[B].is_paused
