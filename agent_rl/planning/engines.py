"""Bytes of an inference engine: the local one or vLLM inside a training process, or a vLLM server's GPU.

Arithmetic on a model's shape, as `memory.py`; untested on a GPU. Does not: count training, estimate time.
"""

from agent_rl.config import Config
from agent_rl.planning.gpus import Gpu
from agent_rl.planning.machine import GIB
from agent_rl.planning.memory import Item, Job

WORKSPACE = 2 * GIB
"""Of vLLM beside weights and cache: CUDA graphs, one prefill's activations, logits. Assumed, not measured."""


def engine_items(job: Job, gpu: Gpu | None) -> list[Item]:
    """Items of an engine inside each training process during generation; none with servers. `gpu` None: on a CPU."""
    config, shape = job.config, job.shape
    if config.engine.servers:
        return []
    if not config.engine.has_own_weights:
        items = [
            Item("key/value cache", cached_tokens(job.config) * shape.cache_bytes(job.engine_width)),
            Item("logits of a batch", 3 * 4 * config.policy.max_batch_size * shape.vocab_size),
        ]
        return [*replica_items(job), *items]
    weights = Item("weights of vLLM", shape.num_weights * job.engine_width)
    if gpu is not None and config.policy.max_cached_tokens is None:
        share = config.engine.gpu_memory_share * gpu.memory
        rest = Item("cache and workspace of vLLM", max(share - weights.num_bytes, 0.0))
        return [weights, rest]
    cache = Item("key/value cache of vLLM", cached_tokens(job.config) * shape.cache_bytes(job.engine_width))
    return [weights, cache] if gpu is None else [weights, cache, Item("workspace of vLLM", WORKSPACE)]


def engine_in_update(job: Job, gpu: Gpu | None) -> list[Item]:
    """Items of the engine that stay during updates."""
    config = job.config
    if gpu is None or not config.engine.sleeps:
        return engine_items(job, gpu)
    if not config.model.lora.rank:
        return []
    return [Item("weights of vLLM, asleep", job.shape.num_weights * job.engine_width, "machine")]


def replica_items(job: Job) -> list[Item]:
    """Whole weights beside the shards, for an engine without weights of its own."""
    if job.layout.zero_stage < 3 or job.config.engine.has_own_weights:
        return []
    return [Item("whole weights for generation", job.shape.num_weights * job.engine_width)]


def cached_tokens(config: Config) -> int:
    """Tokens of the cache of an engine inside a process, if their number is set."""
    policy = config.policy
    return policy.max_cached_tokens or policy.max_batch_size * policy.max_context


def engine_tokens(job: Job, gpu: Gpu) -> int:
    """Tokens that the cache of an engine inside a process holds; below 0 if not even its weights fit."""
    if not job.config.engine.has_own_weights or job.config.policy.max_cached_tokens is not None:
        return cached_tokens(job.config)
    weights = job.shape.num_weights * job.engine_width
    left = job.config.engine.gpu_memory_share * gpu.memory - weights - WORKSPACE
    return int(left / job.shape.cache_bytes(job.engine_width))


def server_items(job: Job, gpu: Gpu) -> list[Item]:
    """Items on each GPU of a server: vLLM takes its whole share, and the cache fills the rest of it."""
    layout = job.layout
    weights = job.shape.num_weights * job.engine_width / layout.tensor_parallel
    others = WORKSPACE + job.overhead
    cache = max(layout.server_share * gpu.memory - weights - others, 0.0)
    return [Item("weights", weights), Item("libraries and workspace", others), Item("key/value cache", cache)]


def server_tokens(job: Job, gpu: Gpu) -> int:
    """Tokens that the cache of one server holds; its GPUs split the heads, or hold copies of them."""
    cache = next(item.num_bytes for item in server_items(job, gpu) if item.name == "key/value cache")
    return int(
        cache * min(job.layout.tensor_parallel, job.shape.num_kv_heads) / job.shape.cache_bytes(job.engine_width)
    )


def receiving(job: Job) -> list[Item]:
    """New weights in flight to a server: two whole tensors, and a layer until its last tensor has arrived."""
    if job.config.model.lora.rank:
        return []
    elements = 2 * job.shape.largest_weight + job.shape.largest_layer
    return [Item("new weights in flight", job.engine_width * elements)]
