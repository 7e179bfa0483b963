"""Tokens of a step and the duration of its phases, from peak rates and assumed shares of them: arithmetic, no clock.

Model FLOPs are those of `telemetry/flops.py`. Left out: tools and checks, evaluations, the tail of a few long episodes
beyond the assumed share of busy slots. Expect the right order, not the right minute. Does not: decide what fits.
"""

from dataclasses import dataclass

from agent_rl.config import Config
from agent_rl.planning.engines import engine_tokens, server_tokens
from agent_rl.planning.gpus import Gpu
from agent_rl.planning.machine import Machine
from agent_rl.planning.memory import GRADIENT_WIDTH, Job, checkpoint_bytes, parked, resident
from agent_rl.telemetry.flops import train_flops

GB = 1e9
ADAM_BYTES = 28
"""Read and written for each weight by an AdamW step in float32: three numbers read and written, a gradient read."""


def assume(config: Config, machine: Machine, *, num_machines: int = 1) -> Machine:
    """The machine with every null assumption replaced by its default, as docs/planning.md lists them."""
    window = config.policy.max_context
    defaults = {
        "prompt_tokens": window // 4,
        "new_tokens": window // 4,
        "tool_tokens": window // 8,
        "turns": max(1.0, config.rollout.max_turns / 2),
        "link_gb_s": 20.0 if num_machines > 1 else 150.0,
    }
    return machine.model_copy(update={key: it for key, it in defaults.items() if getattr(machine, key) is None})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Of one step."""

    num_prompts: int
    num_episodes: int
    generated: int
    """Trained as well, once an epoch."""
    read: int
    """All tokens of all episodes."""
    computed: int
    """Of one epoch's forward pass, where samples of a micro-batch share their prompt; what they sample alike, which is
    not known before, makes it less."""
    prompts_per_group: int
    """Copies of a group's prompt among those."""
    num_micro_batches: int
    """Of one epoch, of each process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of one step."""

    generation: float
    update: float
    sync: float
    checkpoint: float
    """Of one checkpoint, not of every step."""
    is_asynchronous: bool
    update_flops: float
    """Operations of the update's forward and backward passes, each counted once."""
    slots: float
    """Episodes that one engine generates at a time."""

    @property
    def step(self) -> float:
        """Generation beside the update, or before it."""
        learning = self.update + self.sync
        return max(self.generation, learning) if self.is_asynchronous else self.generation + learning


