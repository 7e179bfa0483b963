"""Where training runs: one process, DDP, or DeepSpeed ZeRO, through Hugging Face Accelerate.

Device, processes, autocast, backward, the optimizer step and full weights go through here, so the code above is the
same for one laptop process and for eight GPUs. Which of the three it is, the launcher decides: `python` starts one
process; `torchrun` and `accelerate launch` start several, with DDP or, when the launcher's file requests it, DeepSpeed.
Not here: the model, the loss, what is trained on which process, checkpoints as a whole.
"""

import json
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs
from torch.nn.parallel import DistributedDataParallel

from agent_rl.distributed import zero
from agent_rl.distributed.allocator import grow_blocks_on_gpu, keep_freed_memory, unused_reserved_bytes
from agent_rl.distributed.mapped_state import copied_state
from agent_rl.distributed.parking import ParkedState
from agent_rl.distributed.processes import Processes
from agent_rl.distributed.sequence import SequenceGroup, check_sharing
from agent_rl.errors import CheckpointError, ConfigError
from agent_rl.modeling.tensor_files import load_tensors, save_tensors

OPTIMIZER_FOLDER = "optimizer"
NCCL_TIMEOUT_S = 600.0
"""Longest wait for gradients or weights of other GPUs, where `run.timeout_s` is not shorter: processes come to an
update together, so that a longer one is a hang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerStep:
    grad_norm: float
    """L2 norm of the whole gradient before clipping; not finite when the step was refused."""
    applied: bool
    """False when loss or gradient was not finite on any process: the weights are as before, on all of them."""


class Backend(Processes):
    """The device and the processes of this run: `Backend("auto")`.

    `device` is `auto` (a GPU when there is one), `cpu`, `cuda` or `cuda:N`. A process waits `timeout_s` for the others,
    then raises ProcessLostError. Raises ConfigError for a device that is not there, and for settings of the launcher
    that cannot work.
    """

    def __init__(self, device: str = "auto", *, timeout_s: float = 1800.0) -> None:
        wanted = _parse(device)
        if wanted.type == "cuda":
            grow_blocks_on_gpu()
        elif not torch.cuda.is_available():
            # Accelerate imports DeepSpeed where it is installed; what DeepSpeed finds out by itself it warns about.
            os.environ.setdefault("DS_ACCELERATOR", "cpu")
        self._plugin = zero.make_plugin() if zero.is_requested() else None
        self._accelerator = _accelerator(wanted, self._plugin, timeout_s)
        if self._accelerator.device.type != wanted.type:
            raise ConfigError(
                f"run.device = {device!r}: this process already trains on {self._accelerator.device}; "
                "use one device per process"
            )
        super().__init__(device=self._accelerator.device, timeout_s=timeout_s)
        if wanted.type == "cpu":
            keep_freed_memory()
        self._engine: Any = None
        if self._plugin is not None:
            zero.load_whole()

    @property
    def kind(self) -> str:
        """`plain` (one process), `ddp` or `deepspeed`."""
        if self._plugin is not None:
            return "deepspeed"
        return "ddp" if self._accelerator.use_distributed else "plain"

    @property
    def zero_stage(self) -> int:
        """What DeepSpeed shards: 0 nothing, 1 optimizer state, 2 gradients too, 3 weights too."""
        return 0 if self._plugin is None else self._plugin.deepspeed_config["zero_optimization"]["stage"]

    def prepare(
        self, module: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """The module that is trained and its optimizer, on the device and wrapped as the set-up needs; once a run.

        Under DeepSpeed the optimizer's groups without parameters are dropped, and with `offload_optimizer` it becomes
        DeepSpeed's Adam with the same groups.
        """
        if self._plugin is None:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
                return self._accelerator.prepare(module, optimizer)
        zero.fit_to(self._plugin.deepspeed_config, module)
        zero.check_offload(self._plugin.deepspeed_config)
        self.barrier()  # loading took each its own time, and DeepSpeed's own waits are short
        with self.waiting_for("all processes to set up their shards"):
            self._engine, optimizer = self._accelerator.prepare(module, optimizer)
        return self._engine, optimizer

    def prepare_frozen(self, module: torch.nn.Module) -> torch.nn.Module:
        """A module that is only read, such as a reference model, on the device; under ZeRO-3 sharded like the other.

        A sharded module's forward is collective: every process calls it equally often.
        """
        module = module.requires_grad_(False).eval()
        if self.zero_stage < 3:
            return module.to(self.device)
        with self.waiting_for("all processes to set up their shards"):
            return zero.initialize_frozen(module, self._plugin.deepspeed_config)

    def sharded_loading(self, dtype: torch.dtype = torch.float32) -> AbstractContextManager:
        """Inside, what Transformers loads is sharded as it is loaded under ZeRO-3: for models no process can hold.

        `dtype` is the number format of the weights. Elsewhere, and for other set-ups, models are loaded whole.
        """
        if self.zero_stage < 3:
            return nullcontext()
        return zero.sharded_loading(self._plugin.deepspeed_config, dtype)

    def unwrap(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module that was handed to `prepare` or `prepare_frozen`; under ZeRO-3 its weights are still shards."""
        # Not Accelerate's own: that one imports DeepSpeed wherever it is installed.
        is_wrapped = isinstance(module, DistributedDataParallel) or (
            self._plugin is not None and zero.is_engine(module)
        )
        return module.module if is_wrapped else module

    def sequence_group(self, size: int) -> SequenceGroup | None:
        """The processes that share a micro-batch with this one, `size` in all; None for 1. Collective.

        ConfigError when the processes cannot be divided into groups of that size.
        """
        check_sharing(size, num_processes=self.num_processes)
        return None if size == 1 else SequenceGroup(size)

    def autocast(self, number_format: str) -> AbstractContextManager:
        """Matrix products in `bfloat16`, or as they are for `none`."""
        # Not Accelerate's own: that one patches `forward`, which the generation engine shares with the trainer.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=number_format == "bfloat16")

    @contextmanager
    def micro_step(self, module: torch.nn.Module, *, is_last: bool) -> Iterator[None]:
        """Around forward and backward of one micro-batch; gradients add up until `step`.

        They are summed over processes once, at the last micro-batch of a step; ZeRO-2 and 3, which keep no whole
        gradient, sum at every one. Every process makes the same number of micro-steps.
        """
        with self.waiting_for("the gradients of the other processes"):
            if self.kind == "deepspeed":
                module.set_gradient_accumulation_boundary(is_last)
                yield
            elif self.kind == "ddp" and not is_last:
                with module.no_sync():
                    yield
            else:
                yield

    def backward(self, loss: torch.Tensor) -> None:
        """Backward of this process's share of the step's loss.

        Shares have global denominators, so the gradient of a step is the sum over micro-batches and processes. DDP and
        DeepSpeed average over processes; the factor undoes it, here and nowhere else.
        """
        loss = loss * self.num_processes
        if self._engine is not None:
            self._engine.backward(loss)
        else:
            loss.backward()

    def step(
        self, module: torch.nn.Module, optimizer: torch.optim.Optimizer, *, max_grad_norm: float, is_loss_finite: bool
    ) -> OptimizerStep:
        """Clip the gradient to a total norm of `max_grad_norm`, change the weights, forget the gradient.

        Nothing is changed on any process when `is_loss_finite` is False, or the gradient is not finite, on one of them.
        """
        is_wanted = self.sum(float(not is_loss_finite)) == 0
        with self.waiting_for("the optimizer step of the other processes"):
            if self.kind == "deepspeed":
                grad_norm, applied = zero.step(module, max_grad_norm=max_grad_norm, is_wanted=is_wanted)
            else:
                grad_norm = float(torch.nn.utils.clip_grad_norm_(module.parameters(), max_grad_norm))
                applied = is_wanted and math.isfinite(grad_norm)
                if applied:
                    optimizer.step()
                optimizer.zero_grad()
        return OptimizerStep(grad_norm=grad_norm if is_wanted else math.nan, applied=applied)

    def parked_state(self, optimizer: torch.optim.Optimizer) -> ParkedState | None:
        """The optimizer's state, to be parked in the machine's memory; None where it lives there anyway."""
        if self._plugin is None:
            return ParkedState(optimizer, self.device)
        offload = self._plugin.deepspeed_config["zero_optimization"].get("offload_optimizer", {})
        return None if offload.get("device", "none") != "none" else zero.parked_state(self._engine, self.device)

    def full_state_dict(self, module: torch.nn.Module, *, trained_only: bool = False) -> dict[str, torch.Tensor]:
        """Whole weights and buffers of `module` (prepared, or a part of one) on the CPU of rank 0; {} elsewhere.

        Collective. Names are those of the module before `prepare`. `trained_only` leaves out what needs no gradient.
        """
        full: dict[str, torch.Tensor] = {}
        named = self.unwrap(module).state_dict(keep_vars=True).items()
        tensors = [(name, tensor) for name, tensor in named if tensor.requires_grad or not trained_only]
        with self.waiting_for("the weights of the other processes"):
            for bucket in zero.gathered(tensors):
                if self.is_main_process:
                    full |= {name: tensor.detach().to("cpu", copy=True) for name, tensor in bucket}
        return full

    @torch.no_grad()
    def copy_weights(self, source: torch.nn.Module, target: torch.nn.Module) -> None:
        """Whole weights of `source` (prepared, or a part of one) into the unsharded `target`, on every process.

        Collective. `target` has the same parameter names, and may have another device or number format.
        """
        tensors = list(self.unwrap(source).state_dict(keep_vars=True).items())
        places = target.state_dict(keep_vars=True)
        if missing := sorted(places.keys() ^ dict(tensors).keys()):
            raise ValueError(f"the two modules differ in {len(missing)} names, the first is {missing[0]}")
        with self.waiting_for("the weights of the other processes"):
            for bucket in zero.gathered(tensors):
                for name, tensor in bucket:
                    places[name].copy_(tensor)

    def memory_metrics(self) -> dict[str, float]:
        """`memory/reserved_unused_gib` since the last call, of the process with the most; {} on a CPU. Collective."""
        if self.device.type != "cuda":
            return {}
        return {"memory/reserved_unused_gib": max(self.all_gather_object(unused_reserved_bytes(self.device))) / 2**30}

    def save_state(self, folder: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[Path, str]:
        """Write what the optimizer needs to continue bit for bit into `folder/optimizer`; collective.

        Returns the SHA-256 of the large file that this process wrote, if it wrote one. Rank 0 writes the optimizer;
        with ZeRO each process writes its shard, which holds its share of the weights too. The folder must be one that
        all processes see.
        """
        place = folder / OPTIMIZER_FOLDER
        # No process waits for another behind a write: where the disk refuses one, the others must not stay here.
        state = zero.optimizer_state(module) if self.kind == "deepspeed" else None
        place.mkdir(exist_ok=True)
        if self.is_main_process:
            (place / "layout.json").write_text(json.dumps(self._layout()) + "\n", encoding="utf-8")
        path = place / self._shard_name()
        if self.kind == "deepspeed":
            return {path: save_tensors(state, path)}
        return {path: save_tensors(optimizer.state_dict(), path)} if self.is_main_process else {}

    def load_state(self, folder: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Restore what `save_state` wrote; collective. Under plain and DDP the weights are loaded by the caller.

        Raises CheckpointError when it was saved by another number of processes or another ZeRO stage.
        """
        place = folder / OPTIMIZER_FOLDER
        if not (place / "layout.json").is_file():
            raise CheckpointError(f"{place / 'layout.json'} is missing; take another checkpoint")
        saved = _read_layout(place / "layout.json")
        if saved != self._layout():
            raise CheckpointError(
                f"{place} was saved by {_describe(saved)}, and this run is {_describe(self._layout())}; launch it the "
                "same way, or begin a new run from the checkpoint's model folder"
            )
        state = load_tensors(place / self._shard_name(), mapped=True)  # it may be larger than what is left of memory
        if self.kind == "deepspeed":
            with self.waiting_for("the other processes to load their shards"):
                zero.load_optimizer_state(module, state)
        else:
            with copied_state(optimizer):
                optimizer.load_state_dict(state)

    def _layout(self) -> dict[str, int]:
        return {"num_processes": self.num_processes, "zero_stage": self.zero_stage}

    def _shard_name(self) -> str:
        return f"rank_{self.rank if self.kind == 'deepspeed' else 0:05d}.pt"


def set_learning_rate(optimizer: torch.optim.Optimizer, rates: float | Sequence[float]) -> None:
    """Set one learning rate for all parameter groups, or one for each."""
    groups = optimizer.param_groups
    each = [rates] * len(groups) if isinstance(rates, int | float) else rates
    for group, rate in zip(groups, each, strict=True):
        group["lr"] = rate


def _accelerator(wanted: torch.device, plugin: Any, timeout_s: float) -> Accelerator:
    """Join the processes that the launcher started, if it did."""
    is_launched = "LOCAL_RANK" in os.environ
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        raise ConfigError("the launcher requests FSDP, which is not supported; use configs/accelerate/zero3_8gpu.yaml")
    if os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower() not in ("no", ""):
        raise ConfigError(
            f"the launcher requests mixed_precision {os.environ['ACCELERATE_MIXED_PRECISION']!r}, which is not read; "
            "set it to 'no' there, and model.dtype or train.autocast in the run's config"
        )
    if wanted.index is not None:
        if is_launched:
            raise ConfigError(
                f"run.device = {str(wanted)!r}: a launcher gives every process its own device; use auto or cuda"
            )
        torch.cuda.set_device(wanted)
    # A forward that sends buffers would be collective, in evaluation too; they are the same everywhere anyway.
    handlers = [DistributedDataParallelKwargs(broadcast_buffers=False)]
    if is_launched:
        backend = "gloo" if wanted.type == "cpu" else "nccl"
        limit_s = timeout_s if backend == "gloo" else min(timeout_s, NCCL_TIMEOUT_S)
        handlers.append(InitProcessGroupKwargs(backend=backend, timeout=timedelta(seconds=limit_s)))
    return Accelerator(
        # Accelerate ignores DeepSpeed if its device is `cpu`.
        cpu=wanted.type == "cpu" and plugin is None,
        mixed_precision="no",
        deepspeed_plugin=plugin,
        kwargs_handlers=handlers,
    )


def _read_layout(path: Path) -> dict[str, int]:
    try:
        saved = json.loads(path.read_bytes()[:10_000])
        return {name: int(saved[name]) for name in ("num_processes", "zero_stage")}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise CheckpointError(f"{path} cannot be read; take another checkpoint") from None


def _describe(layout: dict[str, int]) -> str:
    sharding = f"ZeRO-{layout['zero_stage']}" if layout["zero_stage"] else "no sharding"
    return f"{layout['num_processes']} process{'es' if layout['num_processes'] > 1 else ''} with {sharding}"


def _parse(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        wanted = torch.device(device)
    except RuntimeError:
        wanted = None
    if wanted is None or wanted.type not in ("cpu", "cuda"):
        raise ConfigError(f"run.device = {device!r}: expected auto, cpu, cuda or cuda:N")
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"run.device = {device!r}: PyTorch sees {torch.cuda.device_count()} CUDA devices here; use auto or cpu"
        )
    return wanted
