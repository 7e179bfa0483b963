"""The real update (`PolicyUpdater`) at published shapes: MFU, tokens/s and peak memory, beside plain Hugging Face.

Plain is what a short script does: rows padded to the longest, `model(...).logits` of all tokens, log-softmax, backward,
fused AdamW; same weights, episodes and number format, and a micro-batch of as many places. Memory is compared with
`agent_rl.planning`, which also decides about gradient checkpointing. Not here: other trainers, several GPUs.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from acceptance.figures import Recorder, Setting
from acceptance.models import forget, kernel_seconds, made_up_step, make_model, model_config, update_config, wait_for
from torch import Tensor, nn
from transformers import PreTrainedConfig

from agent_rl.config import Config
from agent_rl.distributed.backend import Backend
from agent_rl.errors import ConfigError
from agent_rl.learning.update import PolicyUpdater
from agent_rl.planning import memory
from agent_rl.planning.fit import total
from agent_rl.planning.gpus import Gpu, find_gpu
from agent_rl.planning.layout import Layout
from agent_rl.planning.machine import GIB, Machine
from agent_rl.planning.shapes import shape_of
from agent_rl.records import TrajectoryGroup

UPDATES = 2
"""After a warm-up, which also makes the optimizer's state."""
PROFILED = (("0.5B", "4k"), ("7B", "32k"))
"""The smallest case and the largest."""
LAYERS_AT_A_TIME = 4
"""Layers are left out in such steps where the plan says that the GPU cannot hold the model otherwise."""


def measure_half_billion(setting: Setting, out: Recorder) -> None:
    measure("0.5B", setting, out)


def measure_one_and_a_half(setting: Setting, out: Recorder) -> None:
    measure("1.5B", setting, out)


def measure_seven(setting: Setting, out: Recorder) -> None:
    measure("7B", setting, out)


def measure(shape: str, setting: Setting, out: Recorder) -> None:
    """Micro-batches of 4,096, 16,384 and 32,768 tokens; of the smallest and largest case also where time goes."""
    sizes = setting.pick({"4k": 4096, "16k": 16_384, "32k": 32_768}, {"4k": 96, "16k": 192, "32k": 256})
    for name, tokens in sizes.items():
        config, model_settings = _choose(shape, name, tokens, setting, out)
        step = made_up_step(tokens, model_settings.vocab_size)
        with_profile = (shape, name) in PROFILED and setting.is_gpu
        case = (config, model_settings, step, setting, out, name)
        own = _guarded(partial(_ours, *case, with_profile), out, name)
        forget(setting.device)
        plain = _guarded(partial(_plain, *case), out, f"{name}_plain")
        forget(setting.device)
        if own is not None and plain is not None:
            out.figure(f"{name}_speedup", plain / own)


def _choose(shape: str, name: str, tokens: int, setting: Setting, out: Recorder) -> tuple[Config, PreTrainedConfig]:
    """The configuration of a case: gradient checkpointing, and fewer layers, where the plan needs them."""
    window = tokens + 1
    full = model_config(shape, setting, window=window)
    gpu = _gpu(setting, out)
    for num_layers in range(full.num_hidden_layers, 0, -LAYERS_AT_A_TIME):
        settings = model_config(shape, setting, window=window, num_hidden_layers=num_layers)
        for checkpointing in (False, True):
            section = {"dtype": "bfloat16", "gradient_checkpointing": checkpointing}
            config = update_config(setting.device, window=window, micro_batch_tokens=tokens, model=section)
            if gpu is None or _needed(config, settings) <= 0.95 * gpu.memory:
                out.figure(f"{name}_checkpointing", int(checkpointing))
                out.figure(f"{name}_layers", num_layers)
                return config, settings
    raise ConfigError(f"{shape} with {tokens} tokens fits no layer on this GPU, says the plan; use a larger one")


def _gpu(setting: Setting, out: Recorder) -> Gpu | None:
    if not setting.is_gpu:
        return None
    try:
        return find_gpu(torch.cuda.get_device_name(0), torch.cuda.get_device_properties(0).total_memory / GIB)
    except ConfigError as error:
        out.note(f"no plan for this GPU: {error}")
        return None


def _job(config: Config, settings: PreTrainedConfig) -> memory.Job:
    overhead = (Machine().overhead_gib or 0) * GIB
    return memory.Job(shape=shape_of(settings, "-"), config=config, layout=Layout(), overhead=overhead)


def _needed(config: Config, settings: PreTrainedConfig) -> float:
    """Bytes of the update by the plan, libraries and fragmentation included."""
    job = _job(config, settings)
    return job.overhead + total(memory.resident(job)) + total(memory.transient(job))


def planned_peak(config: Config, settings: PreTrainedConfig) -> float:
    """Bytes of tensors at the update's peak by the plan, as PyTorch's allocator counts what is allocated."""
    job = _job(config, settings)
    passing = [item for item in memory.transient(job) if not item.name.startswith("fragmentation")]
    return total(memory.resident(job)) + total(passing)


def _guarded(run: Callable[[], float], out: Recorder, name: str) -> float | None:
    """Seconds, or None where memory was too small, which is a result too."""
    try:
        return run()
    except torch.OutOfMemoryError:
        for figure in ("s", "mfu"):
            out.figure(f"{name}_{figure}", "out of memory")
        return None


