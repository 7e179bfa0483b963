"""The layout that a launcher's file and the DeepSpeed file it names ask for. Not here: servers, writing such files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from agent_rl.errors import ConfigError
from agent_rl.planning.machine import Layout
from agent_rl.resources import find


def read_layout(launch: Path | None) -> Layout:
    """Of an Accelerate launcher file, and the DeepSpeed file it names; without one, a single process.

    ConfigError for a file that is missing or does not say what is needed.
    """
    if launch is None:
        return Layout()
    launch = find(launch)
    raw = _read(launch, yaml.safe_load)
    sizes = {key: _number(launch, raw, key, 1, least=1) for key in ("num_processes", "num_machines")}
    if raw.get("distributed_type") != "DEEPSPEED":
        return Layout(**sizes)
    named = _section(launch, raw, "deepspeed_config").get("deepspeed_config_file")
    if not isinstance(named, str):
        raise ConfigError(f"{launch} has no deepspeed_config.deepspeed_config_file; a plan reads DeepSpeed's own file")
    path = find(named)
    zero = _section(path, _read(path, json.loads), "zero_optimization")
    if zero.get("stage") not in (1, 2, 3):
        raise ConfigError(f"{path}: zero_optimization.stage is {zero.get('stage')!r}; expected 1, 2 or 3")
    return Layout(
        **sizes,
        zero_stage=zero["stage"],
        offload_optimizer=_is_offloaded(path, zero, "offload_optimizer"),
        offload_weights=_is_offloaded(path, zero, "offload_param"),
        overlap=bool(zero.get("overlap_comm", False)),
        reduce_elements=_elements(path, zero, "reduce_bucket_size", None),
        prefetch_elements=_elements(path, zero, "stage3_prefetch_bucket_size", 50_000_000),
        live_elements=_elements(path, zero, "stage3_max_live_parameters", 1_000_000_000),
    )


def _read(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        raw = parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; paths count from the current folder") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); give a file of configs/accelerate/") from None
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read ({str(error).splitlines()[0]}); correct it") from None
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
        raise ConfigError(f"{path}: {key}.device is {device!r}; a plan knows 'cpu' and 'none'")
    return device == "cpu"


def _elements(path: Path, zero: dict[str, Any], key: str, default: int | None) -> int | None:
    """`"auto"` is what the trainer sets, which is `default`."""
    return default if zero.get(key) in (None, "auto") else _number(path, zero, key, 0, least=0)


def _number(path: Path, raw: dict[str, Any], key: str, default: int, *, least: int) -> int:
    value = raw.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < least:
        raise ConfigError(f"{path}: {key} is {value!r}; expected a whole number, at least {least}")
    return int(value)
