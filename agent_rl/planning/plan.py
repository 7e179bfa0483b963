"""A plan: what a run needs on a machine, whether it fits, how long a step takes, and what to change where it does not.

Does not: compute bytes (`memory.py`, `engines.py`) or seconds (`time.py`), print (`report.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent_rl.config import Config, load_config
from agent_rl.errors import ConfigError
from agent_rl.planning.changes import Change, nearest_change
from agent_rl.planning.fit import Fit, fit
from agent_rl.planning.gpus import Gpu, find_gpu
from agent_rl.planning.layout import Layout, read_layout, with_servers
from agent_rl.planning.machine import GIB, Machine
from agent_rl.planning.memory import Job
from agent_rl.planning.shapes import ModelShape, read_shape
from agent_rl.planning.time import Times, Tokens, assume, count_tokens, estimate
from agent_rl.policies.four_bit import check_sharding


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A run on a machine: `PlannedRun(load=..., overrides=(), shape=..., layout=Layout(), gpu=find_gpu("H100"))`."""

    load: Callable[[Sequence[str]], Config]
    """The configuration with overrides `section.key=value`."""
    overrides: tuple[str, ...]
    shape: ModelShape
    layout: Layout
    gpu: Gpu | None
    """None: processes on a CPU."""
    machine: Machine = field(default_factory=Machine)

    @property
    def job(self) -> Job:
        return Job(
            shape=self.shape,
            config=self.load(self.overrides),
            layout=self.layout,
            is_cpu=self.gpu is None,
            overhead=self.machine.overhead_gib * GIB,
        )

    def check_fit(self) -> Fit:
        """ConfigError for a run that the trainer refuses, and for offloading to a memory of unknown size."""
        if self.job.config.model.load_in_4bit:
            check_sharding(self.layout.zero_stage)
        memory = self.machine.memory_gib
        if (self.layout.offload_optimizer or self.layout.offload_weights) and memory is None:
            raise ConfigError(
                f"{self.machine.launch} offloads to the machine's memory, whose size is unknown; set memory_gib in the "
                "machine file or by --set"
            )
        return fit(
            self.job, self.gpu, num_gpus=self.machine.gpus, machine_memory=None if memory is None else memory * GIB
        )


def read_run(config_path: Path, overrides: Sequence[str] = (), machine: Machine | None = None) -> PlannedRun:
    """Read what a run is and where it runs. A UserError for what is wrong with the configuration or the machine."""
    machine = machine or Machine()
    config = load_config(config_path, list(overrides))
    return PlannedRun(
        load=lambda chosen: load_config(config_path, list(chosen)),
        overrides=tuple(overrides),
        shape=read_shape(config.model.path),
        layout=with_servers(read_layout(machine.launch), len(config.engine.servers), machine),
        gpu=None if config.run.device == "cpu" else find_gpu(machine.gpu, machine.gpu_memory_gib),
        machine=machine,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Everything that was computed."""

    run: PlannedRun
    fit: Fit
    change: Change | None
    """None if nothing has to change."""
    assumed: Machine
    """The machine with every assumption filled in."""
    tokens: Tokens
    times: Times | None
    """None on a CPU, whose peak is unknown."""

    @property
    def fits(self) -> bool:
        return self.fit.is_enough(self.assumed.headroom)

    @property
    def verdict(self) -> str:
        """One or two sentences."""
        required = self.assumed.headroom
        if self.fits and all(place.capacity is None for place in self.fit.places):
            need = max(place.need for place in self.fit.places)
            return f"It needs up to {need / GIB:.1f} GiB a process; set memory_gib to check whether that fits."
        if self.fits:
            return f"It fits, with {self.fit.lowest:.0%} headroom where it is tightest (required: {required:.0%})."
        reasons = list(self.fit.problems)
        tight = [p for p in self.fit.places if p.headroom is not None and p.headroom < required]
        reasons += [f"{p.name}: {p.need / GIB:.1f} of {p.capacity / GIB:.1f} GiB" for p in tight]
        text = f"It does not fit with {required:.0%} headroom: {'; '.join(reasons)}."
        if self._needs_servers:
            text += (
                " One GPU does not hold the weights that generate; servers spread them over several: vllm.servers, "
                "agent-rl serve-vllm --tensor-parallel."
            )
        if self.change is None:
            return text
        found = f"{self.change.text} ({self.change.lowest:.0%} headroom)"
        if self.change.fits:
            return f"{text} The nearest change that fits: {found}."
        return f"{text} No single change fits; the closest is {found}."

    @property
    def _needs_servers(self) -> bool:
        """No setting helps an engine inside the processes: it keeps all weights on one GPU."""
        job, gpu = self.run.job, self.run.gpu
        return gpu is not None and not job.layout.num_servers and job.shape.num_weights * job.engine_width > gpu.memory


def make_plan(run: PlannedRun) -> RunPlan:
    """Compute the plan. ConfigError as of `PlannedRun.check_fit`."""
    job = run.job
    assumed = assume(job.config, run.machine, num_machines=job.layout.num_machines)
    found = run.check_fit()
    return RunPlan(
        run=run,
        fit=found,
        change=None if found.is_enough(assumed.headroom) else nearest_change(run),
        assumed=assumed,
        tokens=count_tokens(job.config, assumed, num_processes=job.layout.num_processes),
        times=None if run.gpu is None else estimate(job, run.gpu, assumed),
    )