def _ours(
    config: Config,
    settings: PreTrainedConfig,
    step: Sequence[TrajectoryGroup],
    setting: Setting,
    out: Recorder,
    name: str,
    with_profile: bool,
) -> float:
    forget(setting.device)
    model = _ready(config, settings, setting)
    updater = PolicyUpdater(model, config, Backend(setting.device))
    seconds, metrics = [], {}
    for number in range(1 + UPDATES):
        started = time.perf_counter()
        metrics = updater.update(step, step=number).metrics  # numbers on the CPU: the device is done
        seconds.append(time.perf_counter() - started)
    update_s = statistics.median(seconds[1:])
    # `perf/*` are of the last update.
    to_median = seconds[-1] / update_s
    out.figure(f"{name}_s", update_s)
    out.figure(f"{name}_tokens_per_s", metrics["perf/update_tokens_per_s"] * to_median)
    out.figure(f"{name}_mfu", metrics["perf/mfu"] * to_median)
    out.figure(f"{name}_micro_batches", int(metrics["batch/num_micro_batches"]))
    if setting.is_gpu:
        allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        out.figure(f"{name}_allocated_gib", allocated / GIB)
        out.figure(f"{name}_reserved_gib", reserved / GIB)
        out.figure(f"{name}_reserved_share", reserved / allocated)
        out.figure(f"{name}_peak_share", allocated / planned_peak(config, settings))
    if with_profile:
        _profile(lambda: updater.update(step, step=1 + UPDATES), out, name)
    return update_s


def _ready(config: Config, settings: PreTrainedConfig, setting: Setting) -> nn.Module:
    model = make_model(settings, setting.device, torch.bfloat16)
    if config.model.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


PRODUCTS = ("gemm", "cutlass", "cublas", "nvjet", "xmma", "matmul")
ATTENTION = ("flash", "fmha", "attention")


def _profile(run: Callable[[], Any], out: Recorder, name: str) -> None:
    kernels = kernel_seconds(run)
    whole = sum(kernels.values())
    out.figure(f"{name}_kernels_s", whole)
    attention = {key for key in kernels if any(word in key.lower() for word in ATTENTION)}
    products = {key for key in kernels if any(word in key.lower() for word in PRODUCTS)} - attention
    out.figure(f"{name}_share_products", sum(kernels[key] for key in products) / whole)
    out.figure(f"{name}_share_attention", sum(kernels[key] for key in attention) / whole)
    out.figure(f"{name}_share_others", sum(kernels[key] for key in kernels.keys() - products - attention) / whole)
    longest = sorted(kernels, key=kernels.__getitem__, reverse=True)[:8]
    out.note("longest kernels: " + "; ".join(f"{key[:60]} {kernels[key]:.2f} s" for key in longest))


def _plain(
    config: Config,
    settings: PreTrainedConfig,
    step: Sequence[TrajectoryGroup],
    setting: Setting,
    out: Recorder,
    name: str,
) -> float:
    """Seconds of an update by plain Hugging Face."""
    forget(setting.device)
    model = _ready(config, settings, setting).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    batches = padded_batches(step, config.train.micro_batch_tokens, setting.device)
    num_tokens = sum(int(trained.sum()) for _, trained, _ in batches)

    def update() -> None:
        for ids, trained, advantages in batches:
            logprobs = F.log_softmax(model(input_ids=ids, use_cache=False).logits[:, :-1].float(), dim=-1)
            chosen = logprobs.gather(-1, ids[:, 1:, None])[..., 0]
            (-(chosen * advantages[:, None] * trained).sum() / num_tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    seconds = []
    for _ in range(1 + UPDATES):
        wait_for(setting.device)
        started = time.perf_counter()
        update()
        wait_for(setting.device)
        seconds.append(time.perf_counter() - started)
    plain_s = statistics.median(seconds[1:])
    out.figure(f"{name}_plain_s", plain_s)
    if setting.is_gpu:
        out.figure(f"{name}_plain_allocated_gib", torch.cuda.max_memory_allocated() / GIB)
    return plain_s


def padded_batches(
    step: Sequence[TrajectoryGroup], most_tokens: int, device: str
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Rows of like length together, at most `most_tokens` places: ids [B, T], trained [B, T - 1], advantages [B].

    Causal attention never looks at the padding on the right, so that no mask keeps it from the fastest kernel.
    """
    rows = []
    for group in step:
        mean = statistics.mean(episode.reward for episode in group.trajectories)
        for episode in group.trajectories:
            turn = episode.turns[0]
            prompt, sampled = turn.prompt_token_ids, turn.completion.token_ids
            rows.append(([*prompt, *sampled], len(prompt), episode.reward - mean))
    rows.sort(key=lambda row: len(row[0]), reverse=True)
    batches = []
    while rows:
        width = len(rows[0][0])
        count = max(1, most_tokens // width)
        taken, rows = rows[:count], rows[count:]
        ids = torch.zeros(len(taken), width, dtype=torch.long)
        trained = torch.zeros(len(taken), width - 1)
        for index, (tokens, num_prompt, _) in enumerate(taken):
            ids[index, : len(tokens)] = torch.tensor(tokens)
            trained[index, num_prompt - 1 : len(tokens) - 1] = 1.0
        advantages = torch.tensor([advantage for *_, advantage in taken])
        batches.append((ids.to(device), trained.to(device), advantages.to(device)))
    return batches
