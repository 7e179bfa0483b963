"""Memory, bandwidth and peak of GPUs by name. Does not: look at the GPUs of this machine."""

import re
from dataclasses import dataclass

import torch

from agent_rl.errors import ConfigError
from agent_rl.planning.machine import GIB
from agent_rl.telemetry.flops import gpu_peak_flops

_GPUS: tuple[tuple[str, float, float], ...] = (
    # Words of the name, GiB that PyTorch can use (the maker's GB without the driver's share), 1e12 bytes/s of memory:
    # NVIDIA's data sheets. The first row whose words are all in the name counts.
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


def find_gpu(name: str, memory_gib: float | None = None) -> Gpu:
    """A GPU by its name or a part of it, such as `H100`; `memory_gib` overrides the table's."""
    peak, single = (gpu_peak_flops(name, dtype, uses_tf32=False) for dtype in (torch.bfloat16, torch.float32))
    known = next((row for row in _GPUS if all(re.search(rf"\b{word}\b", name) for word in row[0].split())), None)
    if peak is None or single is None or known is None:
        names = ", ".join(row[0] for row in _GPUS)
        raise ConfigError(
            f"gpu = {name!r} is not in the table; give the one of {names} that is nearest to it, and set "
            "gpu_memory_gib to the GiB of yours"
        )
    memory = (memory_gib or known[1]) * GIB
    return Gpu(name=name, memory=memory, bandwidth=known[2] * 1e12, peak=peak, peak_float32=single)