def count_tokens(config: Config, assumed: Machine, *, num_processes: int) -> Tokens:
    """Of a step that trains on all its episodes; with `rollout.max_attempts` more may be generated."""
    groups, size = config.rollout.groups_per_step, config.rollout.group_size
    own = assumed.new_tokens + assumed.tool_tokens
    together = (config.train.micro_batch_tokens - assumed.prompt_tokens) // max(own, 1)
    copies = -(-size // max(1, min(size, together)))
    computed = groups * (copies * assumed.prompt_tokens + size * own)
    per_turn = num_processes // config.train.sequence_parallel * config.train.micro_batch_tokens
    return Tokens(
        num_prompts=groups,
        num_episodes=groups * size,
        generated=groups * size * assumed.new_tokens,
        read=groups * size * (assumed.prompt_tokens + own),
        computed=computed,
        prompts_per_group=copies,
        num_micro_batches=-(-computed // per_turn),
    )


def estimate(job: Job, gpu: Gpu, assumed: Machine) -> Times:
    tokens = count_tokens(job.config, assumed, num_processes=job.layout.num_processes)
    flops = update_flops(job, assumed, tokens)
    generation, slots = _generation_s(job, gpu, assumed, tokens)
    return Times(
        generation=generation,
        update=_update_s(job, gpu, assumed, tokens, flops),
        sync=_sync_s(job, assumed),
        checkpoint=sum(checkpoint_bytes(job)) / (GB * assumed.disk_gb_s),
        is_asynchronous=job.config.rollout.max_staleness > 0,
        update_flops=flops,
        slots=slots,
    )


def update_flops(job: Job, assumed: Machine, tokens: Tokens) -> float:
    """Of all epochs and of the passes before the first update, on all GPUs."""
    shape, config = job.shape, job.config
    own = assumed.new_tokens + assumed.tool_tokens
    is_lora = config.model.lora.rank > 0
    per_group = train_flops(
        num_matmul_weights=job.num_trained if is_lora else shape.num_matmul_weights,
        num_frozen_weights=shape.num_matmul_weights if is_lora else 0,
        num_head_weights=shape.num_head_weights,
        num_head_rows=config.rollout.group_size * assumed.new_tokens,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        head_dim=shape.head_dim,
        segment_lengths=[assumed.prompt_tokens] * tokens.prompts_per_group + [own] * config.rollout.group_size,
        prefix_lengths=[0] * tokens.prompts_per_group + [assumed.prompt_tokens] * config.rollout.group_size,
    )
    models = 2 if job.has_own_critic else 1
    # Scores before the first update, a third of a training pass each.
    needs_old_logprobs = config.algorithm.correction.kind != "none" and config.updates_per_step > 1
    scored = max(needs_old_logprobs + job.has_own_critic, config.algorithm.advantage == "gae")
    passes = config.train.epochs * models + (scored + bool(config.algorithm.kl.coef)) / 3
    return tokens.num_prompts * per_group * passes


def _update_s(job: Job, gpu: Gpu, assumed: Machine, tokens: Tokens, flops: float) -> float:
    layout, config = job.layout, job.config
    again = 4 / 3 if config.model.gradient_checkpointing else 1.0
    is_half = "bfloat16" in (config.model.dtype, config.train.autocast)
    peak = gpu.peak if is_half else gpu.peak_float32
    computing = flops * again / (layout.num_processes * peak * assumed.mfu)
    num_passes = tokens.num_micro_batches * config.train.epochs
    weights, trained = job.shape.num_weights * job.width, job.num_trained * GRADIENT_WIDTH
    moving = copying = 0.0
    if layout.zero_stage == 3:
        # Gathered forward and backward, and once more where activations are computed again; gradients reduced once.
        gathers = 3 if config.model.gradient_checkpointing else 2
        others = (layout.num_processes - 1) / layout.num_processes
        moving = num_passes * (gathers * weights + trained) * others / (GB * assumed.link_gb_s)
        if layout.offload_weights:
            copying += num_passes * gathers * weights / layout.num_processes / (GB * assumed.pcie_gb_s)
    if layout.offload_optimizer:
        copying += num_passes * 2 * trained / layout.num_processes / (GB * assumed.pcie_gb_s)
        copying += (
            config.updates_per_step * ADAM_BYTES * job.num_trained / layout.num_machines / (GB * assumed.host_gb_s)
        )
    return max(computing, moving) + copying


def _generation_s(job: Job, gpu: Gpu, assumed: Machine, tokens: Tokens) -> tuple[float, float]:
    """Seconds, and the episodes that one engine generates at a time. A decode step reads all weights and caches."""
    layout, config, shape = job.layout, job.config, job.shape
    num_engines = layout.num_servers or layout.num_processes
    width = layout.tensor_parallel if layout.num_servers else 1
    length = assumed.prompt_tokens + assumed.new_tokens + assumed.tool_tokens
    room = server_tokens(job, gpu) if layout.num_servers else engine_tokens(job, gpu)
    workers = max(1, config.rollout.async_workers) * layout.num_processes
    held = max(room / length, 1.0)
    sharing = min(workers, tokens.num_episodes) / num_engines
    most = [sharing, held]
    if not layout.num_servers:
        most.append(config.policy.max_batch_size)
    slots = max(1.0, min(most))
    busy = max(1.0, slots * assumed.busy)
    context = assumed.prompt_tokens + (assumed.new_tokens + assumed.tool_tokens) / 2
    reading = (shape.num_weights * job.engine_width + busy * context * shape.cache_bytes(job.engine_width)) / (
        width * gpu.bandwidth * assumed.hbm
    )
    products = 2 * (shape.num_matmul_weights + shape.num_head_weights)
    peak = gpu.peak if job.engine_width == 2 else gpu.peak_float32
    computing = products * busy / (width * peak * assumed.mfu)
    decoding = tokens.generated / num_engines / busy * max(reading, computing)
    # A group's prompt is computed once, and tool replies once for each episode; the rest is cached, unless the cache is
    # too small for the episodes that share it: then a turn reads its context again.
    lost = max(0.0, 1 - held / sharing)
    again = tokens.num_episodes * (assumed.turns - 1) * context * lost
    new_to_it = tokens.num_prompts * assumed.prompt_tokens + tokens.num_episodes * assumed.tool_tokens + again
    prefill = 2 * shape.num_matmul_weights * new_to_it / (num_engines * width * peak * assumed.mfu)
    return decoding + prefill, slots


def _sync_s(job: Job, assumed: Machine) -> float:
    """New weights for the inference engine: gathered from the shards, then sent."""
    weights = job.shape.num_weights * job.engine_width
    if job.config.train.offload_while_sampling:
        stays = resident(job)
        pairs = zip(stays, parked(job, stays), strict=True)
        moved = sum(before.num_bytes for before, after in pairs if before.where != after.where)
        return 2 * moved / (GB * assumed.pcie_gb_s) + _sending_s(job, assumed, weights)
    return _sending_s(job, assumed, weights)


def _sending_s(job: Job, assumed: Machine, weights: float) -> float:
    if job.config.model.lora.rank:
        return 4 * job.num_trained / (GB * assumed.sync_gb_s)
    whole = job.shape.num_weights * job.width
    gathering = whole / (GB * assumed.link_gb_s) if job.layout.zero_stage == 3 else 0.0
    if not job.config.engine.has_own_weights:
        return gathering
    if job.config.engine.sends_files:
        return gathering + 2 * weights / (GB * assumed.files_gb_s)
    return gathering + weights / (GB * assumed.sync_gb_s)
