"""A run on a machine, as a person says it. Not here: arithmetic, what would fit instead (`changes.py`), options."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.config import Config, load_config
from agent_rl.errors import ConfigError
from agent_rl.planning.fit import Fit, fit
from agent_rl.planning.launch_files import read_layout
from agent_rl.planning.machine import GIB, Gpu, Layout, find_gpu, with_servers
from agent_rl.planning.memory import OVERHEAD, Job
from agent_rl.planning.shapes import ModelShape, read_shape

GPU = "H100"
HEADROOM = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A run on a machine: `Question(load=..., overrides=(), shape=..., layout=Layout(), gpu=find_gpu("H100"))`."""

    load: Callable[[Sequence[str]], Config]
    """The configuration with overrides `section.key=value`."""
    overrides: tuple[str, ...]
    shape: ModelShape
    layout: Layout
    gpu: Gpu | None
    """None: processes on a CPU."""
    num_gpus: int | None = None
    machine_memory: float | None = None
    overhead: float = OVERHEAD
    headroom: float = HEADROOM
    """Share of a place that must be left."""

    @property
    def job(self) -> Job:
        return Job(
            shape=self.shape,
            config=self.load(self.overrides),
            layout=self.layout,
            is_cpu=self.gpu is None,
            overhead=self.overhead,
        )

    def answer(self) -> Fit:
        """ConfigError for what the trainer refuses as well, and where a place that decides has no known size."""
        layout = self.layout
        if (layout.offload_optimizer or layout.offload_weights) and self.machine_memory is None:
            raise ConfigError(
                "the --launch file's DeepSpeed settings offload to the machine's memory, of which nothing was said; "
                "add --machine-memory with its GiB"
            )
        return fit(self.job, self.gpu, num_gpus=self.num_gpus, machine_memory=self.machine_memory)


def ask(
    config_path: Path,
    overrides: tuple[str, ...],
    *,
    launch: Path | None = None,
    gpu: str = GPU,
    gpu_memory: float | None = None,
    num_gpus: int | None = None,
    machine_memory: float | None = None,
    servers: Mapping[str, Any] | None = None,
    overhead: float = OVERHEAD / GIB,
    headroom: float = HEADROOM,
) -> Question:
    """The question of `agent-rl plan`; memory in GiB, `servers` as in `with_servers`. A UserError for what is wrong."""
    config = load_config(config_path, overrides)
    return Question(
        load=lambda chosen: load_config(config_path, list(chosen)),
        overrides=overrides,
        shape=read_shape(config.model.path),
        layout=with_servers(read_layout(launch), len(config.vllm.servers), **(servers or {})),
        gpu=None if config.run.device == "cpu" else find_gpu(gpu, gpu_memory),
        num_gpus=num_gpus,
        machine_memory=None if machine_memory is None else machine_memory * GIB,
        overhead=overhead * GIB,
        headroom=headroom,
    )
