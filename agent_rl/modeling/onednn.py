"""Linear layers of training by oneDNN's float32 kernels on a CPU: forward, gradient of the input, of the weight.

PyTorch sends float32 products on a CPU to MKL, which on CPUs other than Intel's does not use AVX-512; oneDNN, which
PyTorch carries along, does. Same formula, other rounding.
Everything that is not float32 on a CPU is computed as by `nn.Linear`. Not here: products of few rows without gradient
(`agent_rl/inference/local/kernels.py`).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

MIN_ROWS = 4
"""Below this the call costs more than it saves."""
ROW_MULTIPLE = 64
"""In training other numbers of rows are left to PyTorch: oneDNN compiles and caches a kernel for each."""

_MAX_TURNED = 2**21
"""Largest weight whose gradient is worth a copy, 8 MiB."""


def has_onednn(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a product of such tensors can be computed here."""
    return device.type == "cpu" and dtype == torch.float32 and torch.backends.mkldnn.is_available()


def num_spare_rows(num_rows: int, device: torch.device, dtype: torch.dtype) -> int:
    """How many rows to add, so that few numbers of rows occur: oneDNN compiles and caches a kernel for every shape.

    Up to multiples of 8 below 64, of 64 below 4,096, then of a 64th of the next power of two.
    """
    if num_rows < MIN_ROWS or not has_onednn(device, dtype):
        return 0
    if num_rows <= ROW_MULTIPLE:
        return -num_rows % 8
    return -num_rows % max(ROW_MULTIPLE, 2 ** (num_rows.bit_length() - 6))


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x @ weight.T + bias, without gradient; x [..., in], weight [out, in], float32 on the CPU."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class OneDNNLinear(nn.Linear):
    """A linear layer with the same weights and results; `exchange_linear_layers` makes them of others."""

    def forward(self, x: Tensor) -> Tensor:
        is_whole = x.numel() > 0 and x.numel() % (ROW_MULTIPLE * x.shape[-1]) == 0
        suits = has_onednn(x.device, x.dtype) and not torch.is_autocast_enabled(x.device.type)
        if not (is_whole and suits and self.weight.dtype == x.dtype):
            return super().forward(x)
        return _Linear.apply(x, self.weight, self.bias)


def exchange_linear_layers(model: nn.Module) -> None:
    """Let all plain `nn.Linear` of the model compute this way, for good; names, weights and hooks stay."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = OneDNNLinear


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        needs_x, needs_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        grads = grad.flatten(0, -2)
        grad_x = product(grad, weight.t(), None) if needs_x else None
        grad_weight = _grad_weight(x.flatten(0, -2), grads) if needs_weight else None
        return grad_x, grad_weight, grads.sum(dim=0) if needs_bias else None


def _grad_weight(rows: Tensor, grads: Tensor) -> Tensor:
    """grads.T @ rows, [out, in]."""
    if grads.shape[-1] * rows.shape[-1] > _MAX_TURNED:
        return product(grads.t(), rows.t(), None)
    # Transposed, oneDNN is faster, most of all with a vocabulary's rows; but it is copied when it is put into `.grad`.
    return product(rows.t(), grads.t(), None).t()
