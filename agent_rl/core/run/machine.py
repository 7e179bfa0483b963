"""What `environment.json` tells of a start of a run: command, commits, machine, versions, model, task files.

Secrets are hidden by `redacted`. What cannot be found out is null. Not here: the configuration (`config.yaml`).
"""

import hashlib
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from agent_rl.config import Config
from agent_rl.redacted import HIDDEN, is_secret_name, looks_like_key, redacted
from agent_rl.telemetry.host import cpu_name, memory_bytes

_PACKAGES = (
    *("agent_rl", "torch", "transformers", "tokenizers", "accelerate", "deepspeed", "vllm", "peft", "safetensors"),
    *("numpy", "pyarrow", "ray", "bitsandbytes"),
)
_VARIABLES = ("CUDA_", "NVIDIA_", "NCCL_", "OMP_", "MKL_", "PYTORCH_", "TORCH_", "HF_", "TRANSFORMERS_", "VLLM_", "DS_")
_VARIABLES += (
    "AGENT_RL_",
    "ACCELERATE_",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_",
    "SLURM_JOB",
    "SLURM_N",
    "RAY_",
)
"""Beginnings of the names of variables that change what a run computes or where."""
_TASK_KEYS = ("train_path", "eval_path")
_GIT_S = 5.0
WHOLE_BYTES = 4 * 2**30
"""Larger models are not read whole: their checksum is of the names, the sizes, and both ends of every file."""
_END_BYTES = 2**20


def describe_machine(config: Config) -> dict[str, Any]:
    """Plain values for `environment.json`; takes as long as reading the model, a few seconds at most."""
    return {
        "time": time.time(),
        "command": redacted([sys.executable, *sys.argv]),
        "working_folder": os.getcwd(),
        "git": {"agent_rl": git_state(Path(__file__).parent), "working_folder": git_state(Path.cwd())},
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "num_cpus": os.cpu_count(),
        "num_cpus_allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_gib": _gib(memory_bytes()),
        "gpus": _gpus(),
        "cuda": torch.version.cuda,
        "packages": {name: _version(name) for name in _PACKAGES},
        "variables": _variables(),
        "model": model_checksum(config.model.path),
        "tasks": task_checksums(config),
        "seed": config.run.seed,
        "device": config.run.device,
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """`commit`, and whether tracked files were `changed` since; None where the folder is in no repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": None if changed is None else bool(changed)}


def _git(folder: Path, *words: str) -> str | None:
    program = shutil.which("git")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def task_checksums(config: Config) -> dict[str, Any]:
    """Checksum of every task file, by its key below `data`, or its whole key in an environment of a mixture; of what is
    no file here, such as rows on the Hub, the path."""
    paths = {name: getattr(config.data, name) for name in _TASK_KEYS}
    if config.env.name == "mixture":
        members = config.env.options.get("environments", {})
        paths |= {
            f"env.options.environments.{name}.{key}": member.get(key)
            for name, member in members.items()
            for key in _TASK_KEYS
        }
    return {
        key: model_checksum(path) if Path(path).is_file() else {"path": path} for key, path in paths.items() if path
    }


def model_checksum(path: str) -> dict[str, Any]:
    """SHA-256 over the files of a model's folder or file, or its revision on the Hub.

    `of` says what the checksum covers: all bytes, or of models above `WHOLE_BYTES` the ends of their files.
    """
    source = Path(path)
    files = sorted(each for each in source.iterdir() if each.is_file()) if source.is_dir() else [source]
    if not files or not files[0].is_file():
        return {"path": path, "revision": _hub_revision(path)}
    sizes = [file.stat().st_size for file in files]
    is_whole = sum(sizes) <= WHOLE_BYTES
    digest = hashlib.sha256()
    for file, size in zip(files, sizes, strict=True):
        content = _digest_of_file(file, size, is_whole=is_whole)
        digest.update(f"{file.name} {size} {content}\n".encode())
    of = "all bytes" if is_whole else "names, sizes, first and last MiB of every file"
    return {"path": path, "sha256": digest.hexdigest(), "of": of, "bytes": sum(sizes)}


def _digest_of_file(file: Path, size: int, *, is_whole: bool) -> str:
    with file.open("rb") as opened:
        if is_whole:
            return hashlib.file_digest(opened, "sha256").hexdigest()
        digest = hashlib.sha256(opened.read(_END_BYTES))
        opened.seek(max(0, size - _END_BYTES))
        digest.update(opened.read())
        return digest.hexdigest()


def _hub_revision(name: str) -> str | None:
    """The commit of a model of the Hub that this machine has; None where it has none."""
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, "config.json")
    except ValueError:  # no name of a model
        return None
    return Path(found).parent.name if isinstance(found, str) else None


def _variables() -> dict[str, str]:
    """Those of this process that matter, without secrets."""
    found = {name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)}
    return {
        name: HIDDEN if is_secret_name(name) or looks_like_key(value) else redacted(value)
        for name, value in found.items()
    }


def _gpus() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [{"name": each.name, "memory_gib": _gib(each.total_memory)} for each in found]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _gib(number: int | None) -> float | None:
    return None if number is None else round(number / 2**30, 1)
