"""DeepSpeed ZeRO: settings, one optimizer step, gathered weights, and the state of a shard.

Sharding, reducing and offloading are DeepSpeed's own; this module only signals the end of a step and reads its
state. It knows the engine and the optimizers of DeepSpeed 0.19 (`runtime/engine.py`, `runtime/zero/stage_1_and_2.py`,
`runtime/zero/stage3.py`). Importing this module does not import DeepSpeed, which a run without it may not have.
"""

import copy
import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DeepSpeedPlugin, is_deepspeed_available

from agent_rl.config.yaml_text import settings_text
from agent_rl.distributed.mapped_state import copied_state
from agent_rl.distributed.parking import ParkedState
from agent_rl.errors import ConfigError
from agent_rl.resources import install_command

MAX_REDUCE_ELEMENTS = 500_000_000
PREFETCH_ELEMENTS = 50_000_000
BUCKET_ELEMENTS = 200_000_000
"""Elements of sharded weights that are gathered at a time: 800 MB in float32."""

_NOT_SAVED = ("loss_scaler", "zero_stage", "param_slice_mappings", "universal_checkpoint_info", "ds_version")
"""Entries of an optimizer's state that are objects, and that a new optimizer of the same kind has as well."""


def is_requested() -> bool:
    """Whether the launcher requests DeepSpeed (`accelerate launch` with `distributed_type: DEEPSPEED`)."""
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"


def make_plugin() -> DeepSpeedPlugin:
    """DeepSpeed's settings as the launcher names them, with what has no meaning here filled in.

    Raises ConfigError for a settings file that is missing or no JSON, and for settings that this trainer owns.
    """
    if not is_deepspeed_available():
        raise ConfigError(
            f"the launcher requests DeepSpeed, which is not installed; run {install_command('deepspeed')}"
        )
    if "LOCAL_RANK" not in os.environ:
        raise ConfigError(
            "ACCELERATE_USE_DEEPSPEED is set, but no launcher started this process; use accelerate launch "
            "--config_file configs/accelerate/zero3_2cpu.yaml, or unset it"
        )
    _quiet()
    path = os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none")
    if path != "none":
        _check_file(Path(path))
    plugin = DeepSpeedPlugin(zero3_init_flag=False)
    settings = plugin.deepspeed_config
    stage = settings["zero_optimization"].get("stage")
    if stage not in (1, 2, 3):
        raise ConfigError(
            f"DeepSpeed's zero_optimization.stage = {stage!r}: expected 1, 2 or 3; without sharding, launch with "
            "configs/accelerate/ddp_8gpu.yaml"
        )
    # Batch sizes, clipping and accumulation are the caller's, call by call; these values only have to be legal.
    settings.pop("train_batch_size", None)
    settings |= {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0}
    return plugin


def _quiet() -> None:
    """Warnings and errors only, and on a CPU no compilation of collectives that gloo has as well."""
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    if get_accelerator().device_name() == "cpu":
        # The list of operators that can be compiled, empty: finding out takes compilers, and gloo needs none.
        deepspeed.ops.__compatible_ops__ = {}


