"""Model FLOPs of a training step, what a device can do at most, and the share of it that was used (MFU).

What counts, because published figures differ in it:

- a multiplication and an addition are two operations; only matrix products are counted;
- a weight costs 2 operations a token forward and 4 backward; a frozen one 2 backward, for the gradient of its input;
- attention is causal and counts half of the square: a token looks at those before it;
- tokens are those that the model processes: no padding, what samples share once, and the head only for the
  rows that it is computed for; embedding look-ups are no products;
- what gradient checkpointing computes a second time is not counted: MFU is about the model, not its execution.

Others: verl counts causal attention too, but the embedding and the head for every token; prime-rl counts the full
square of attention, `12 L h d s` a token; TRL offers both. On long sequences and small models the figures differ by up
to a factor of two. Not here: timing a step.
"""

import re
import time
from collections.abc import Sequence
from functools import cache

import torch
from torch import nn

from agent_rl.modeling.onednn import has_onednn, product
from agent_rl.modeling.sharding import full_shape

_TERA = 1e12
GPUS: tuple[tuple[str, float, float, float, float | None, float | None], ...] = (
    # Words of the name; dense 1e12 operations/s in 16 bits, TF32 and float32: NVIDIA's data sheets, without sparsity,
    # GeForce cards with float32 accumulation; GiB that PyTorch can use (the maker's GB without the driver's share) and
    # 1e12 bytes/s of memory, None where unknown. The first row whose words are all in the name counts.
    ("GB200", 2500.0, 1250.0, 80.0, None, None),
    ("B200", 2250.0, 1100.0, 75.0, 178.0, 8.0),
    ("H200 NVL", 835.0, 417.0, 60.0, 139.0, 4.8),
    ("H200", 989.0, 494.0, 67.0, 139.0, 4.8),
    ("GH200", 989.0, 494.0, 67.0, 94.0, 4.0),
    ("H100 PCIe", 756.0, 378.0, 51.0, 79.0, 2.0),
    ("H100 NVL", 835.0, 417.0, 60.0, 93.0, 3.9),
    ("H100", 989.0, 494.0, 67.0, 79.0, 3.35),
    ("A100 40GB", 312.0, 156.0, 19.5, 39.0, 1.55),
    ("A100", 312.0, 156.0, 19.5, 79.0, 2.0),
    ("L40S", 362.0, 183.0, 91.6, 44.0, 0.86),
    ("L40", 181.0, 90.5, 90.5, None, None),
    ("L4", 121.0, 60.0, 30.3, 22.0, 0.3),
    ("A40", 149.7, 74.8, 37.4, 44.0, 0.7),
    ("A10G", 70.0, 35.0, 31.5, 22.0, 0.6),
    ("A10", 125.0, 62.5, 31.2, None, None),
    ("RTX 5090", 209.5, 104.8, 104.8, 31.0, 1.79),
    ("RTX 4090", 165.2, 82.6, 82.6, 23.5, 1.01),
    ("RTX 3090", 71.0, 35.6, 35.6, 23.5, 0.94),
)


def count_matmul_weights(module: nn.Module) -> tuple[int, int]:
    """(trained, frozen) weights that a token is multiplied with: all matrices of `module` but embedding tables.

    For a model whose head is an embedding's weight, count the head by itself. A weight that DeepSpeed has split counts
    whole. Mixture-of-experts models are overcounted: a token meets few of their experts.
    """
    tables = {id(weight) for part in module.modules() if isinstance(part, nn.Embedding) for weight in part.parameters()}
    counts = {True: 0, False: 0}
    for weight in module.parameters():
        shape = full_shape(weight)
        if len(shape) > 1 and id(weight) not in tables:
            counts[weight.requires_grad] += shape.numel()
    return counts[True], counts[False]


def train_flops(
    *,
    num_matmul_weights: int,
    num_layers: int,
    num_heads: int,
    head_dim: int,
    segment_lengths: Sequence[int],
    prefix_lengths: Sequence[int] | None = None,
    num_frozen_weights: int = 0,
    num_head_weights: int = 0,
    num_head_rows: int = 0,
) -> float:
    """Operations of one forward and backward pass, as the module says.

    `(6 N + 4 N_frozen) · Σ s + 6 · N_head · rows + 6 · L · h · d · Σ (s² + 2 s p)`: `s` tokens of a segment, `p` tokens
    before it, which are segments of their own; `h` query heads. `num_matmul_weights` is without the
    head; `num_head_rows` are the rows it is computed for.

    The last term: scores and mixing are 2 products of `s · s · d` forward, 4 backward, at 2 operations each, halved:
    `12 · s² · d / 2` for each head and layer. The Kaplan et al. 2020 estimate (arXiv 2001.08361) is its first term.
    """
    prefixes = [0] * len(segment_lengths) if prefix_lengths is None else prefix_lengths
    num_pairs = sum(s * s + 2 * s * p for s, p in zip(segment_lengths, prefixes, strict=True))
    return float(
        (6 * num_matmul_weights + 4 * num_frozen_weights) * sum(segment_lengths)
        + 6 * num_head_weights * num_head_rows
        + 6 * num_layers * num_heads * head_dim * num_pairs
    )


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Operations/s that `device` can do in `dtype` products at most.

    The maker's figure for GPUs in the table. Any other device, a CPU above all, is timed once, in a fraction of a
    second, on a matrix product with PyTorch's present number of threads, by the kernels that trained layers use: then a
    share of it is one of what PyTorch reaches here, not of what the data sheet says.
    """
    if device.type == "cuda":
        uses_tf32 = torch.get_float32_matmul_precision() != "highest"
        peak = gpu_peak_flops(torch.cuda.get_device_name(device), dtype, uses_tf32=uses_tf32)
        if peak is not None:
            return peak
    return _measured(str(device), dtype, torch.get_num_threads())


def gpu_peak_flops(name: str, dtype: torch.dtype, *, uses_tf32: bool) -> float | None:
    """The maker's dense figure for the GPU of that name; None for one that is not in the table, and for laptops."""
    if (row := gpu_row(name)) is None:
        return None
    _, half, tf32, single, *_ = row
    return _TERA * (half if dtype in (torch.bfloat16, torch.float16) else tf32 if uses_tf32 else single)


def gpu_row(name: str) -> tuple[str, float, float, float, float | None, float | None] | None:
    """The row of `GPUS` of the GPU of that name; None as of `gpu_peak_flops`."""
    words = set(re.findall(r"\w+", name))
    return None if "Laptop" in words else next((row for row in GPUS if words.issuperset(row[0].split())), None)


@cache
def _measured(device: str, dtype: torch.dtype, _num_threads: int) -> float:
    """Operations/s of the best of some square matrix products, large enough to take milliseconds."""
    size = 128
    while size < 8192 and _best_product_s(size, device, dtype) < 0.01:
        size *= 2
    return 2 * size**3 / _best_product_s(size, device, dtype)


def _best_product_s(size: int, device: str, dtype: torch.dtype) -> float:
    a, b = (torch.ones(size, size, device=device, dtype=dtype) for _ in range(2))
    uses_onednn = has_onednn(a.device, dtype)  # as the trained layers do
    seconds = []
    for _ in range(5):
        a[0, 0].item()  # waits for the device
        started = time.perf_counter()
        (product(a, b, None) if uses_onednn else a @ b)[0, 0].item()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
