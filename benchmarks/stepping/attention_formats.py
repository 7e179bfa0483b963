"""Time attention of a warm start on a CPU, forward and backward: bfloat16 as it is, and as MiniMind learns, in float32.

    python benchmarks/stepping/attention_formats.py

Prints a line per shape with medians in milliseconds and their ratio; both take turns. Not here: whole steps.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

from agent_rl.modeling.minimind import fused_attention

SHAPES = ((8, 256), (8, 736), (1, 736), (1, 2048))
"""Conversations and their tokens; 8 query heads, 2 key heads of 32 numbers, as `model/nat_minimind_words` has."""
ROUNDS = 11


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for batch, length in SHAPES:
        q, k, v = (torch.randn(batch, heads, length, 32).bfloat16().requires_grad_() for heads in (8, 2, 2))
        ways: dict[str, Callable[[], Tensor]] = {
            "bfloat16": lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
            "float32": lambda q=q, k=k, v=v: fused_attention(q, k, v, None),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(ROUNDS + 1):
            for name, attend in ways.items():
                start = time.perf_counter()
                attend().sum().backward()
                if number:  # the first compiles kernels
                    times[name].append(time.perf_counter() - start)
        half, wide = (1000 * statistics.median(times[name]) for name in ways)
        print(f"{batch} x {length:4} tokens: bfloat16 {half:6.1f} ms, float32 {wide:6.1f} ms, {half / wide:.2f} x")


if __name__ == "__main__":
    main()
