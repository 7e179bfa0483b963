"""Weights on their way to servers that are written by hand: files, and what their workers answer.

What there is to know of NCCL without GPUs is in `test_vllm_nccl.py`.
"""

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_weight_servers import WEIGHTS, A, B, FakeServers, sums_of
from safetensors.torch import load_file

from agent_rl.distributed.weight_verification import WeightSyncError
from agent_rl.errors import UserError
from agent_rl.inference.base import Receipt
from agent_rl.inference.vllm import transports
from agent_rl.inference.vllm.server.members import Members
from agent_rl.inference.vllm.transports import FileTransport, NCCLTransport, receipts_of


@pytest.fixture
def servers() -> FakeServers:
    """Paused."""
    servers = FakeServers()
    servers.post_all("/pause")
    return servers


def test_files_hold_every_tensor_once_within_the_size_limit(
    tmp_path: Path, servers: FakeServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "FILE_BYTES", 32)
    weights = {f"w{i}": torch.full((size,), float(i)) for i, size in enumerate([4, 4, 1, 20, 2])}
    transport = FileTransport(tmp_path)
    receipts = transport.send(Members(servers, [A, B]), iter(weights.items()), 7)
    files = sorted((tmp_path / "version_7").iterdir())
    assert [sorted(load_file(file)) for file in files] == [["w0", "w1"], ["w2", "w3"], ["w4"]]
    assert receipts == [Receipt(where=address, checksums=sums_of(weights)) for address in (A, B)]
    assert all(torch.equal(servers.servers[B].weights[name], tensor) for name, tensor in weights.items())


def test_a_tensor_is_copied_before_the_next_is_requested(tmp_path: Path, servers: FakeServers) -> None:
    def stream() -> Any:
        buffer = torch.zeros(2)
        for i in range(3):
            buffer.fill_(i)
            yield f"w{i}", buffer
        table = torch.arange(4.0).view(2, 2)
        yield "turned", table.T

    FileTransport(tmp_path).send(Members(servers, [A]), stream(), 1)
    arrived = servers.servers[A].weights
    assert [arrived[f"w{i}"].tolist() for i in range(3)] == [[0, 0], [1, 1], [2, 2]]
    assert arrived["turned"].tolist() == [[0, 2], [1, 3]]


def test_only_the_last_version_is_stored(tmp_path: Path, servers: FakeServers) -> None:
    (tmp_path / "version_90").mkdir()
    (tmp_path / ".version_91").mkdir()
    (tmp_path / "version_2").mkdir()
    transport = FileTransport(tmp_path)
    for version in (1, 2, 3):
        transport.send(Members(servers, [A]), iter(WEIGHTS.items()), version)
        assert [path.name for path in tmp_path.iterdir()] == [f"version_{version}"]


def test_what_others_wrote_is_left_alone(tmp_path: Path, servers: FakeServers, monkeypatch: pytest.MonkeyPatch) -> None:
    others = ["version_control", "version_1_backup", "versions", "my_version_2"]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / "version_8").write_text("a file")
    transport = FileTransport(tmp_path)
    transport.send(Members(servers, [A]), iter(WEIGHTS.items()), 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, "version_8", "version_1"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refuse)  # of shutil.rmtree
        transport.send(Members(servers, [A]), iter(WEIGHTS.items()), 2)
    assert (tmp_path / "version_1").is_dir()
    transport.send(Members(servers, [A]), iter(WEIGHTS.items()), 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, "version_8", "version_3"])


def refuse(*_: Any, **__: Any) -> None:
    raise OSError(errno.EBUSY, "Device or resource busy")


def test_nothing_of_weights_that_cannot_be_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(transports, "save_file", full)
    with pytest.raises(WeightSyncError, match=r"weights 3 could not be written to .*\(.*No space left.*\); free space"):
        FileTransport(tmp_path).send(Members(FakeServers(), [A]), iter(WEIGHTS.items()), 3)
    assert list(tmp_path.iterdir()) == []


def test_workers_of_one_server_must_agree() -> None:
    same = {"a": "1", "b": "2"}
    assert receipts_of({A: {"results": [same, same]}}) == [Receipt(where=A, checksums=same)]
    with pytest.raises(WeightSyncError, match=r"two workers of http://a:8000 .*: b has checksum 2 at one and 3 at"):
        receipts_of({A: {"results": [same, same | {"b": "3"}]}})
    with pytest.raises(WeightSyncError, match="c has checksum None at one and 4 at the other"):
        receipts_of({A: {"results": [same, same | {"c": "4"}]}})


def test_nccl_without_vllm_is_a_sentence(monkeypatch: pytest.MonkeyPatch, servers: FakeServers) -> None:
    monkeypatch.setattr(transports.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=re.escape("vllm.weight_transfer=nccl needs vLLM in the trainer's interpreter")):
        NCCLTransport().send(Members(servers, [A]), iter([]), 1)
