"""Steps of made-up episodes, and a program that learns from them with any configuration, in one process or in many."""

import json
import random
from pathlib import Path
from typing import Any

import torch
from fakes import tiny_config

from agent_rl.agent.messages import Message
from agent_rl.config import Config
from agent_rl.distributed.backend import Backend
from agent_rl.learning.update import PolicyUpdater
from agent_rl.modeling.minimind import MiniMindForCausalLM
from agent_rl.policies.hf_policy import HuggingFaceModel
from agent_rl.policies.make_policy import load_reference_model, make_in_process_policy
from agent_rl.records import Completion, FinishReason, StopReason, Trajectory, TrajectoryGroup, Turn

REPORT = "report.json"


def make_step(seed: int, *, group_size: int = 3) -> list[TrajectoryGroup]:
    """Episodes of one or two turns on a prompt that the group shares, and often a few of the first sampled ids; the
    second group has zero variance.

    One episode has no score, one was cut off, one starts a second context.
    """
    random_, alike, earned = random.Random(seed), random.Random(f"alike {seed}"), random.Random(f"earned {seed}")

    def ids(count: int) -> tuple[int, ...]:
        return tuple(random_.randrange(5, 20) for _ in range(count))

    def turn(prompt: tuple[int, ...], *, new_context: bool = False) -> Turn:
        own = ids(random_.randrange(1, 7))
        num_alike = alike.randrange(5)
        sampled = ((8, 9, 8, 7)[:num_alike] + own[num_alike:])[: len(own)]
        completion = Completion(
            token_ids=sampled,
            logprobs=tuple(random_.uniform(-3.5, -2.5) for _ in sampled),
            finish_reason=FinishReason.STOP,
            weight_version=0,
        )
        return Turn(
            prompt_token_ids=prompt,
            completion=completion,
            message=Message.assistant(""),
            env_messages=(),
            new_context=new_context,
            reward=round(earned.random(), 2),
        )

    groups = []
    for group in range(4):
        prompt = ids(random_.randrange(2, 12))
        episodes = []
        for sample in range(group_size + 1):
            turns = [turn(prompt)]
            if random_.random() < 0.5:
                turns.append(turn(ids(2), new_context=(group, sample) == (0, 0)))
            is_lost, is_cut_off = (group, sample) == (2, 1), (group, sample) == (3, 0)
            reason = StopReason.ENV_ERROR if is_lost else StopReason.MAX_TOKENS if is_cut_off else StopReason.FINISHED
            reward = 0.5 if group == 1 else round(random_.random(), 2)
            episodes.append(
                Trajectory(
                    task_id=f"t{group}",
                    group_id=f"g{group}",
                    turns=tuple(turns),
                    stop_reason=reason,
                    reward=None if is_lost else reward,
                    reward_parts={} if is_lost else {"a": reward, "b": round(random_.random(), 2)},
                )
            )
        groups.append(TrajectoryGroup(task_id=f"t{group}", trajectories=tuple(episodes[:-1]), greedy=episodes[-1]))
    return groups


def make_updater(folder: Path, backend: Backend, config: Config) -> PolicyUpdater:
    """Of the tiny model in `folder`/model; the reference is another one, or the model without its adapters."""
    if config.policy.type == "vllm":  # whose model is loaded as shards where the back end has shards
        model = HuggingFaceModel.from_pretrained(
            config.model.path,
            max_context=config.policy.max_context,
            dtype=config.model.dtype,
            gradient_checkpointing=config.model.gradient_checkpointing,
            lora=config.model.lora,
            loading=backend.sharded_loading(getattr(torch, config.model.dtype)),
        )
        loaded = [weight for name, weight in model.module.named_parameters() if "lora_" not in name]
        assert (sum(weight.numel() for weight in loaded) == 0) == (backend.zero_stage == 3)
        return PolicyUpdater(model.module, config, backend, reference_model=load_reference_model(config, backend))
    if config.policy.type == "huggingface":
        policy = make_in_process_policy(config, device=backend.device)
        policy.close()
        return PolicyUpdater(policy.model, config, backend)
    reference = None
    if config.algorithm.kl.coef:
        reference = MiniMindForCausalLM.from_pretrained(folder / "reference")
    return PolicyUpdater(
        MiniMindForCausalLM.from_pretrained(folder / "model"), config, backend, reference_model=reference
    )


def learn(
    folder: Path,
    sections: dict[str, Any],
    *,
    num_steps: int = 5,
    group_size: int = 3,
    backend: Backend | None = None,
) -> list[dict[str, float]]:
    """Metrics of `num_steps` updates, timings left out."""
    backend = backend or Backend("cpu")
    updater = make_updater(folder, backend, tiny_config(folder, **sections))
    steps = [make_step(step, group_size=group_size) for step in range(num_steps)]
    metrics = []
    for step, groups in enumerate(steps):
        updater.park()
        updater.park()  # as at the start of a run that goes back at once
        updater.unpark()
        metrics.append(updater.update(groups, step=step).metrics)
    return [{key: value for key, value in row.items() if not key.startswith("perf/")} for row in metrics]


def report(folder: Path, out: Path, sections: dict[str, Any], group_size: int = 3) -> None:
    """`learn` as a program of many processes: each writes what it found."""
    backend = Backend("cpu", timeout_s=60)
    metrics = learn(folder, sections, group_size=group_size, backend=backend)
    (out / f"{backend.rank}_{REPORT}").write_text(json.dumps(metrics), encoding="utf-8")
    backend.close()
