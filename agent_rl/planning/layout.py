"""Which processes train and which servers generate: from a launcher's file, the DeepSpeed file it names, and a machine.

Does not: compute what a run needs (`memory.py`), write launcher's files, start anything.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_rl.config.yaml_text import parse_settings, settings_text
from agent_rl.data.json_rows import parse_json
from agent_rl.distributed.zero import PREFETCH_ELEMENTS
from agent_rl.errors import ConfigError
from agent_rl.inference.vllm.server.settings import GPU_MEMORY_SHARE
from agent_rl.planning.machine import Machine
from agent_rl.resources import find

LIVE_ELEMENTS = 1_000_000_000
"""DeepSpeed's default of `stage3_max_live_parameters`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """`Layout(num_processes=4, zero_stage=3, num_servers=2, tensor_parallel=2)`."""

    num_processes: int = 1
    """Training processes, one on every GPU."""
    num_machines: int = 1
    zero_stage: int = 0
    offload_optimizer: bool = False
    offload_weights: bool = False
    overlap: bool = False
    """Two gradient buckets in flight instead of one."""
    reduce_elements: int | None = None
    """Of a gradient bucket; None: as many as the model has, `MAX_REDUCE_ELEMENTS` at most."""
    prefetch_elements: int = PREFETCH_ELEMENTS
    live_elements: int = LIVE_ELEMENTS
    """Gathered weights that ZeRO-3 holds at most."""
    second_shards: int = 0
    """Processes that share a second copy of the weights (`zero_hpz_partition_size`); 0: there is none."""
    num_servers: int = 0
    tensor_parallel: int = 1
    """GPUs of one server."""
    server_share: float = GPU_MEMORY_SHARE
    """Share of a server's GPU for weights and cache."""

    @property
    def num_gpus(self) -> int:
        return self.num_processes + self.num_servers * self.tensor_parallel

    @property
    def processes_per_machine(self) -> int:
        return -(-self.num_processes // self.num_machines)


def read_layout(launch: Path | None) -> Layout:
    """Read an Accelerate launcher's file and the DeepSpeed file it names; without one, a single process.

    ConfigError for a file that is missing or incomplete.
    """
    if launch is None:
        return Layout()
    launch = find(launch)
    raw = _read(launch, lambda text: parse_settings(text, str(launch)))
    sizes = {key: _number(launch, raw, key, 1, least=1) for key in ("num_processes", "num_machines")}
    if raw.get("distributed_type") != "DEEPSPEED":
        return Layout(**sizes)
    named = _section(launch, raw, "deepspeed_config").get("deepspeed_config_file")
    if not isinstance(named, str):
        raise ConfigError(f"{launch} has no deepspeed_config.deepspeed_config_file; name DeepSpeed's own file there")
    path = find(named)
    zero = _section(path, _read(path, lambda text: parse_json(text, str(path))), "zero_optimization")
    if zero.get("stage") not in (1, 2, 3):
        raise ConfigError(f"{path}: zero_optimization.stage is {zero.get('stage')!r}; expected 1, 2 or 3")
    return Layout(
        **sizes,
        zero_stage=zero["stage"],
        offload_optimizer=_is_offloaded(path, zero, "offload_optimizer"),
        offload_weights=_is_offloaded(path, zero, "offload_param"),
        overlap=bool(zero.get("overlap_comm", False)),
        reduce_elements=_elements(path, zero, "reduce_bucket_size", None),
        prefetch_elements=_elements(path, zero, "stage3_prefetch_bucket_size", PREFETCH_ELEMENTS),
        live_elements=_elements(path, zero, "stage3_max_live_parameters", LIVE_ELEMENTS),
        second_shards=_second_shards(path, zero, sizes["num_processes"]),
    )


def with_servers(layout: Layout, num_servers: int, machine: Machine) -> Layout:
    """The layout with that many servers; ConfigError for numbers of GPUs that contradict each other."""
    num_gpus, width = machine.server_gpus, machine.tensor_parallel
    if not num_servers:
        if num_gpus is not None or width is not None:
            raise ConfigError(
                "server_gpus and tensor_parallel describe the GPUs of vllm.servers, and the configuration names none; "
                "set vllm.servers or remove them"
            )
        return layout
    width = width or (num_gpus or num_servers) // num_servers
    if width < 1 or (num_gpus is not None and num_gpus != width * num_servers):
        raise ConfigError(
            f"server_gpus {num_gpus} with tensor_parallel {width}: vllm.servers names {num_servers} servers, which "
            f"need {max(width, 1) * num_servers} GPUs"
        )
    return replace(layout, num_servers=num_servers, tensor_parallel=width, server_share=machine.server_share)


def _read(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    if not path.exists():
        raise ConfigError(f"{path} does not exist; paths count from the current folder")
    try:
        raw = parse(settings_text(path))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} cannot be read ({error}); correct it") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} holds no settings; give a launcher's file of configs/accelerate/")
    return raw


def _section(path: Path, raw: dict[str, Any], key: str) -> dict[str, Any]:
    value = raw.get(key)
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"{path}: {key} is {value!r}; expected a section with settings of its own")
    return value or {}


def _is_offloaded(path: Path, zero: dict[str, Any], key: str) -> bool:
    device = _section(path, zero, key).get("device", "none")
    if device not in ("none", "cpu", None):
        raise ConfigError(f"{path}: {key}.device is {device!r}; expected 'cpu' or 'none'")
    return device == "cpu"


def _elements(path: Path, zero: dict[str, Any], key: str, default: int | None) -> int | None:
    """`"auto"` leaves the value to the trainer, which sets `default`."""
    return default if zero.get(key) in (None, "auto") else _number(path, zero, key, 0, least=0)


def _second_shards(path: Path, zero: dict[str, Any], num_processes: int) -> int:
    size = min(_number(path, zero, "zero_hpz_partition_size", 1, least=0), num_processes)
    if size > 1 and num_processes % size:
        raise ConfigError(
            f"{path}: zero_hpz_partition_size is {size}, and {num_processes} processes cannot be divided by it; give a "
            "divisor, such as the number of GPUs of one machine"
        )
    return size if size > 1 and zero["stage"] == 3 else 0


def _number(path: Path, raw: dict[str, Any], key: str, default: int, *, least: int) -> int:
    value = raw.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < least:
        raise ConfigError(f"{path}: {key} is {value!r}; expected a whole number, at least {least}")
    return int(value)