def _check_file(path: Path) -> None:
    if not path.exists():
        raise ConfigError(
            f"DeepSpeed's settings file {path} does not exist; correct deepspeed_config_file in the launcher's file, "
            "which counts from the current folder"
        )
    try:
        settings = json.loads(settings_text(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"DeepSpeed's settings file {path} is no JSON ({error}); correct it") from None
    if not isinstance(settings, dict):
        raise ConfigError(f"DeepSpeed's settings file {path} holds no settings; correct it")
    owned = {
        "optimizer": "train.*",
        "scheduler": "train.*",
        "fp16": "train.autocast",
        "bf16": "model.dtype or train.autocast",
        "gradient_clipping": "train.max_grad_norm",
        "gradient_accumulation_steps": "train.micro_batch_tokens",
    }
    for key, ours in owned.items():
        section = settings.get(key)
        if section not in (None, "auto") and not (isinstance(section, dict) and section.get("enabled") is False):
            raise ConfigError(f"{path}: section {key!r} is not read; remove it and set {ours} in the run's config")
    if "zero_optimization" not in settings:
        raise ConfigError(f"{path} has no section zero_optimization; give it one with a stage of 1, 2 or 3")


@contextmanager
def sharded_loading(settings: dict[str, Any], dtype: torch.dtype) -> Iterator[None]:
    """Inside, Transformers shards every model that it loads; `load_whole` lifts this inside.

    ConfigError for the second model of a run whose settings ask for a second copy of the weights.
    """
    from deepspeed.utils import groups
    from transformers.integrations import HfDeepSpeedConfig

    if groups._get_zero_param_intra_parallel_group() is not None:
        raise ConfigError(
            "zero_hpz_partition_size: DeepSpeed keeps a second copy of one model, and this run loads two (a KL penalty "
            "has one of its own); remove it from the DeepSpeed settings, or set algorithm.kl.coef to 0"
        )
    own = copy.deepcopy(settings) | {"bf16": {"enabled": dtype == torch.bfloat16}}
    reference = HfDeepSpeedConfig(own)  # Transformers holds it weakly
    try:
        yield
    finally:
        load_whole()
        del reference


def load_whole() -> None:
    """From now on Transformers loads models whole, which Accelerate changed when it started with ZeRO-3."""
    from transformers.integrations import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()


def fit_to(settings: dict[str, Any], module: torch.nn.Module) -> None:
    """Fill in what depends on the module: its number format, and buckets no larger than it is."""
    stage = settings["zero_optimization"]["stage"]
    _narrow_adapters(module)
    formats = {parameter.dtype for parameter in module.parameters()}
    if len(formats) > 1:
        names = ", ".join(sorted(str(dtype) for dtype in formats))
        raise ConfigError(
            f"the model has weights of several number formats ({names}), DeepSpeed shards one; load it in float32"
        )
    is_bf16 = formats == {torch.bfloat16}
    if is_bf16 and stage == 1:
        raise ConfigError("ZeRO stage 1 shards float32 weights only and the model has bfloat16; use stage 2 or 3")
    # A bad gradient must be noticed before it is applied; DeepSpeed checks bfloat16 only on request.
    settings["bf16"] = {"enabled": is_bf16, "check_grad_overflow": True} if is_bf16 else {"enabled": False}
    # In the model's bfloat16, what a micro-batch adds below 1/256 of the sum so far would vanish.
    settings["data_types"] = {"grad_accum_dtype": "fp32"}
    settings["communication_data_type"] = "fp32"
    zero = settings["zero_optimization"]
    num_elements = sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in module.parameters())
    sizes = {
        "reduce_bucket_size": min(num_elements, MAX_REDUCE_ELEMENTS),
        "allgather_bucket_size": min(num_elements, MAX_REDUCE_ELEMENTS),
        "stage3_prefetch_bucket_size": PREFETCH_ELEMENTS,
        "stage3_param_persistence_threshold": 100_000,
    }
    for key, size in sizes.items():
        if zero.get(key) == "auto":
            zero[key] = max(size, 1)


def _narrow_adapters(module: torch.nn.Module) -> None:
    """Adapters beside frozen bfloat16 weights become bfloat16 too, in place; the optimizer keeps them in float32."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    frozen = {parameter.dtype for parameter in module.parameters() if not parameter.requires_grad}
    if frozen == {torch.bfloat16} and trained:
        for parameter in trained:
            parameter.data = parameter.data.to(torch.bfloat16)


def check_offload(settings: dict[str, Any]) -> None:
    """Raise ConfigError when the optimizer is to live on the CPU and DeepSpeed's Adam for it cannot be built."""
    if settings["zero_optimization"].get("offload_optimizer", {}).get("device", "none") == "none":
        return
    from deepspeed.ops.op_builder import CPUAdamBuilder

    # ninja is beside the interpreter, also where the virtual environment was not activated.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    try:
        CPUAdamBuilder().load(verbose=False)
    except (RuntimeError, OSError, ImportError, subprocess.CalledProcessError) as error:
        raise ConfigError(
            "zero_optimization.offload_optimizer needs DeepSpeed's CPU Adam, which could not be built here "
            f"({str(error).splitlines()[0]}); install g++ and ninja, or remove offload_optimizer"
        ) from None


def step(engine: Any, *, max_grad_norm: float, is_wanted: bool) -> tuple[float, bool]:
    """Clip, step and forget the gradients; the norm before clipping, and whether the weights changed.

    They do not when the norm is not finite or `is_wanted` is False, which must be the same on every process.
    """
    engine.optimizer.clip_grad = max_grad_norm
    if is_wanted:
        engine.step()
    else:
        with _invalid_norm(engine):
            engine.step()
    return float(engine.get_global_grad_norm()), engine.was_step_applied()


@contextmanager
def _invalid_norm(engine: Any) -> Iterator[None]:
    """Inside, the optimizer finds its gradients infinite, and drops them in its own way."""
    optimizer, is_stage_3 = engine.optimizer, engine.zero_optimization_stage() == 3
    name = "_get_norm_groups" if is_stage_3 else "scaled_global_norm"
    infinite = torch.tensor(float("inf"))
    setattr(optimizer, name, lambda: [infinite] if is_stage_3 else infinite)
    try:
        yield
    finally:
        delattr(optimizer, name)


