"""New weights for vLLM inside this process: taken over, acknowledged, sampled from, or refused as a whole."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from vllm_engines import EXACT, PROMPT, gap, generate, open_engine, renew, shipped_model, update, weights_of

from agent_rl.distributed.checksums import checksum
from agent_rl.errors import EngineError

if TYPE_CHECKING:
    from agent_rl.inference.vllm.engine import VLLMEngine

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def engine() -> Iterator["VLLMEngine"]:
    with open_engine() as engine:
        yield engine


@pytest.fixture
def trainer(engine: "VLLMEngine") -> nn.Module:
    """A model with the engine's weights: the shipped ones, taken over anew."""
    return shipped_model(engine)


def test_new_weights_are_sampled_from_and_acknowledged(engine: "VLLMEngine", trainer: nn.Module) -> None:
    update(trainer, seed=2)
    old = generate(engine)
    assert gap(trainer, old.token_ids, old.logprobs) > 0.1
    checksums = renew(engine, trainer, 70)
    assert checksums == {name: checksum(tensor) for name, tensor in weights_of(trainer).items()}
    new = generate(engine)
    assert new.weight_version == 70
    assert gap(trainer, new.token_ids, new.logprobs) < EXACT


def test_vllms_own_reload_keeps_the_old_head_of_tied_embeddings(engine: "VLLMEngine", trainer: nn.Module) -> None:
    """Why the worker packs tied heads again; when this fails, vLLM does it itself."""
    update(trainer, seed=3)
    engine.pause()
    weights = iter(weights_of(trainer).items())
    engine._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
    engine.flush()
    engine.resume(engine.weight_version + 1)
    stale = generate(engine)
    assert gap(trainer, stale.token_ids, stale.logprobs) > 0.1
    renew(engine, trainer, engine.weight_version + 1)
    right = generate(engine)
    assert gap(trainer, right.token_ids, right.logprobs) < EXACT


def test_without_a_flush_old_keys_and_values_are_sampled_from(engine: "VLLMEngine", trainer: nn.Module) -> None:
    update(trainer, seed=4)
    version = engine.weight_version + 1
    engine.probe(PROMPT, num_tokens=4, temperature=1.0, seed=1)
    engine.pause()
    engine.load(weights_of(trainer).items(), version)
    engine.resume(version)
    (stale,) = engine.probe(PROMPT, num_tokens=4, temperature=1.0, seed=1)
    assert stale.num_cached == 256
    assert gap(trainer, stale.token_ids, stale.logprobs) > 0.1
    engine.pause()
    engine.flush()
    engine.resume(version)
    (fresh,) = engine.probe(PROMPT, num_tokens=4, temperature=1.0, seed=1)
    assert (fresh.where, fresh.version, fresh.num_cached) == ("process 0", version, 0)
    assert gap(trainer, fresh.token_ids, fresh.logprobs) < EXACT


def test_a_tensor_is_only_read_before_the_next_is_requested(engine: "VLLMEngine", trainer: nn.Module) -> None:
    """One buffer for all of them, as where shards are gathered."""
    update(trainer, seed=5)
    weights = weights_of(trainer)
    buffer = torch.empty(max(tensor.numel() for tensor in weights.values()))

    def in_one_buffer() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights.items():
            buffer.fill_(float("nan"))
            buffer[: tensor.numel()] = tensor.flatten()
            yield name, buffer[: tensor.numel()].view(tensor.shape)

    engine.pause()
    engine.load(in_one_buffer(), 5)
    engine.flush()
    engine.resume(5)
    completion = generate(engine)
    assert gap(trainer, completion.token_ids, completion.logprobs) < EXACT


def test_a_tensor_that_was_lost_is_missing_in_the_receipt(engine: "VLLMEngine", trainer: nn.Module) -> None:
    """vLLM joins queries, keys and values, and notices nothing."""
    weights = weights_of(trainer)
    lost = "model.layers.1.self_attn.k_proj.weight"
    engine.pause()
    (receipt,) = engine.load([pair for pair in weights.items() if pair[0] != lost], 6)
    assert weights.keys() - receipt.checksums.keys() == {lost}
    engine.resume(6)


