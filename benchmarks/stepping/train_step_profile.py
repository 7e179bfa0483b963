"""What an update spends its time on: a table of PyTorch's profile, operations sorted into kinds.

Not here: what is profiled.
"""

import re

import torch
from rich.console import Console
from rich.table import Table

_KINDS = (
    ("matrix products", r"mm$|bmm|addmv|linear"),
    ("attention", r"scaled_dot_product|flash|efficient_attention|causal"),
    ("softmax and entropy of the vocabulary", r"softmax|logsumexp|entr$|::exp$|gather"),
    ("optimizer and clipping", r"adam|lerp|addcdiv|addcmul|_foreach|norm$"),
    ("copies and views", r"copy|cat$|clone|contiguous|index|embedding|stack|split|repeat|zero|fill|new_|empty|to$"),
    ("element by element", r"mul|add|sub|div|neg|silu|pow|rsqrt|sqrt|mean|sum|cos|sin|sigmoid|where|tanh|gelu"),
)
"""Kind and the names of its operations; the first that fits counts."""


def print_profile(profiler: torch.profiler.profile, *, num_operations: int = 12) -> None:
    """Share of each kind and of the costliest operations in the profiled time of all operations.

    Time on the device where there is one. What Python does between operations is not in it.
    """
    # Kernels of a device are rows too; the operation that started one has the kernel's time already.
    operations = [row for row in profiler.key_averages() if re.fullmatch(r"\w+::\w+", row.key)]
    on_device = any(row.self_device_time_total for row in operations)
    timed = [
        (row.key, row.self_device_time_total if on_device else row.self_cpu_time_total, row.count) for row in operations
    ]
    rows = sorted((row for row in timed if row[1] > 0), key=lambda row: -row[1])
    total = sum(us for _, us, _ in rows)
    kinds: dict[str, float] = {}
    for name, us, _ in rows:
        kinds[_kind(name)] = kinds.get(_kind(name), 0.0) + us
    table = Table(title=f"an update's operations, {total / 1e6:.2f} s of them")
    for column in ("kind or operation", "share", "seconds", "calls"):
        table.add_column(column)
    for kind, us in sorted(kinds.items(), key=lambda item: -item[1]):
        table.add_row(kind, f"{us / total:.1%}", f"{us / 1e6:.3f}", "")
    table.add_section()
    for name, us, count in rows[:num_operations]:
        table.add_row(name, f"{us / total:.1%}", f"{us / 1e6:.3f}", str(count))
    Console(width=100).print(table)


def _kind(name: str) -> str:
    operation = name.lower().split("::")[-1].removesuffix("_backward").rstrip("_")
    return next((kind for kind, pattern in _KINDS if re.search(pattern, operation)), "others")
