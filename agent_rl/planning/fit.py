"""Places of a run's bytes, phase by phase, and whether they fit: GPUs that train, GPUs that serve, machines' memory.

Does not: compute the bytes (`memory.py`, `engines.py`), propose changes (`changes.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent_rl.distributed.sequence import check_heads, check_sharing
from agent_rl.errors import ConfigError
from agent_rl.inference.vllm.make_engine import check_overlap
from agent_rl.planning import engines, memory
from agent_rl.planning.gpus import Gpu
from agent_rl.planning.machine import GIB
from agent_rl.planning.memory import Item, Job

PROGRAM = 4 * GIB
"""Memory of a process's Python and libraries, and of its share of the sandbox."""

Phases = dict[str, list[Item]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Memory of one kind: `Place(name="GPU that trains", count=4, capacity=8e10, phases={...})`."""

    name: str
    count: int
    capacity: float | None
    """Bytes; None if unknown."""
    phases: Phases

    @property
    def need(self) -> float:
        """Bytes of the fullest phase."""
        return max(total(items) for items in self.phases.values())

    @property
    def headroom(self) -> float | None:
        """Share of the capacity that is left in the fullest phase; below 0: it does not fit."""
        return None if self.capacity is None else 1.0 - self.need / self.capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    places: tuple[Place, ...]
    problems: tuple[str, ...]
    """Other reasons why it does not run, a sentence each."""

    @property
    def lowest(self) -> float:
        """The least headroom of all places."""
        return min((p.headroom for p in self.places if p.headroom is not None), default=1.0)

    def is_enough(self, headroom: float) -> bool:
        return not self.problems and self.lowest >= headroom


def total(items: Sequence[Item]) -> float:
    return sum(item.num_bytes for item in items)


def fit(job: Job, gpu: Gpu | None, *, num_gpus: int | None, machine_memory: float | None) -> Fit:
    """All places of a run. `gpu` None: processes on a CPU. ConfigError for a run that the trainer refuses."""
    _refuse(job)
    layout = job.layout
    phases = _trainer_phases(job, gpu)
    device = {name: _at(items, "device") for name, items in phases.items()}
    machine = _machine_phases(job, phases)
    if gpu is None:
        shared = None if machine_memory is None else machine_memory / layout.processes_per_machine
        merged = {name: device[name] + _shared_out(machine[name], layout.processes_per_machine) for name in device}
        return Fit(
            places=(
                Place(
                    name="process on a CPU", count=layout.num_processes, capacity=shared, phases=_retained(job, merged)
                ),
            ),
            problems=(),
        )
    places = [Place(name="GPU that trains", count=layout.num_processes, capacity=gpu.memory, phases=device)]
    problems = []
    if layout.num_servers:
        serving = engines.server_items(job, gpu)
        places.append(
            Place(
                name="GPU that serves",
                count=layout.num_servers * layout.tensor_parallel,
                capacity=gpu.memory,
                phases={"generation": serving, "weight sync": serving + engines.receiving(job)},
            )
        )
        where, room = "a server", engines.server_tokens(job, gpu)
    else:
        where, room = "the engine inside each process", engines.engine_tokens(job, gpu)
    if room < (window := job.config.policy.max_context):
        problems.append(
            f"the cache of {where} holds {max(room, 0):,} tokens, fewer than one window of policy.max_context "
            f"{window:,}, so that it does not start"
        )
    places.append(Place(name="machine's memory", count=layout.num_machines, capacity=machine_memory, phases=machine))
    if num_gpus is not None and layout.num_gpus > num_gpus:
        problems.append(f"launcher and servers need {layout.num_gpus} GPUs, and the machine has {num_gpus}")
    return Fit(places=tuple(places), problems=tuple(problems))


def _trainer_phases(job: Job, gpu: Gpu | None) -> Phases:
    stays = memory.resident(job)
    base = Item("libraries", memory.CPU_BASE if gpu is None else job.overhead)
    before_steps = [item for item in stays if not item.name.startswith("AdamW")]
    update, step = memory.transient(job), memory.step_items(job)
    asleep = engines.engine_in_update(job, gpu)
    generating = engines.engine_items(job, gpu)
    gathered = memory.weight_sync(job)
    parked = memory.parked(job, stays)
    return {
        "start": [base, *before_steps, *memory.loading(job), *generating],
        "generation": [base, *parked, *generating],
        "update": [base, *stays, *asleep, *(update if total(update) >= total(step) else step)],
        "weight sync": [base, *parked, *gathered, *generating],
        "checkpoint": [base, *parked, *generating, *(gathered[:1] if job.layout.zero_stage == 3 else [])],
    }


def _machine_phases(job: Job, phases: Phases) -> Phases:
    """Of the first machine: the items of its processes, and those of the first process alone."""
    layout = job.layout
    num = layout.processes_per_machine
    whole = job.shape.num_weights * job.width
    alone = {"start": Item("model files", whole, "machine")}
    if layout.zero_stage == 3 and not job.config.model.lora.rank:
        alone["checkpoint"] = Item("whole weights, being written", whole, "machine")
    folder = job.config.engine.weight_folder
    in_memory = folder is not None and folder.is_relative_to("/dev/shm")
    found = {}
    for name, items in phases.items():
        own = [replace(item, num_bytes=num * item.num_bytes) for item in _at(items, "machine")]
        if not job.is_cpu:
            own.append(Item("programs", PROGRAM * (num + layout.num_servers), "machine"))
        if in_memory:
            versions = 2 if name == "weight sync" else 1
            own.append(Item("weight files", versions * memory.weight_file_bytes(job), "machine"))
        found[name] = [*own, alone[name]] if name in alone else own
    return found


def _at(items: Sequence[Item], where: str) -> list[Item]:
    return [item for item in items if item.where == where]


def _shared_out(items: Sequence[Item], num: int) -> list[Item]:
    """On a CPU the files of a model are pages that the kernel can drop, so only the processes' own items count."""
    return [replace(item, num_bytes=item.num_bytes / num) for item in items if item.name != "model files"]


def _retained(job: Job, phases: Phases) -> Phases:
    share = memory.CPU_RETAINED[job.layout.zero_stage == 3]
    return {
        name: [*items, Item("freed, but retained by the process", share * total(items))]
        for name, items in phases.items()
    }


def _refuse(job: Job) -> None:
    """Raise what the trainer would raise, before the machines are paid for."""
    width, heads, kv_heads = job.layout.tensor_parallel, job.shape.num_heads, job.shape.num_kv_heads
    if heads % width or max(width, kv_heads) % min(width, kv_heads):
        raise ConfigError(
            f"tensor_parallel {width}: vLLM splits {heads} heads, and {kv_heads} of keys and values, evenly over a "
            "server's GPUs; give a number that divides them"
        )
    sharing = job.config.train.sequence_parallel
    check_sharing(sharing, num_processes=job.layout.num_processes)
    check_heads(sharing, num_heads=heads, num_kv_heads=kv_heads)
    if job.config.policy.type == "vllm" and not job.is_cpu:
        check_overlap(job.config)
    stage, is_half = job.layout.zero_stage, job.config.model.dtype == "bfloat16"
    if not stage or not is_half:
        return
    if stage == 1:
        raise ConfigError("ZeRO stage 1 shards float32 weights only and model.dtype is bfloat16; use stage 2 or 3")
    if job.config.algorithm.advantage == "gae":
        raise ConfigError("a critic of a bfloat16 model has two number formats, of which DeepSpeed shards one")
