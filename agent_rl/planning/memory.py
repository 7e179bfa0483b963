"""Bytes that a training process needs, item by item and phase by phase: pure arithmetic on a model's shape.

Checked against real trainings on a CPU (`tests/planning/test_plan_measured.py`); for GPUs it is what DeepSpeed
0.19's and PyTorch's sources allocate, untested there. Sizes are estimates: read a plan as "about", and leave headroom.
Does not: count inference engines (`engines.py`), estimate time, decide whether it fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from agent_rl.config import Config
from agent_rl.distributed.zero import BUCKET_ELEMENTS, MAX_REDUCE_ELEMENTS
from agent_rl.learning.logprob_model import logits_at_a_time
from agent_rl.planning.layout import Layout
from agent_rl.planning.machine import GIB
from agent_rl.planning.shapes import ModelShape

GRADIENT_WIDTH = 4
"""Bytes of a number of a gradient that ZeRO reduces and adds up (`distributed/zero.py`)."""
SUB_GROUP = 1_000_000_000
"""Elements of a shard whose gradient DeepSpeed widens to float32 at a time."""
LOGIT_COPIES = {True: 4, False: 3}
"""float32 numbers for each logit of a chunk, on a CPU (True) and on a GPU with a KL over the whole vocabulary, for
which there is no kernel: normalised, two gradients, and on a CPU what its operators take inside."""
SUMMED = 3
"""Gradients of one matrix while two parts of it, as of two chunks of logits, are added up: both and their sum.
PyTorch's backward pass does not add them in place (measured on a CPU, PyTorch 2.13)."""
CPU_BASE = 0.05 * GIB
"""What PyTorch's kernels and Transformers touch beyond their imports, measured."""
CPU_RETAINED = {True: 0.4, False: 0.05}
"""Freed memory that a process on a CPU retains (`distributed/allocator.py`), as a share of what is in use: with ZeRO-3
(True) and without (False); measured."""
FRAGMENTATION = 0.1
"""Share of transient tensors that is lost between blocks of PyTorch's allocator on a GPU. Assumed, not measured."""


