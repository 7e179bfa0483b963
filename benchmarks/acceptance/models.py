"""Models with random weights, made-up steps of training and timing, for all parts of the acceptance run.

Also says whether this PyTorch's attention over segments of any length takes what `agent_rl` gives it; where not,
`use_what_fits` goes on with a call a segment and notes it. Not here: what is measured.
"""

import gc
import inspect
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from acceptance.figures import Recorder, Setting
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from agent_rl.agent.messages import Message
from agent_rl.config import Config, parse_config
from agent_rl.modeling import packed_attention
from agent_rl.planning.shapes import SHIPPED
from agent_rl.records import Completion, FinishReason, StopReason, Trajectory, TrajectoryGroup, Turn

NAMES = {
    "0.5B": "Qwen/Qwen2.5-0.5B-Instruct",
    "1.5B": "Qwen/Qwen2.5-Coder-1.5B-Instruct",
    "7B": "Qwen/Qwen2.5-Coder-7B-Instruct",
}
TINY = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 512,
    "tie_word_embeddings": True,
}
_GIVEN_TO_VARLEN = ("scale", "window_size")
"""Keywords with which `packed_attention` calls every `varlen_attn`."""


def model_config(shape: str, setting: Setting, *, window: int, **changes: Any) -> PreTrainedConfig:
    """Qwen2.5's sizes by name (0.5B, 1.5B, 7B); always the tiny ones in a tiny run."""
    sizes = dict(setting.pick(SHIPPED[NAMES[shape]], TINY)) | changes
    return AutoConfig.for_model(sizes.pop("model_type"), max_position_embeddings=window, **sizes)


def make_model(config: PreTrainedConfig, device: str, dtype: torch.dtype, *, attention: str = "sdpa") -> nn.Module:
    """Random weights, the same for the same config, initialised where they will lie."""
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention).eval()


def update_config(device: str, *, window: int, micro_batch_tokens: int, **sections: dict[str, Any]) -> Config:
    """Of an update alone: nothing is sampled, no file is read."""
    raw: dict[str, dict[str, Any]] = {
        "run": {"device": device},
        "data": {"train_path": "-", "eval_path": "-"},
        "env": {"name": "-"},
        "model": {"path": "-"},
        "policy": {"type": "huggingface", "max_context": window, "max_new_tokens": window - 1},
        "train": {"steps": 1_000, "learning_rate": 1e-6, "micro_batch_tokens": micro_batch_tokens},
    }
    merged = {name: raw.get(name, {}) | sections.get(name, {}) for name in raw.keys() | sections.keys()}
    return parse_config(merged, source=__file__)


def made_up_step(tokens: int, vocab_size: int, *, num_groups: int = 3) -> list[TrajectoryGroup]:
    """Groups of four episodes of one turn, unequally long: a group fills `tokens`, its prompt counted once.

    Ids and rewards are random, log-probs about those of random weights.
    """
    choose = random.Random(0)
    num_prompt = max(1, tokens // 16)
    most = int(0.97 * tokens) - num_prompt

    def ids(count: int) -> tuple[int, ...]:
        return tuple(choose.choices(range(vocab_size), k=count))

    def episode(group: int, prompt: tuple[int, ...], num_sampled: int, reward: float) -> Trajectory:
        sampled = ids(num_sampled)
        completion = Completion(
            token_ids=sampled,
            logprobs=(-math.log(vocab_size),) * len(sampled),
            finish_reason=FinishReason.STOP,
            weight_version=0,
        )
        turn = Turn(prompt_token_ids=prompt, completion=completion, message=Message.assistant(""), env_messages=())
        names = {"task_id": str(group), "group_id": str(group)}
        return Trajectory(**names, turns=(turn,), stop_reason=StopReason.FINISHED, reward=reward)

    groups = []
    for group in range(num_groups):
        prompt = ids(num_prompt)
        episodes = tuple(episode(group, prompt, share * most // 10, float(share % 2)) for share in (1, 2, 3, 4))
        groups.append(TrajectoryGroup(task_id=str(group), trajectories=episodes))
    return groups


def seconds_of(run: Callable[[], Any], device: str, repeats: int) -> float:
    """Median wall time after a warm-up; waits for the device."""
    seconds = []
    for _ in range(1 + repeats):
        wait_for(device)
        started = time.perf_counter()
        run()
        wait_for(device)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def wait_for(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def forget(device: str) -> None:
    """Give memory that nothing holds back to the device, and begin its peak anew."""
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def kernel_seconds(run: Callable[[], Any]) -> dict[str, float]:
    """Seconds of each kernel by name that `run` starts on the GPU."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    on_gpu = [row for row in profiler.key_averages() if row.device_type == torch.autograd.DeviceType.CUDA]
    return {row.key: row.self_device_time_total / 1e6 for row in on_gpu}


def varlen_problem() -> str:
    """What of this PyTorch's `varlen_attn` is not as `packed_attention` calls it; empty if nothing."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return "torch.nn.attention.varlen is missing"
    missing = [name for name in _GIVEN_TO_VARLEN if name not in inspect.signature(varlen_attn).parameters]
    return f"varlen_attn has no {', '.join(missing)}" if missing else ""


def use_what_fits(setting: Setting, out: Recorder) -> None:
    """For the rest of this process a call a segment, where one call for all would be refused by this PyTorch."""
    if setting.is_gpu and (problem := varlen_problem()):
        packed_attention._VARLEN_FORMATS = ()
        out.note(f"PyTorch {torch.__version__}: {problem}, so that segments were attended to by a call each")


@contextmanager
def a_call_a_segment() -> Iterator[None]:
    """Inside, attention over segments is never one call."""
    before, packed_attention._VARLEN_FORMATS = packed_attention._VARLEN_FORMATS, ()
    try:
        yield
    finally:
        packed_attention._VARLEN_FORMATS = before


def largest_gap(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference of two tensors; of numbers above 1 as a share of them. Not a number where one is not."""
    found, wanted = found.detach().double().cpu(), wanted.detach().double().cpu()
    return float(((found - wanted).abs() / wanted.abs().clamp(min=1)).max())


def largest_gradient_gap(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float:
    """The largest difference of gradients, each as a share of the largest number of its tensor."""
    gaps = []
    for one, other in zip(found, wanted, strict=True):
        a, b = one.detach().double().cpu(), other.detach().double().cpu()
        gaps.append(float((a - b).abs().max() / b.abs().max().clamp(min=1e-12)))
    return max(gaps, key=lambda gap: (math.isnan(gap), gap))
