"""Compares a plan with real updates on fake tensors, phase by phase: `verify(plan)` behind `agent-rl plan --verify`.

What is run is the update itself (`fake/update_run.py`); what DeepSpeed, CUDA's libraries and the allocator hold stays
arithmetic, and is named as such. Does not: change the plan, print (`fake/report.py`), estimate time.
"""

import time
from dataclasses import dataclass

import torch

from agent_rl.errors import ConfigError
from agent_rl.planning import memory
from agent_rl.planning.fake.live_bytes import LiveBytes
from agent_rl.planning.fake.pretended_gpu import pretended_gpu
from agent_rl.planning.fake.update_run import (
    MicroBatchShape,
    UpdateBytes,
    allocate,
    build_model,
    choose_micro_batch,
    run_update,
)
from agent_rl.planning.fit import total
from agent_rl.planning.memory import Item, Job
from agent_rl.planning.plan import RunPlan
from agent_rl.planning.shapes import model_config

TOLERANCE = 0.1
"""By which share a planned figure may differ from what is run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPhase:
    """`ComparedPhase(phase="backward", what="...", planned=2e9, found=1.9e9)`; bytes of one process."""

    phase: str
    what: str
    planned: float
    found: float

    @property
    def ratio(self) -> float:
        """Planned to found."""
        return self.planned / self.found if self.found else (1.0 if not self.planned else float("inf"))

    @property
    def is_close(self) -> bool:
        return abs(self.ratio - 1.0) <= TOLERANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was compared, and what was not."""

    phases: tuple[ComparedPhase, ...]
    not_run: tuple[Item, ...]
    """Items of the plan's update that are arithmetic."""
    micro_batch: MicroBatchShape
    products: dict[str, int]
    """Multiplications and additions of an update's matrix products by the number format of their factors."""
    attentions: dict[str, int]
    """Calls of fused attention by number format."""
    is_half: bool
    """Whether the configuration asks for bfloat16, in its weights or by autocast."""
    seconds: float

    @property
    def differing(self) -> tuple[str, ...]:
        """Phases beyond the tolerance."""
        return tuple(each.phase for each in self.phases if not each.is_close)

    @property
    def float32_share(self) -> float:
        """Of all products, where the configuration asks for bfloat16."""
        everything = sum(self.products.values())
        return self.products.get("float32", 0) / everything if self.is_half and everything else 0.0


def verify(plan: RunPlan) -> Verification:
    """Run the update of the plan's largest micro-batch on fake tensors. ConfigError for a run that this does not know.

    Takes a minute or a few, and a few GiB of memory, on one core.
    """
    job, started = plan.run.job, time.perf_counter()
    config = job.config
    if job.is_cpu:
        raise ConfigError("run.device = 'cpu': --verify runs what a GPU computes; leave run.device out, or set cuda")
    if config.policy.type == "minimind":
        raise ConfigError(
            "policy.type = 'minimind': --verify runs models of Transformers; use policy.type huggingface or vllm"
        )
    if config.model.load_in_4bit:
        raise ConfigError("model.load_in_4bit: --verify has no 4-bit weights to run; leave it out to check the rest")
    assumed = plan.assumed
    shape = choose_micro_batch(
        config, tokens=job.batch_tokens, prompt=assumed.prompt_tokens, own=assumed.new_tokens + assumed.tool_tokens
    )
    found = run_on_fake_gpu(job, shape)
    return Verification(
        phases=compare(job, found),
        not_run=not_run(job),
        micro_batch=shape,
        products=found.products,
        attentions=found.attentions,
        is_half="bfloat16" in (config.model.dtype, config.train.autocast),
        seconds=time.perf_counter() - started,
    )


def run_on_fake_gpu(job: Job, shape: MicroBatchShape) -> UpdateBytes:
    """The update of the job's model, untrained, as a GPU would run it."""
    with torch.device("meta"):
        model = build_model(model_config(job.config.model.path), job.config)
    with pretended_gpu(), LiveBytes() as live:
        allocate(model)
        return run_update(model, job.config, job.layout, shape, live)


def compare(job: Job, found: UpdateBytes) -> tuple[ComparedPhase, ...]:
    """Every figure that both have."""
    planned = {phase: total(items) for phase, items in memory.pass_items(job).items()}
    stays = {item.name: item.num_bytes for item in memory.resident(job)}
    parts = job.layout.num_processes if job.layout.zero_stage == 3 else 1
    has_optimizer = not job.layout.zero_stage
    weights = parts * stays["weights"] + stays.get("adapters", 0.0)
    rows = [
        ("weights", "resident" if parts == 1 else f"whole; a process holds 1/{parts}", weights, found.weights),
        ("optimizer", "AdamW's moments", stays.get("AdamW's moments", 0.0), found.states),
        ("forward", "kept when the layers are done", planned["layers"], found.kept),
        ("head", "peak of head and loss", planned["head"], found.head),
        ("backward", "peak of the layers' backward pass", planned["backward"], found.backward),
        ("step", "peak of clipping and AdamW", planned["step"], found.step),
    ]
    highest = max(found.layers, found.head, found.backward, found.step)
    rows.append(("update", "the highest peak", max(planned["head"], planned["backward"]), highest))
    return tuple(
        ComparedPhase(phase=phase, what=what, planned=expected, found=run)
        for phase, what, expected, run in rows
        if has_optimizer or phase not in ("optimizer", "step")
    )


def not_run(job: Job) -> tuple[Item, ...]:
    """Items of the plan that no run on fake tensors shows."""
    shown = {"weights", "adapters", "AdamW's moments"}
    items = [item for item in memory.resident(job) if item.name not in shown]
    if job.layout.zero_stage == 3:
        items.insert(0, Item("weights, shard", memory.resident(job)[0].num_bytes, memory.resident(job)[0].where))
    items += memory.sharding_items(job)
    if job.layout.zero_stage:
        items += memory.step_items(job)
    items += [item for item in memory.transient(job) if item.name == "fragmentation"]
    return (*items, Item("libraries", job.overhead))