FOUR_BIT = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight with `model.load_in_4bit`: half of one, of 64 weights a scale of one byte, of 256 scales four."""


@dataclass(frozen=True, slots=True)
class Item:
    """`Item("weights", 4e9)`; `where` is the process's device, or the machine's memory."""

    name: str
    num_bytes: float
    where: Literal["device", "machine"] = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Inputs of all formulas."""

    shape: ModelShape
    config: Config
    layout: Layout
    is_cpu: bool = False
    overhead: float = 0.0
    """Bytes of libraries, CUDA context and NCCL's buffers on every GPU. Assumed, not measured."""

    @property
    def width(self) -> int:
        """Bytes of a weight."""
        return 2 if self.config.model.dtype == "bfloat16" else 4

    @property
    def weight_bytes(self) -> float:
        """Of one whole copy of the model that is trained, adapters apart."""
        if not self.config.model.load_in_4bit:
            return float(self.shape.num_weights * self.width)
        rest = self.shape.num_weights - self.shape.num_matmul_weights
        return FOUR_BIT * self.shape.num_matmul_weights + self.width * rest

    @property
    def engine_width(self) -> int:
        """Bytes of a weight of the inference engine, and of a number in its cache."""
        return 2 if self.config.engine.dtype == "bfloat16" else 4

    @property
    def trained_width(self) -> int:
        """Bytes of a trained weight: adapters are float32, but under ZeRO, which shards one format, as the model."""
        return 4 if self.config.model.lora.rank and not self.layout.zero_stage else self.width

    @property
    def num_trained(self) -> int:
        lora = self.config.model.lora
        if lora.rank:
            return self.shape.num_adapter_weights(lora.rank, lora.target_modules)
        return self.shape.num_weights * (2 if self.has_own_critic else 1)

    @property
    def has_own_critic(self) -> bool:
        return self.config.algorithm.advantage == "gae" and self.config.critic.backbone == "own"

    @property
    def has_reference(self) -> bool:
        return self.config.algorithm.kl.coef > 0 and not self.config.model.lora.rank

    @property
    def batch_tokens(self) -> int:
        """Of the largest micro-batch: a sample longer than `train.micro_batch_tokens` gets a pass of its own."""
        return max(self.config.train.micro_batch_tokens, self.config.policy.max_context)

    @property
    def tokens(self) -> int:
        """A process's part of the largest micro-batch (`train.sequence_parallel`)."""
        return -(-self.batch_tokens // self.config.train.sequence_parallel)

    @property
    def hidden_bytes(self) -> float:
        """One hidden state of each of these tokens."""
        return float(self.tokens * self.width * self.shape.hidden_size)


def resident(job: Job) -> list[Item]:
    """Items that stay from step to step: weights, optimizer, reference."""
    shape, layout, width = job.shape, job.layout, job.width
    shards, stage = job.layout.num_processes, layout.zero_stage
    whole_weights = job.weight_bytes * (2 if job.has_own_critic else 1)
    weights = whole_weights / (shards if stage == 3 else 1)
    on_host = "machine" if layout.offload_optimizer else "device"
    items = [Item("weights", weights, "machine" if layout.offload_weights else "device")]
    if layout.second_shards:
        items.append(Item("weights, second copy", whole_weights / layout.second_shards))
    if job.config.model.lora.rank:
        items.append(Item("adapters", job.trained_width * job.num_trained / (shards if stage == 3 else 1)))
    if stage == 0:
        items.append(Item("AdamW's moments", 2 * job.trained_width * job.num_trained))
        if shards > 1:
            items.append(Item("gradient buckets (DDP)", job.trained_width * job.num_trained))
    else:
        items.append(Item("float32 weights, shard", 4 * job.num_trained / shards, on_host))
        items.append(Item("AdamW's moments, shard", 8 * job.num_trained / shards, on_host))
    if layout.offload_optimizer:
        items.append(Item("float32 gradient, shard", 4 * job.num_trained / shards, "machine"))
    if stage == 3:
        items.append(Item("gradient, shard", GRADIENT_WIDTH * job.num_trained / shards, on_host))
        items.append(Item("gradient bucket", GRADIENT_WIDTH * _bucket(job)))
    if job.has_reference:
        reference = shape.num_weights * width / (shards if stage == 3 else 1)
        items.append(Item("reference model", reference))
    return items


_PARKED = ("AdamW's moments", "AdamW's moments, shard", "float32 weights, shard", "gradient, shard")


def parked(job: Job, items: list[Item]) -> list[Item]:
    """The resident items while an engine inside the process samples (`train.offload_while_sampling`)."""
    if not job.config.train.offload_while_sampling:
        return items
    return [replace(item, where="machine") if item.name in _PARKED else item for item in items]


def transient(job: Job) -> list[Item]:
    """Items of an update beside the resident ones: gradients, gathered weights, activations, logits."""
    items = sharding_items(job)
    passes = pass_items(job)
    items += max(passes["head"], passes["backward"], key=_size)
    if not job.is_cpu:
        items.append(Item("fragmentation", FRAGMENTATION * sum(i.num_bytes for i in items)))
    return items


def sharding_items(job: Job) -> list[Item]:
    """What DeepSpeed holds during the passes: shards of gradients, buckets, gathered weights."""
    shape, layout, width = job.shape, job.layout, job.width
    stage, shards = layout.zero_stage, job.layout.num_processes
    items: list[Item] = []
    if stage in (1, 2):
        on_host = "machine" if layout.offload_optimizer else "device"
        copies = 2 if stage == 2 else 1
        items.append(Item("gradient, shard", copies * GRADIENT_WIDTH * job.num_trained / shards, on_host))
        # Under ZeRO-1 a bucket that holds all gradients takes their place.
        bucket = _bucket(job) if stage == 2 or job.num_trained > _bucket(job) else 0
        items.append(Item("gradient bucket", GRADIENT_WIDTH * bucket * (2 if layout.overlap else 1)))
    if stage == 3:
        live = min(shape.num_weights, layout.live_elements + layout.prefetch_elements + shape.largest_layer)
        items.append(Item("gathered weights", width * live))
        sent = max(min(_bucket(job), job.num_trained), shape.largest_weight)
        items.append(Item("bucket being sent", GRADIENT_WIDTH * sent))
        if width != GRADIENT_WIDTH:
            # Measured: widened or not, the gradients of a bucket stay until it was sent.
            items.append(Item("gradients of the bucket", width * min(_bucket(job), job.num_trained)))
        if layout.overlap and not job.is_cpu:
            items.append(Item("gradients of a layer, waiting", width * shape.largest_layer))
    return items


def pass_items(job: Job) -> dict[str, list[Item]]:
    """What PyTorch holds of the largest micro-batch, by phase; `agent-rl plan --verify` runs all of it.

    `layers`: when the layers' forward pass of the first micro-batch is done; `head`: in the output head and the loss,
    forward and backward; `backward`: in the backward pass of the layers; `step`: in the optimizer's step.
    """
    shape, width, is_lora = job.shape, job.width, job.config.model.lora.rank > 0
    gradients: list[Item] = []
    if job.layout.zero_stage < 2:
        gradients.append(Item("gradient", job.trained_width * job.num_trained))
    kept, rows = Item("activations", activation_bytes(job)), Item("gradient of hidden states", job.hidden_bytes)
    # Autocast's copies go with the forward pass where layers are computed again, else with the last backward pass.
    casts, late = [Item("weights in bfloat16", cast_bytes(job))], []
    if not job.config.model.gradient_checkpointing:
        late = casts
    backward = [kept, *late, Item("backward of a layer", layer_bytes(job))]
    if job.config.model.load_in_4bit:
        backward.append(Item("a matrix in whole numbers", width * shape.layer_matrix))
    if not is_lora:
        # A head that is the embedding too waits for the embedding's part until the end; others come one by one.
        head = width * shape.num_head_weights
        backward.append(Item("gradient of a matrix", head if shape.is_tied else width * shape.layer_matrix))
        if shape.is_tied:
            backward = max(backward, [Item("gradients of the embedding", SUMMED * head)], key=_size)
    wide = []
    if job.config.model.head_dtype is not None and _inner_width(job) == 2:
        wide = [Item("head in float32", 4 * shape.num_head_weights)]
    loss = [*late, *wide, *_head_backward(job, is_frozen=is_lora)]
    if not late and casts[0].num_bytes:
        head = 2 * shape.num_head_weights if width == 4 else 0
        forward = [*casts, Item("head in bfloat16", head), Item("logits", logit_bytes(job))]
        loss = max(loss, forward, key=_size)
    return {
        "layers": [kept, *casts],
        # The head is done before the layers' backward passes begin.
        "head": [*gradients, kept, rows, *loss],
        "backward": [*gradients, *backward],
        "step": gradients,
    }


def _size(items: Sequence[Item]) -> float:
    return sum(item.num_bytes for item in items)


def _head_backward(job: Job, *, is_frozen: bool) -> list[Item]:
    """Logits and the gradient of the head's weights, at the higher of two moments."""
    logits = Item("logits", logit_bytes(job))
    if is_frozen:
        return [logits]
    one = job.width * job.shape.num_head_weights
    first = [logits, Item("gradient of the head", one)]
    # Elsewhere than on a CPU the head adds up the gradients of its chunks by itself.
    is_summed = job.is_cpu and num_chunks(job) > 1
    return max(first, [Item("gradients of the head", SUMMED * one)], key=_size) if is_summed else first


def activation_bytes(job: Job) -> float:
    """Of the largest micro-batch: what stays for the backward pass, autocast's copies of weights left out."""
    stay = job.shape.num_layers * (
        job.width * job.shape.hidden_size if job.config.model.gradient_checkpointing else _layer_per_token(job)
    )
    # Embeddings; the last norm's input, its output or the rows of trained tokens.
    last = (4 if job.is_cpu else 2) * job.width * job.shape.hidden_size
    return float((2 if job.has_own_critic else 1) * job.tokens * (stay + last))


def layer_bytes(job: Job) -> float:
    """Of the largest micro-batch: what the backward pass of one layer adds, its activations computed again included."""
    shape, inner, lora = job.shape, _inner_width(job), job.config.model.lora
    if lora.rank:
        backward = inner * shape.intermediate_size
    else:
        # Of the gated layer: its output computed again, two gradients; a CPU's kernels take one more.
        backward = (4 if job.is_cpu else 3) * inner * shape.intermediate_size
    again = _layer_per_token(job) if job.config.model.gradient_checkpointing else 0
    return float(job.tokens * (backward + again))


def cast_bytes(job: Job) -> float:
    """Autocast's copies of the layers' float32 weights, or adapters, which live as long as the forward pass."""
    if job.config.train.autocast == "none":
        return 0.0
    adapters = job.num_trained if job.config.model.lora.rank else 0
    if job.config.model.load_in_4bit:  # which are made whole one by one
        return 2.0 * adapters
    return float((2 if job.has_own_critic else 1) * 2 * (job.shape.num_matmul_weights if job.width == 4 else adapters))


def _layer_per_token(job: Job) -> float:
    """Bytes that a layer keeps of a token."""
    shape, stream, inner, lora = job.shape, job.width, _inner_width(job), job.config.model.lora
    hidden, queries = shape.hidden_size, shape.num_heads * shape.head_dim
    keys, gated = shape.num_kv_heads * shape.head_dim, 2 * inner * shape.intermediate_size
    if lora.rank:
        # Frozen weights need no gradient, so norms keep no output and products no input, but each adapter its own.
        inputs = {"o_proj": queries, "down_proj": shape.intermediate_size}
        names = set(lora.target_modules or shape.linear_widths)
        adapters = inner * sum(inputs.get(name, hidden) for name in names)
        return hidden * stream + inner * (2 * queries + 4 * keys) + gated + adapters
    norms = hidden * stream * (4 if job.is_cpu else 3)  # outputs and inputs; of the first, a GPU keeps the layer's own
    # Autocast copies a norm's output for each product: queries, keys and values, gate and up, the first of both above.
    copies = 3 * inner * hidden if inner != stream else 0
    return norms + copies + inner * (3 * queries + 4 * keys) + gated


def _inner_width(job: Job) -> int:
    """Bytes of a number that a product puts out."""
    return 2 if "bfloat16" in (job.config.model.dtype, job.config.train.autocast) else 4


def logit_bytes(job: Job) -> float:
    """One chunk of logits with its loss and gradient."""
    algorithm = job.config.algorithm
    is_full = algorithm.kl.coef and algorithm.kl.kind == "full"
    in_place = not (job.is_cpu or is_full)
    most = logits_at_a_time("cpu" if job.is_cpu else "cuda", in_place=in_place)
    num_logits = max(min(most, job.tokens * job.shape.vocab_size), job.shape.vocab_size)
    if in_place:
        return num_logits * (4.0 if job.config.model.head_dtype == "float32" else _inner_width(job))
    # An entropy with a gradient keeps probabilities and their products with the logarithms too.
    copies = LOGIT_COPIES[job.is_cpu] + (2 if algorithm.entropy_coef else 0)
    return num_logits * 4.0 * copies * (2 if is_full else 1)


def num_chunks(job: Job) -> int:
    """Chunks of logits of the largest micro-batch on a CPU, if all of its tokens are trained."""
    return -(-job.tokens * job.shape.vocab_size // logits_at_a_time("cpu"))


def step_items(job: Job) -> list[Item]:
    """Items of the optimizer's step, after the backward pass has freed everything but the gradient."""
    shard = job.num_trained / job.layout.num_processes
    if job.layout.zero_stage < 2 or job.layout.offload_optimizer:
        return []
    if job.layout.zero_stage == 2:
        widened = 4 if job.width == 2 else 0  # DeepSpeed widens the whole shard at once
        return [Item("gradient, shard", 2 * job.width * shard), Item("float32 gradient, shard", widened * shard)]
    part = min(shard, SUB_GROUP + job.shape.largest_layer)
    return [Item("float32 gradient of a part", (4 + job.width) * part)]


def loading(job: Job) -> list[Item]:
    """Items while the model is read and split, beside the resident ones."""
    shape, width, layout = job.shape, job.width, job.layout
    whole = shape.num_weights * width
    if layout.zero_stage == 3:
        items = [Item("float32 shard, twice", 4 * job.num_trained / job.layout.num_processes)]
        if layout.offload_optimizer:
            part = min(job.num_trained / layout.num_processes, SUB_GROUP)
            items = [Item("float32 shard, twice", 4 * part, "machine")]
        if not job.config.engine.has_own_weights:
            items.append(Item("the model whole, to be split", whole))
        return items
    if layout.num_processes > 1:
        return [Item("weights being sent to all", job.weight_bytes)]
    return []


def weight_sync(job: Job) -> list[Item]:
    """Weights gathered bucket by bucket for the inference engine; adapters are sent as files."""
    if not job.config.engine.has_own_weights and job.layout.zero_stage < 3:
        return []
    if job.config.model.lora.rank:
        return []
    bucket = job.width * min(job.shape.num_weights, max(BUCKET_ELEMENTS, job.shape.largest_weight))
    copies = 2 if job.config.engine.has_own_weights else 1
    return [Item("bucket of weights", bucket * copies)]


def checkpoint_bytes(job: Job) -> tuple[float, float]:
    """(model, optimizer) of one checkpoint on disk."""
    if job.config.model.lora.rank:
        return 4.0 * job.num_trained, 8.0 * job.num_trained
    per_weight = 12 if job.layout.zero_stage else 2 * job.width
    return float(job.shape.num_weights * job.width), float(per_weight * job.num_trained)


def weight_file_bytes(job: Job) -> float:
    """Of one version of the weights, written for servers; their folder holds two while they are sent."""
    if not job.config.engine.sends_files:
        return 0.0
    return 4.0 * job.num_trained if job.config.model.lora.rank else float(job.shape.num_weights * job.engine_width)


def num_checkpoints(config: Config) -> int:
    """On disk at most: the retained ones, the best, and one that is being written."""
    return config.checkpoint.keep + config.checkpoint.keep_best + 1


def _bucket(job: Job) -> int:
    return job.layout.reduce_elements or min(job.num_trained, MAX_REDUCE_ELEMENTS)
