"""The backend in one process, the launcher's files, and the settings that DeepSpeed is given."""

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from torch import nn

from agent_rl.distributed import zero
from agent_rl.distributed.backend import Backend, OptimizerStep, set_learning_rate
from agent_rl.errors import CheckpointError, ConfigError

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER_FILES = sorted((ROOT / "configs/accelerate").glob("*.yaml"))
DEEPSPEED_FILES = sorted((ROOT / "configs/deepspeed").glob("*.json"))


@pytest.fixture
def pair() -> tuple[Backend, nn.Module, torch.optim.Optimizer]:
    """One weight of 1, and an optimizer that subtracts the gradient."""
    backend = Backend("cpu")
    module = nn.Linear(1, 1, bias=False)
    nn.init.ones_(module.weight)
    return backend, *backend.prepare(module, torch.optim.SGD(module.parameters(), lr=1.0))


def accumulate(backend: Backend, module: nn.Module, factors: list[float]) -> None:
    for i, factor in enumerate(factors):
        with backend.micro_step(module, is_last=i == len(factors) - 1):
            backend.backward(module(torch.ones(1, 1)).sum() * factor)


def test_one_process_is_rank_0_of_1_and_its_collectives_are_identities() -> None:
    backend = Backend("cpu")
    assert (backend.kind, backend.zero_stage, backend.rank, backend.num_processes) == ("plain", 0, 0, 1)
    assert backend.is_main_process
    assert backend.device == torch.device("cpu")
    assert backend.sum(2.5) == 2.5
    assert backend.all_gather_object("a") == ["a"]
    assert backend.broadcast_object("a") == "a"
    assert backend.on_main(lambda: 3) == 3
    backend.barrier()
    backend.close()


def test_gradients_of_micro_steps_add_up_and_are_forgotten_after_the_step(pair: Any) -> None:
    backend, module, optimizer = pair
    accumulate(backend, module, [0.25, 0.5])
    assert backend.step(module, optimizer, max_grad_norm=10.0, is_loss_finite=True) == OptimizerStep(
        grad_norm=0.75, applied=True
    )
    assert module.weight.item() == 0.25
    accumulate(backend, module, [0.25])
    assert backend.step(module, optimizer, max_grad_norm=10.0, is_loss_finite=True).grad_norm == 0.25


def test_the_gradient_is_clipped_and_its_norm_before_is_reported(pair: Any) -> None:
    backend, module, optimizer = pair
    accumulate(backend, module, [4.0])
    assert backend.step(module, optimizer, max_grad_norm=0.5, is_loss_finite=True).grad_norm == 4.0
    assert module.weight.item() == pytest.approx(0.5, abs=1e-5)


@pytest.mark.parametrize(("factor", "is_loss_finite"), [(math.nan, True), (math.inf, True), (1.0, False)])
def test_a_step_that_is_not_finite_is_refused_and_leaves_no_gradient(
    pair: Any, factor: float, is_loss_finite: bool
) -> None:
    backend, module, optimizer = pair
    accumulate(backend, module, [factor])
    result = backend.step(module, optimizer, max_grad_norm=1.0, is_loss_finite=is_loss_finite)
    assert not result.applied
    assert not math.isfinite(result.grad_norm)
    assert module.weight.item() == 1.0
    accumulate(backend, module, [0.5])
    backend.step(module, optimizer, max_grad_norm=1.0, is_loss_finite=True)
    assert module.weight.item() == 0.5


def test_learning_rates_are_set_for_all_groups_or_one_each() -> None:
    optimizer = torch.optim.SGD([{"params": [torch.zeros(1)]}, {"params": [torch.zeros(1)]}], lr=1.0)
    set_learning_rate(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]
    set_learning_rate(optimizer, [0.1, 0.2])
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]


def test_weights_are_copied_into_a_replica_of_the_same_names_only(pair: Any) -> None:
    backend, module, _ = pair
    replica = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    backend.copy_weights(module, replica)
    assert replica.weight.item() == 1.0
    assert backend.full_state_dict(module)["weight"].tolist() == [[1.0]]
    with pytest.raises(ValueError, match="differ in 1 names, the first is bias"):
        backend.copy_weights(module, nn.Linear(1, 1))


def test_of_adapters_nothing_else_is_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    base, adapter = nn.Linear(2, 1).requires_grad_(False), nn.Linear(1, 1, bias=False)
    module = nn.ModuleDict({"base": base, "adapter": adapter})
    gathered, gathered_names = zero.gathered, []

    def gather(tensors: list[tuple[str, torch.Tensor]]) -> Any:
        gathered_names.extend(name for name, _ in tensors)
        return gathered(tensors)

    monkeypatch.setattr(zero, "gathered", gather)
    assert Backend("cpu").full_state_dict(module, trained_only=True) == {"adapter.weight": adapter.weight}
    assert gathered_names == ["adapter.weight"]
    assert len(Backend("cpu").full_state_dict(module)) == 3


def test_full_weights_do_not_change_with_the_module(pair: Any) -> None:
    backend, module, optimizer = pair
    weights = backend.full_state_dict(module)
    accumulate(backend, module, [0.5])
    backend.step(module, optimizer, max_grad_norm=1.0, is_loss_finite=True)
    assert weights["weight"].item() == 1.0


def test_a_frozen_module_wants_no_gradient_and_drops_nothing_out() -> None:
    frozen = Backend("cpu").prepare_frozen(nn.Sequential(nn.Linear(1, 1), nn.Dropout()))
    assert not frozen.training
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


