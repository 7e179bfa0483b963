"""Our GRPOTrainer on a workload: `python benchmarks/stepping/train_step_ours.py run WORKLOAD.json READINGS.json`.

Started by `train_step.py`, as is `prepare`, which makes the folder of a model with random weights and the prompts of
a workload. With `--profile` the last update runs under PyTorch's profiler. Not here: tables, other trainers.
"""

import agent_rl  # noqa: F401, I001  first: says how long PyTorch's threads wait

import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from train_step_parts import Readings, Workload, require_lengths, reset_peak, resident, share_of_vowels
from train_step_profile import print_profile
from transformers import AutoTokenizer

from agent_rl import AgentEnv, Config, GRPOTrainer, Message, SamplingParams, StepResult
from agent_rl.agent.chat_format import ChatFormat
from agent_rl.config import parse_config
from agent_rl.learning.update import UpdateResult
from agent_rl.policies.in_process_policy import InProcessPolicy
from agent_rl.records import Completion, FinishReason, TrajectoryGroup
from agent_rl.telemetry.flops import peak_flops
from agent_rl.modeling.minimind import MiniMindConfig, MiniMindForCausalLM

ROOT = Path(__file__).resolve().parents[2]
SMALL = MiniMindConfig(
    hidden_size=256,
    intermediate_size=704,
    num_hidden_layers=5,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=1024,
    qk_norm=False,  # so that the folder is a plain Llama's
)
WORDS = [
    "one",
    "small",
    "green",
    "book",
    "and",
    "two",
    "old",
    "red",
    "boats",
    "lie",
    "near",
    "the",
    "blue",
    "house",
    "of",
    "our",
    "good",
    "friend",
]

app = typer.Typer()


@app.command()
def prepare(
    folder: Path,
    smollm2: Annotated[Path | None, typer.Option()] = None,
    num_prompts: Annotated[int, typer.Option()] = 2,
    group_size: Annotated[int, typer.Option()] = 8,
    prompt_tokens: Annotated[int, typer.Option()] = 64,
    num_new: Annotated[int, typer.Option()] = 128,
    steps: Annotated[int, typer.Option()] = 4,
) -> None:
    """Write `workload.json`, and weights where `smollm2` is not given, into `folder`."""
    source = smollm2
    if source is None:
        torch.manual_seed(0)
        source = folder / "model"
        words = AutoTokenizer.from_pretrained(ROOT / "model/nat_minimind")
        words.save_pretrained(source)
        MiniMindForCausalLM(replace(SMALL, vocab_size=len(words))).save_pretrained(source)
    tokenizer = AutoTokenizer.from_pretrained(source)
    chat_format = ChatFormat(tokenizer)
    prompts = make_prompts(tokenizer, chat_format, count=num_prompts * steps, num_tokens=prompt_tokens)
    Workload(
        name="Llama 4.7M" if smollm2 is None else "SmolLM2 135M",
        model=str(source),
        policy="minimind" if smollm2 is None else "huggingface",
        prompts=prompts,
        num_prompts=num_prompts,
        group_size=group_size,
        num_new=num_new,
        longest_prompt=max(len(chat_format.render_prompt([Message.user(prompt)])) for prompt in prompts),
    ).write(folder / "workload.json")


def make_prompts(tokenizer: Any, chat_format: ChatFormat, *, count: int, num_tokens: int) -> list[str]:
    """User messages of random words, each with its template at least `num_tokens` long and hardly more.

    Both trainers must read the same ids: what our chat format renders is what the tokenizer's own method does.
    """
    choose = random.Random(0)
    prompts = []
    for _ in range(count):
        words: list[str] = []
        ids: list[int] = []
        while len(ids) < num_tokens:
            words.append(choose.choice(WORDS))
            ids = chat_format.render_prompt([Message.user(" ".join(words))])
        prompts.append(" ".join(words))
        chat = [{"role": "user", "content": prompts[-1]}]
        if ids != tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False):
            raise SystemExit(f"{tokenizer.name_or_path}: the two trainers would not read the same prompt")
    return prompts


