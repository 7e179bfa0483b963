"""Linear layers for few rows at a time: oneDNN's kernels for float32 on CPUs, PyTorch's elsewhere.

PyTorch sends float32 products on a CPU to MKL, which on CPUs other than Intel's does not use AVX-512: oneDNN, which
PyTorch carries along, is up to twice as fast there at 16 to 64 rows. Same formula, other rounding. No gradients.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_rl.modeling.onednn import MIN_ROWS, has_onednn, product


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


def _suits_onednn(x: Tensor) -> bool:
    return len(x) >= MIN_ROWS and has_onednn(x.device, x.dtype)