def test_the_optimizer_goes_on_from_its_saved_state(tmp_path: Path) -> None:
    backend = Backend("cpu")

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        module = nn.Linear(2, 1)
        nn.init.ones_(module.weight), nn.init.ones_(module.bias)
        return backend.prepare(module, torch.optim.AdamW(module.parameters(), lr=0.1))

    def step(module: nn.Module, optimizer: torch.optim.Optimizer, x: float) -> None:
        with backend.micro_step(module, is_last=True):
            backend.backward((module(torch.tensor([[1.0, x]])) * x).sum())
        backend.step(module, optimizer, max_grad_norm=1.0, is_loss_finite=True)

    straight, resumed = make(), make()
    step(*straight, 1.0)
    backend.save_state(tmp_path, *straight)
    resumed[0].load_state_dict(straight[0].state_dict())
    backend.load_state(tmp_path, *resumed)
    step(*straight, -0.5), step(*resumed, -0.5)
    assert torch.equal(straight[0].weight, resumed[0].weight)


def test_a_state_of_another_layout_is_refused(tmp_path: Path, pair: Any) -> None:
    backend, module, optimizer = pair
    with pytest.raises(CheckpointError, match=r"layout\.json is missing"):
        backend.load_state(tmp_path, module, optimizer)
    backend.save_state(tmp_path, module, optimizer)
    layout = tmp_path / "optimizer/layout.json"
    layout.write_text(json.dumps({"num_processes": 8, "zero_stage": 3}))
    with pytest.raises(CheckpointError, match="saved by 8 processes with ZeRO-3, and this run is 1 process with no"):
        backend.load_state(tmp_path, module, optimizer)


# The launcher


@pytest.mark.parametrize(
    ("device", "sentence"),
    [("cpu:x", "expected auto, cpu, cuda or cuda:N"), ("tpu", "expected auto"), ("cuda:99", "PyTorch sees")],
)
def test_a_device_that_is_not_there_is_refused(device: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Backend(device)


@pytest.fixture
def deepspeed_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of a process that `accelerate launch` started; its settings file, to be written."""
    path = tmp_path / "deepspeed.json"
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(path))
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    return path


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "does not exist; correct deepspeed_config_file"),
        ("{", "is no JSON"),
        ("{}", "has no section zero_optimization"),
        ('{"zero_optimization": {"stage": 0}}', "stage = 0: expected 1, 2 or 3; without sharding, launch with"),
        ('{"zero_optimization": {"stage": 2}, "optimizer": {"type": "Adam"}}', "'optimizer' is not read; remove it"),
        ('{"zero_optimization": {"stage": 2}, "fp16": {"enabled": true}}', "'fp16' is not read; remove it"),
    ],
)
def test_settings_that_cannot_work_are_refused(deepspeed_launch: Path, text: str | None, sentence: str) -> None:
    if text is not None:
        deepspeed_launch.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        Backend("cpu")


def test_deepspeed_without_a_launcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(ConfigError, match="no launcher started this process; use accelerate launch"):
        Backend("cpu")


def test_one_gpu_by_number_is_refused_under_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(ConfigError, match=r"run\.device = 'cuda:1': a launcher gives every process its own device"):
        Backend("cuda:1")


def settings_of(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def test_what_is_auto_is_filled_in_from_the_module() -> None:
    settings = settings_of(ROOT / "configs/deepspeed/zero3.json")
    zero.fit_to(settings, nn.Linear(10, 10, bias=False))
    assert settings["zero_optimization"]["reduce_bucket_size"] == 100
    assert settings["bf16"] == {"enabled": False}
    zero.fit_to(settings, nn.Linear(10, 10, bias=False, dtype=torch.bfloat16))
    assert settings["bf16"] == {"enabled": True, "check_grad_overflow": True}


def test_weights_of_two_number_formats_are_refused() -> None:
    mixed = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1, dtype=torch.bfloat16)])
    with pytest.raises(ConfigError, match=re.escape("(torch.bfloat16, torch.float32), DeepSpeed shards one")):
        zero.fit_to({"zero_optimization": {"stage": 3}}, mixed)


def test_buckets_hold_whole_tensors_and_go_by_the_size_of_what_a_shard_belongs_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zero, "BUCKET_ELEMENTS", 10)
    shard = torch.zeros(0)
    shard.ds_numel = 10
    tensors = [("a", torch.zeros(6)), ("b", torch.zeros(4)), ("c", torch.zeros(1)), ("d", shard), ("e", torch.ones(30))]
    assert [[name for name, _ in bucket] for bucket in zero._buckets(tensors)] == [["a", "b"], ["c"], ["d"], ["e"]]


@pytest.mark.parametrize("path", DEEPSPEED_FILES, ids=lambda path: path.stem)
def test_every_shipped_deepspeed_file_is_read_by_deepspeed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    settings = settings_of(path)
    zero._check_file(path)
    zero.fit_to(settings, nn.Linear(10, 10))
    read = DeepSpeedZeroConfig(**settings["zero_optimization"])
    assert read.stage == int(path.stem[4])
    assert ("offload" in path.stem) == (read.offload_optimizer is not None)


@pytest.mark.parametrize("path", LAUNCHER_FILES, ids=lambda path: path.stem)
def test_every_shipped_launcher_file_is_read_by_accelerate(path: Path) -> None:
    config = load_config_from_file(str(path))
    num_processes, num_machines = re.fullmatch(r"\w+?_(\d)\w+?(?:_(\d)nodes)?", path.stem).groups(default="1")
    assert config.num_machines == int(num_machines)
    assert config.num_processes == int(num_processes) * int(num_machines)
    if path.stem.startswith("ddp"):
        assert config.distributed_type == "MULTI_GPU"
    else:
        assert config.distributed_type == "DEEPSPEED"
        named = ROOT / config.deepspeed_config["deepspeed_config_file"]
        assert named in DEEPSPEED_FILES
        assert path.stem.startswith(named.stem)