class VowelEnv(AgentEnv):
    """One turn; the share of vowels in it is the reward."""

    def reset(self, task: dict[str, Any]) -> list[Message]:
        return [Message.user(task["prompt"])]

    def step(self, message: Message) -> StepResult:
        return StepResult(reward=share_of_vowels(message.content), terminated=True)


@app.command()
def run(
    workload_file: Path,
    out: Path,
    micro_batch_tokens: Annotated[int, typer.Option()] = 8192,
    profile: Annotated[bool, typer.Option("--profile")] = False,
) -> None:
    """Train the workload's steps and write what was seen."""
    workload, readings = Workload.read(workload_file), Readings(libraries=resident())
    tasks = [{"task_id": str(index), "prompt": prompt} for index, prompt in enumerate(workload.prompts)]
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(workload, folder, micro_batch_tokens=micro_batch_tokens)
        with GRPOTrainer.from_config(config, env_factory=VowelEnv, train_tasks=tasks) as trainer:
            readings.weights = sum(parameter.nbytes for parameter in trainer.policy.model.parameters())
            prompt_lengths = draw_exactly(trainer.policy, workload.num_new)
            watch_updates(trainer, readings, profile_step=workload.num_steps if profile else None)
            reset_peak()
            trainer.train()
        lines = (Path(folder) / config.run.name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    readings.num_prompt_tokens = sum(prompt_lengths)
    rows = [row for row in map(json.loads, lines) if "time/update_s" in row]
    readings.rollout_s = [row["time/rollout_s"] for row in rows]
    readings.update_s = [row["time/update_s"] for row in rows]
    last = {name: rows[-1][name] for name in ("perf/mfu", "perf/update_tokens_per_s", "batch/num_micro_batches")}
    readings.extra = last | {"peak_flops": peak_flops(torch.device("cpu"), torch.float32)}
    readings.write(out)


def make_config(workload: Workload, folder: str, *, micro_batch_tokens: int) -> Config:
    raw = {
        "run": {"name": "run", "output_dir": folder, "device": "cpu"},
        "data": {"train_path": "-", "eval_path": "-"},
        "env": {"name": "-"},
        "model": {"path": workload.model},
        "policy": {
            "type": workload.policy,
            "max_new_tokens": workload.num_new,
            "max_context": workload.longest_prompt + workload.num_new,
            "max_batch_size": workload.num_episodes,
        },
        "rollout": {
            "group_size": workload.group_size,
            "groups_per_step": workload.num_prompts,
            "async_workers": workload.num_episodes,
            "episode_timeout_s": 3600,
        },
        "train": {
            "steps": workload.num_steps,
            "learning_rate": workload.learning_rate,
            "schedule": "constant",
            "micro_batch_tokens": micro_batch_tokens,
        },
        "eval": {"temperatures": []},
        "log": {"trackers": [], "progress": False},
        "checkpoint": {"every": 0},
    }
    return parse_config(raw, source=__file__)


def draw_exactly(policy: InProcessPolicy, num_new: int) -> list[int]:
    """Let no completion stop early; the environment sees each as one that ended by itself.

    The list returned takes the length of every prompt from then on.
    """
    generate, prompt_lengths = policy.generate, []

    def exactly(prompt_ids: Sequence[int], sampling: SamplingParams, cancel: Any = None) -> Completion:
        prompt_lengths.append(len(prompt_ids))
        completion = generate(prompt_ids, replace(sampling, stop_token_ids=()), cancel)
        require_lengths([len(completion.token_ids)], num_new)
        return replace(completion, finish_reason=FinishReason.STOP)

    policy.generate = exactly
    return prompt_lengths


def watch_updates(trainer: GRPOTrainer, readings: Readings, *, profile_step: int | None) -> None:
    """Note when each update ends; that of `profile_step` (1 is the first) is profiled and its time means nothing."""
    update = trainer.update

    def watched(groups: Sequence[TrajectoryGroup]) -> UpdateResult:
        if trainer.step + 1 != profile_step:
            result = update(groups)
        else:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
                result = update(groups)
            print_profile(profiler)
        readings.end_step()
        return result

    trainer.update = watched


if __name__ == "__main__":
    app()