def initialize_frozen(module: torch.nn.Module, settings: dict[str, Any]) -> Any:
    """An engine that shards the weights of a module which is only read (ZeRO-3)."""
    import deepspeed

    own = copy.deepcopy(settings)
    own["zero_optimization"].pop("offload_optimizer", None)
    fit_to(own, module)
    engine, *_ = deepspeed.initialize(model=module, config=own)
    return engine


def is_engine(module: torch.nn.Module) -> bool:
    """Whether DeepSpeed wrapped this module."""
    from deepspeed import DeepSpeedEngine

    return isinstance(module, DeepSpeedEngine)


def parked_state(engine: Any, device: torch.device) -> ParkedState:
    """What can leave the device between two updates: float32 weights, moments, and where gradients are added up."""
    optimizer = engine.optimizer
    if engine.zero_optimization_stage() == 3:
        masters, buffers = optimizer.fp32_partitioned_groups_flat, [optimizer.grad_partitions_flat_buffer]
    else:
        masters, buffers = optimizer.single_partition_of_fp32_groups, []
    return ParkedState(optimizer.optimizer, device, masters=masters, buffers=buffers)


def optimizer_state(engine: Any) -> dict[str, Any]:
    """What this process's shard of the optimizer needs to continue: tensors and plain values only."""
    return {key: value for key, value in engine.optimizer.state_dict().items() if key not in _NOT_SAVED}


def load_optimizer_state(engine: Any, state: dict[str, Any]) -> None:
    """Restore `optimizer_state`, and with it the trained weights, from the shard's own copy of them."""
    optimizer = engine.optimizer
    unsaved = {key: value for key, value in optimizer.state_dict().items() if key in _NOT_SAVED}
    by_rank: list[Any] = [None] * torch.distributed.get_world_size()
    by_rank[torch.distributed.get_rank()] = state | unsaved
    with copied_state(optimizer.optimizer):
        if engine.zero_optimization_stage() == 3:
            optimizer.checkpoint_event_prologue()
            optimizer.load_state_dict(by_rank)
            optimizer.checkpoint_event_epilogue()
        else:
            optimizer.load_state_dict(by_rank, load_from_fp32_weights=True)
            optimizer.update_lp_params()
    if hasattr(optimizer.optimizer, "ds_opt_adam"):
        _replay_bias_correction(optimizer.optimizer)


def _replay_bias_correction(cpu_adam: Any) -> None:
    """Bring DeepSpeed's CPU Adam to the step of its state.

    It keeps beta ** step as a running product that is in no state, and takes a power, which rounds differently, where
    steps are missing (`csrc/includes/cpu_adam.h`, IncrementStep). Empty updates of one element make the product again.
    """
    num_steps = max((state["step"] for state in cpu_adam.state.values()), default=0)
    betas = cpu_adam.param_groups[0]["betas"]
    nothing = [torch.zeros(1) for _ in range(4)]
    for step in range(1, num_steps + 1):
        cpu_adam.ds_opt_adam.adam_update(cpu_adam.opt_id, step, 0.0, *betas, 1.0, 0.0, True, *nothing)


def gathered(tensors: list[tuple[str, torch.Tensor]]) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """The named tensors bucket by bucket, whole while the bucket is at hand; collective when any of them is sharded.

    A bucket has at most `BUCKET_ELEMENTS` elements, or one tensor that is larger. A sharded parameter reports no
    elements, so buckets are measured by `ds_numel`, its size when whole.
    """
    for bucket in list(_buckets(tensors)):
        # A parameter under two names (tied weights) is gathered once.
        sharded = {id(tensor): tensor for _, tensor in bucket if hasattr(tensor, "ds_numel")}
        if not sharded:
            yield bucket
            continue
        import deepspeed

        with deepspeed.zero.GatheredParameters(list(sharded.values())):
            yield bucket


def _buckets(tensors: list[tuple[str, torch.Tensor]]) -> Iterator[list[tuple[str, torch.Tensor]]]:
    bucket: list[tuple[str, torch.Tensor]] = []
    num_elements = 0
    for name, tensor in tensors:
        size = getattr(tensor, "ds_numel", tensor.numel())
        if bucket and num_elements + size > BUCKET_ELEMENTS:
            yield bucket
            bucket, num_elements = [], 0
        bucket.append((name, tensor))
        num_elements += size
    if bucket:
        yield bucket
