"""What a run is spread over: who trains and serves, and what a GPU of a known name has.

Not here: the launcher's files (`launch_files.py`), what a run needs (`memory.py`), starting anything.
"""

import re
from dataclasses import dataclass, replace

import torch

from agent_rl.errors import ConfigError
from agent_rl.inference.vllm.server.settings import GPU_MEMORY_SHARE
from agent_rl.telemetry.flops import gpu_peak_flops

GIB = 2**30

_GPUS: tuple[tuple[str, float, float], ...] = (
    # Words of its name, GiB that PyTorch has of it (the maker's GB, less what the driver keeps), 1e12 bytes/s of
    # memory: NVIDIA's data sheets. The first whose words are all found counts.
    ("B200", 178.0, 8.0),
    ("H200 NVL", 139.0, 4.8),
    ("H200", 139.0, 4.8),
    ("GH200", 94.0, 4.0),
    ("H100 PCIe", 79.0, 2.0),
    ("H100 NVL", 93.0, 3.9),
    ("H100", 79.0, 3.35),
    ("A100 40GB", 39.0, 1.55),
    ("A100", 79.0, 2.0),
    ("L40S", 44.0, 0.86),
    ("A40", 44.0, 0.7),
    ("L4", 22.0, 0.3),
    ("A10G", 22.0, 0.6),
    ("RTX 5090", 31.0, 1.79),
    ("RTX 4090", 23.5, 1.01),
    ("RTX 3090", 23.5, 0.94),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    name: str
    memory: float
    """Bytes."""
    bandwidth: float
    """Bytes/s of its memory."""
    peak: float
    """Operations/s of dense products in bfloat16."""
    peak_float32: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Who trains and who serves: `Layout(num_processes=4, zero_stage=3, num_servers=2, tensor_parallel=2)`."""

    num_processes: int = 1
    """That train, one on every GPU."""
    num_machines: int = 1
    zero_stage: int = 0
    offload_optimizer: bool = False
    offload_weights: bool = False
    overlap: bool = False
    """Two gradient buckets under way instead of one."""
    reduce_elements: int | None = None
    """Of a gradient bucket; None: as many as the model has, 500,000,000 at most."""
    prefetch_elements: int = 50_000_000
    live_elements: int = 1_000_000_000
    """Whole weights that ZeRO-3 keeps at hand at most."""
    num_servers: int = 0
    tensor_parallel: int = 1
    """GPUs of one server."""
    server_share: float = GPU_MEMORY_SHARE
    """Of a server's GPU, for weights and cache."""

    @property
    def num_gpus(self) -> int:
        return self.num_processes + self.num_servers * self.tensor_parallel

    @property
    def processes_per_machine(self) -> int:
        return -(-self.num_processes // self.num_machines)


def find_gpu(name: str, memory_gib: float | None = None) -> Gpu:
    """A GPU by its name or a part of it, such as `H100`; `memory_gib` overrides the table's."""
    peak, single = (gpu_peak_flops(name, dtype, uses_tf32=False) for dtype in (torch.bfloat16, torch.float32))
    known = next((row for row in _GPUS if all(re.search(rf"\b{word}\b", name) for word in row[0].split())), None)
    if peak is None or single is None or known is None:
        names = ", ".join(row[0] for row in _GPUS)
        raise ConfigError(
            f"--gpu {name!r} is not in the table; give the one of {names} that is nearest to it, and "
            "with --gpu-memory the GiB that yours has"
        )
    memory = (memory_gib or known[1]) * GIB
    return Gpu(name=name, memory=memory, bandwidth=known[2] * 1e12, peak=peak, peak_float32=single)


def with_servers(
    layout: Layout,
    num_servers: int,
    *,
    num_gpus: int | None = None,
    tensor_parallel: int | None = None,
    share: float = GPU_MEMORY_SHARE,
) -> Layout:
    """The layout with so many servers, on `num_gpus` GPUs together; ConfigError for numbers that do not go together."""
    if not num_servers:
        if num_gpus is not None or tensor_parallel is not None:
            raise ConfigError(
                "--server-gpus and --tensor-parallel are about vllm.servers, and there are none; add them"
            )
        return layout
    width = tensor_parallel or (num_gpus or num_servers) // num_servers
    if width < 1 or (num_gpus is not None and num_gpus != width * num_servers):
        raise ConfigError(
            f"--server-gpus {num_gpus} with --tensor-parallel {width}: vllm.servers names {num_servers} servers, which "
            f"need {max(width, 1) * num_servers} GPUs"
        )
    return replace(layout, num_servers=num_servers, tensor_parallel=width, server_share=share)
