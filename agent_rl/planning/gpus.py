"""Memory, bandwidth and peak of GPUs by name. Does not: look at the GPUs of this machine."""

from dataclasses import dataclass

from agent_rl.errors import ConfigError
from agent_rl.planning.machine import GIB
from agent_rl.telemetry.flops import GPUS, gpu_row


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
    row = gpu_row(name)
    if row is None or row[-1] is None:
        names = ", ".join(known for known, *_, bandwidth in GPUS if bandwidth is not None)
        raise ConfigError(
            f"gpu = {name!r} is not in the table; give the one of {names} that is nearest to it, and set "
            "gpu_memory_gib to the GiB of yours"
        )
    _, half, _, single, gib, bandwidth = row
    memory = (memory_gib or gib) * GIB
    return Gpu(name=name, memory=memory, bandwidth=bandwidth * 1e12, peak=half * 1e12, peak_float32=single * 1e12)
