"""A real training of a model whose weights dominate, in one or several processes, that reports the memory it took.

Peaks are of this process, from a start after everything is imported: what the kernel counts (VmHWM) on a CPU, what
PyTorch's allocator counts on a GPU.
"""

import ctypes
import gc
import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from agent_rl.agent.messages import Message
from agent_rl.config import Config, parse_config
from agent_rl.distributed.backend import Backend
from agent_rl.learning.update import PolicyUpdater
from agent_rl.records import Completion, FinishReason, StopReason, Trajectory, TrajectoryGroup, Turn

FIGURES = "figures.json"
NUM_PROMPT, NUM_SAMPLED, GROUP_SIZE = 64, 64, 4


def plan_config(folder: Path, device: str = "cpu", **sections: dict[str, Any]) -> Config:
    """A run that samples from servers, so that a process holds its shards only; it sends them no request."""
    window = NUM_PROMPT + NUM_SAMPLED
    defaults = {
        "run": {"device": device},
        "data": {"train_path": "unused", "eval_path": "unused"},
        "env": {"name": "nat_agent_creation"},
        "model": {"path": str(folder)},
        "policy": {"type": "vllm", "max_new_tokens": NUM_SAMPLED, "max_context": window},
        "vllm": {"servers": ["http://127.0.0.1:8000"]},
        "rollout": {"group_size": GROUP_SIZE, "groups_per_step": 1},
        "train": {"steps": 2, "learning_rate": 1e-3, "micro_batch_tokens": window},
    }
    merged = {name: defaults.get(name, {}) | sections.get(name, {}) for name in defaults.keys() | sections.keys()}
    return parse_config(merged, source="test")


def model_config(**sizes: int) -> Qwen2Config:
    return Qwen2Config(**sizes, bos_token_id=1, eos_token_id=2)


def train(out: Path, sizes: dict[str, int], device: str, sections: dict[str, Any], *, keeps_freed: bool) -> None:
    """Build the model (as shards under ZeRO-3), make the updater, update twice; write peaks in bytes by phase.

    Without `keeps_freed` what is freed goes back to the kernel at once, so that a peak is of what was held.
    """
    backend = Backend(device, timeout_s=500)
    if not keeps_freed:
        _return_freed_memory()
    config = plan_config(out, device, **sections)
    _warm_up()
    gc.collect()  # what an earlier run in this process left in cycles
    _forget_peak(backend)
    before = _now(backend)
    figures = {}
    torch.manual_seed(0)
    with backend.sharded_loading(getattr(torch, config.model.dtype)):
        model = AutoModelForCausalLM.from_config(model_config(**sizes), dtype=getattr(torch, config.model.dtype))
    if config.model.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    updater = PolicyUpdater(model.to(backend.device), config, backend)
    figures["start"] = _peak(backend) - before
    figures["start_kept"] = _now(backend) - before
    _forget_peak(backend)
    for step in range(2):
        updater.update(_groups(sizes["vocab_size"], config.rollout.group_size), step=step)
        figures[f"update_{step}"] = _peak(backend) - before
    if not keeps_freed:
        ctypes.CDLL(None).malloc_trim(0)  # of all threads' arenas: the thresholds hold for the ends of some only
    figures["update_kept"] = _now(backend) - before
    (out / f"{backend.rank}_{FIGURES}").write_text(json.dumps(figures), encoding="utf-8")
    backend.close()


def _groups(vocab_size: int, group_size: int) -> list[TrajectoryGroup]:
    def episode(number: int) -> Trajectory:
        sampled = tuple((number + place) % (vocab_size - 10) + 5 for place in range(NUM_SAMPLED))
        completion = Completion(
            token_ids=sampled, logprobs=(-9.0,) * NUM_SAMPLED, finish_reason=FinishReason.STOP, weight_version=0
        )
        turn = Turn(
            prompt_token_ids=tuple(range(5, 5 + NUM_PROMPT)),
            completion=completion,
            message=Message.assistant(""),
            env_messages=(),
        )
        return Trajectory(
            task_id="t", group_id="g", turns=(turn,), stop_reason=StopReason.FINISHED, reward=float(number % 2)
        )

    return [TrajectoryGroup(task_id="t", trajectories=tuple(episode(number) for number in range(group_size)))]


def _return_freed_memory() -> None:
    library = ctypes.CDLL(None)
    library.mallopt(-3, 2**16)  # M_MMAP_THRESHOLD
    library.mallopt(-1, 2**16)  # M_TRIM_THRESHOLD


def _warm_up() -> None:
    """What PyTorch sets up at its first product and its first backward pass is no model's."""
    layer = torch.nn.Linear(64, 64)
    layer(torch.ones(8, 64)).sum().backward()


def _forget_peak(backend: Backend) -> None:
    if backend.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM begins again at what is resident


def _now(backend: Backend) -> int:
    return torch.cuda.memory_allocated() if backend.device.type == "cuda" else _status("VmRSS")


def _peak(backend: Backend) -> int:
    return torch.cuda.max_memory_allocated() if backend.device.type == "cuda" else _status("VmHWM")


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))
