"""Memory, bandwidth and peak of GPUs by name. Does not: look at the GPUs of this machine."""

import re
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
    """A GPU by its name or a part of it, such as `H100` or `rtx4090`; `memory_gib` overrides the table's."""
    row = _short_row(name) or gpu_row(name) or gpu_row(name.upper())
    if row is None or row[-1] is None:
        names = ", ".join(known for known, *_, bandwidth in GPUS if bandwidth is not None)
        raise ConfigError(
            f"gpu = {name!r} is not in the table; give the one of {names} that is nearest to it, and set "
            "gpu_memory_gib to the GiB of yours"
        )
    _, half, _, single, gib, bandwidth = row
    memory = (memory_gib or gib) * GIB
    return Gpu(name=name, memory=memory, bandwidth=bandwidth * 1e12, peak=half * 1e12, peak_float32=single * 1e12)


def _short_row(name: str) -> tuple | None:
    """The row of a name as people type it, `rtx4090` or `4090`; None without one."""
    typed = re.sub(r"[\W_]", "", name).upper()
    return next((row for row in GPUS if typed in ("".join(row[0].split()).upper(), row[0].split()[-1])), None)
