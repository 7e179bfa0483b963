"""Linear layers for few rows at a time: oneDNN's kernels for float32 on CPUs, PyTorch's elsewhere.

PyTorch sends float32 products on a CPU to MKL, which on CPUs other than Intel's does not use AVX-512: oneDNN, which
PyTorch carries along, is up to twice as fast there at 16 to 64 rows. Same formula, other rounding. No gradients.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.onednn import has_onednn, product

_MIN_ROWS = 4
"""Below this the call costs more than it saves."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x @ weight.T + bias; x is [N, in]."""
    if not _suits_onednn(x):
        return F.linear(x, weight, bias)
    return product(x, weight, bias)


def add_linear(x: Tensor, layer: nn.Linear, *, residual: Tensor) -> Tensor:
    """Return residual + layer(x)."""
    if not _suits_onednn(x):
        return residual + F.linear(x, layer.weight, layer.bias)
    return torch.ops.mkldnn._linear_pointwise.binary(x, residual, layer.weight, layer.bias, "add")


def gated(x: Tensor, gate: nn.Linear, up: nn.Linear) -> Tensor:
    """Return silu(gate(x)) * up(x)."""
    if not _suits_onednn(x):
        return F.silu(F.linear(x, gate.weight, gate.bias)) * F.linear(x, up.weight, up.bias)
    opened = torch.ops.mkldnn._linear_pointwise(x, gate.weight, gate.bias, "swish", [], "")
    return torch.ops.mkldnn._linear_pointwise.binary(x, opened, up.weight, up.bias, "mul")


def num_spare_rows(num_rows: int, device: torch.device, dtype: torch.dtype) -> int:
    """How many rows to add, so that few numbers of rows occur: multiples of 8 up to 64, of 64 beyond.

    oneDNN makes and keeps a kernel for every shape, which costs time and memory.
    """
    if not has_onednn(device, dtype) or num_rows < _MIN_ROWS:
        return 0
    return -num_rows % (8 if num_rows <= 64 else 64)


def _suits_onednn(x: Tensor) -> bool:
    return len(x) >= _MIN_ROWS and has_onednn(x.device, x.dtype)
