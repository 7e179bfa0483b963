"""One update on made-up episodes of a Qwen2-shaped model with random weights: tokens/s, MFU, peak memory as JSON.

    python benchmarks/train_step_update.py --shape 0.6B --tokens 4096 --device cuda

Started by `train_step.py --device cuda`, a process for each case. Not here: generation, environments, other trainers.
"""

import agent_rl  # noqa: F401, I001  first: says how long PyTorch's threads wait

import json
import math
import random
import statistics
import time
from typing import Annotated

import torch
import typer
from train_step_parts import peak_of_tree
from train_step_profile import print_profile
from transformers import AutoModelForCausalLM, Qwen2Config

from agent_rl import Message, TrajectoryGroup
from agent_rl.config import Config, parse_config
from agent_rl.learning.update import PolicyUpdater
from agent_rl.distributed.backend import Backend
from agent_rl.records import Completion, FinishReason, StopReason, Trajectory, Turn

SHAPES = {
    # hidden, intermediate, layers, heads, key-value heads, head_dim, vocabulary
    "tiny": (64, 176, 2, 4, 2, 16, 512),
    "0.6B": (1024, 3072, 28, 16, 8, 128, 151_936),
    "1.5B": (1536, 8960, 28, 12, 2, 128, 151_936),
}
"""0.6B has the sizes of Qwen3-0.6B, which others publish figures of, and Qwen2's layers; 1.5B is Qwen2.5-1.5B."""


def main(
    shape: Annotated[str, typer.Option(help="tiny, 0.6B or 1.5B")] = "0.6B",
    tokens: Annotated[int, typer.Option(help="Tokens of every episode, an eighth of them a prompt.")] = 4096,
    device: Annotated[str, typer.Option()] = "cuda",
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32")] = "bfloat16",
    groups: Annotated[int, typer.Option(help="Groups of a step.")] = 2,
    group_size: Annotated[int, typer.Option(min=2)] = 4,
    micro_batch_tokens: Annotated[int, typer.Option(help="Most tokens of one forward and backward pass.")] = 16_384,
    gradient_checkpointing: Annotated[bool, typer.Option()] = False,
    steps: Annotated[int, typer.Option(min=1, help="Updates besides the warm-up.")] = 4,
    profile: Annotated[bool, typer.Option("--profile", help="Also profile one more update.")] = False,
) -> None:
    """Measure and print one line of JSON."""
    settings = {"dtype": dtype, "gradient_checkpointing": gradient_checkpointing}
    config = make_config(settings, device, window=tokens + 1, micro_batch_tokens=micro_batch_tokens)
    model = make_model(shape, tokens=tokens, device=device, dtype=getattr(torch, dtype))
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    updater = PolicyUpdater(model, config, Backend(device))
    step = made_up_step(num_groups=groups, group_size=group_size, num_tokens=tokens, vocab_size=model.vocab_size)
    seconds, metrics = [], {}
    for number in range(1 + steps):
        started = time.perf_counter()
        metrics = updater.update(step, step=number).metrics  # its metrics are numbers on the CPU: the device is done
        seconds.append(time.perf_counter() - started)
    if profile:
        with torch.profiler.profile() as profiler:
            updater.update(step, step=1 + steps)
        print_profile(profiler)
    update_s = statistics.median(seconds[1:])
    # `perf/*` are of the last update: work by time is the same for all.
    to_median = seconds[-1] / update_s
    is_cuda = device.startswith("cuda")
    found = {
        "device": torch.cuda.get_device_name(device) if is_cuda else "CPU",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "update_s": update_s,
        "tokens_per_s": metrics["perf/update_tokens_per_s"] * to_median,
        "mfu": metrics["perf/mfu"] * to_median,
        "peak_bytes": torch.cuda.max_memory_allocated(device) if is_cuda else peak_of_tree(),
        "micro_batches": int(metrics["batch/num_micro_batches"]),
    }
    print(json.dumps(found))


def make_model(shape: str, *, tokens: int, device: str, dtype: torch.dtype) -> torch.nn.Module:
    """Random weights, initialised where they will lie."""
    hidden, intermediate, layers, heads, key_value_heads, head_dim, vocabulary = SHAPES[shape]
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
        max_position_embeddings=tokens + 1,
        tie_word_embeddings=True,
    )
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def make_config(model: dict, device: str, *, window: int, micro_batch_tokens: int) -> Config:
    raw = {
        "run": {"device": device},
        "data": {"train_path": "-", "eval_path": "-"},
        "env": {"name": "-"},
        "model": {"path": "-", **model},
        "policy": {"type": "huggingface", "max_context": window, "max_new_tokens": window - 1},
        "train": {"steps": 1_000, "learning_rate": 1e-6, "micro_batch_tokens": micro_batch_tokens},
    }
    return parse_config(raw, source=__file__)


def made_up_step(*, num_groups: int, group_size: int, num_tokens: int, vocab_size: int) -> list[TrajectoryGroup]:
    """Groups of one turn with random ids and rewards; the log-probs are about those of random weights."""
    choose = random.Random(0)
    num_prompt = max(1, num_tokens // 8)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(choose.choices(range(vocab_size), k=count))

    def episode(prompt: tuple[int, ...], group: int) -> Trajectory:
        completion_ids = ids(num_tokens - num_prompt)
        completion = Completion(
            token_ids=completion_ids,
            logprobs=(-math.log(vocab_size),) * len(completion_ids),
            finish_reason=FinishReason.STOP,
            weight_version=0,
        )
        turn = Turn(prompt_token_ids=prompt, completion=completion, message=Message.assistant(""), env_messages=())
        return Trajectory(
            task_id=str(group),
            group_id=str(group),
            turns=(turn,),
            stop_reason=StopReason.FINISHED,
            reward=choose.random(),
        )

    return [
        TrajectoryGroup(task_id=str(group), trajectories=tuple(episode(prompt, group) for _ in range(group_size)))
        for group, prompt in enumerate(ids(num_prompt) for _ in range(num_groups))
    ]


if __name__ == "__main__":
    typer.run(main)