def broken(kind: str, weights: dict[str, Tensor]) -> list[tuple[str, Tensor]]:
    pairs = list(weights.items())
    name, tensor = pairs[20]
    return {
        "unknown": [*pairs[:20], ("model.nothing", torch.ones(2)), *pairs[20:]],
        "shape": [*pairs[:20], (name, tensor[:-1]), *pairs[21:]],
        "twice": [*pairs[:21], *pairs[20:]],
        "missing": [pair for pair in pairs if pair[0] != "model.norm.weight"],
    }[kind]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("unknown", r"at tensor 'model.nothing': ValueError: There is no module or parameter named 'nothing'"),
        ("shape", r"at tensor 'model.layers.\d"),
        ("twice", r"came twice"),
        ("missing", r"no tensor came for 1 of 50 parameters, the first is 'model.norm.weight'"),
    ],
)
def test_nothing_is_sampled_from_weights_that_were_not_taken_until_whole_ones_are(
    engine: "VLLMEngine", trainer: nn.Module, kind: str, message: str
) -> None:
    engine.pause()
    with pytest.raises(EngineError, match=message):
        engine.load(broken(kind, weights_of(trainer)), 8)
    with pytest.raises(EngineError, match="may not sample with weights 8"):
        engine.resume(8)
    assert "model" in engine._engine.collective_rpc("agent_rl_state")[0]
    update(trainer, seed=6)
    renew(engine, trainer, 9)
    completion = generate(engine)
    assert gap(trainer, completion.token_ids, completion.logprobs) < EXACT
    assert len(engine._engine.collective_rpc("agent_rl_state")[0]) == 64  # of what it received, no complaint


def test_weights_are_loaded_from_files(engine: "VLLMEngine", trainer: nn.Module, tmp_path: Path) -> None:
    update(trainer, seed=7)
    pairs = list(weights_of(trainer).items())
    paths = [str(tmp_path / f"{part}.safetensors") for part in (0, 1)]
    for path, part in zip(paths, (pairs[:30], pairs[30:]), strict=True):
        save_file({name: tensor.contiguous() for name, tensor in part}, path)
    engine.pause()
    (checksums,) = engine._engine.collective_rpc("agent_rl_load_files", args=(paths,))
    engine.flush()
    engine.resume(10)
    assert checksums == {name: checksum(tensor) for name, tensor in pairs}
    completion = generate(engine)
    assert gap(trainer, completion.token_ids, completion.logprobs) < EXACT


def test_files_that_are_missing_or_torn_leave_the_weights_alone(
    engine: "VLLMEngine", trainer: nn.Module, tmp_path: Path
) -> None:
    good, torn = str(tmp_path / "good.safetensors"), tmp_path / "torn.safetensors"
    save_file({"model.norm.weight": torch.zeros(8)}, good)
    torn.write_bytes(Path(good).read_bytes()[:-4])
    for path, complaint in ((str(torn), "is torn"), (str(tmp_path / "no"), "does not exist")):
        with pytest.raises(ValueError, match=complaint):
            engine._engine.collective_rpc("agent_rl_load_files", args=([good, path],))
    completion = generate(engine)
    assert gap(trainer, completion.token_ids, completion.logprobs) < EXACT


def test_what_comes_by_nccl_is_noted(engine: "VLLMEngine", trainer: nn.Module, monkeypatch: Any) -> None:
    """Its broadcast is replaced here: this machine needs no GPU."""
    from vllm.config.weight_transfer import WeightTransferConfig
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    from agent_rl.inference.vllm.server.worker import NCCL_BACKEND, offer_nccl_backend

    offer_nccl_backend()
    update(trainer, seed=8)
    weights = weights_of(trainer)

    class Group:
        sent = iter(weights.values())

        def broadcast(self, tensor: Tensor, **_: object) -> None:
            tensor.copy_(next(self.sent))

    worker = engine._engine.model_executor.driver_worker.worker
    transfer = WeightTransferEngineFactory.create_engine(
        WeightTransferConfig(backend=NCCL_BACKEND), worker.vllm_config, worker.device, worker.get_model()
    )
    transfer.model_update_group = Group()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(worker, "weight_transfer_engine", transfer)
    kinds = {
        "names": list(weights),
        "dtype_names": ["float32"] * len(weights),
        "shapes": [list(tensor.shape) for tensor in weights.values()],
    }
    engine.pause()
    worker.start_weight_update()
    worker.update_weights(kinds)
    worker.finish_weight_update()
    assert worker.agent_rl_received() == {name: checksum(tensor) for name, tensor in weights.items()}
    assert worker.agent_rl_received() == {}
    monkeypatch.undo()
    renew(engine, trainer, 11)


def test_fifty_loads_leave_no_memory_behind(engine: "VLLMEngine", trainer: nn.Module) -> None:
    def resident_mb() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    before = resident_mb()
    for version in range(50):
        renew(engine, trainer, version)
    assert resident_mb() - before < 20


def test_a_reload_warns_of_nothing(engine: "VLLMEngine", trainer: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("vllm")
    logger.addHandler(caplog.handler)
    level = logger.level
    logger.setLevel(logging.WARNING)
    renew(engine, trainer, 12)
    logger.setLevel(level)
    logger.removeHandler(caplog.handler)
    assert [record.getMessage() for record in caplog.records] == []
