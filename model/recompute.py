"""Element-by-element parts of a layer that keep less for the backward pass, which computes the rest again.

A layer's norms and gate are cheap, but what they put out is as large as what its products do: with it computed anew, a
layer keeps about half of what autograd would. Same numbers, bit for bit, in what is computed again. Not here: products,
attention; whole layers computed again (Transformers' gradient checkpointing).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks

Layer = Callable[[Tensor], Tensor]


@contextmanager
def computed_again(tensor: Tensor, compute: Callable[[], Tensor]) -> Iterator[None]:
    """Inside, what autograd would keep of `tensor` is got from `compute()` in the backward pass instead.

    `compute` must return the same values and must not hold `tensor`.
    """
    if not (torch.is_grad_enabled() and tensor.requires_grad):
        yield
        return
    address, size = tensor.data_ptr(), tensor.numel()

    def pack(kept: Tensor) -> Tensor | torch.Size:
        # By address, because products keep a view; `tensor` lives here, so no other has it.
        return kept.shape if kept.data_ptr() == address and kept.numel() == size else kept

    def unpack(kept: Tensor | torch.Size) -> Tensor:
        return compute().view(kept) if isinstance(kept, torch.Size) else kept

    with saved_tensors_hooks(pack, unpack):
        yield


def swiglu(x: Tensor, gate_proj: Layer, up_proj: Layer, down_proj: Layer) -> Tensor:
    """Return down(silu(gate(x)) * up(x)); keeps what `gate_proj` and `up_proj` put out, and `x`."""
    gate, up = gate_proj(x), up_proj(x)
    opened = _GatedSiLU.apply(gate, up)
    gate, up = gate.detach(), up.detach()
    with computed_again(opened, lambda: _GatedSiLU.apply(gate, up)):
        return down_proj(opened)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last dimension; keeps `x` only."""
    if x.device.type != "cpu":
        return F.rms_norm(x, weight.shape, weight.to(x.dtype), eps)
    return _RMSNorm.apply(x, weight, eps)


class _GatedSiLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        return torch.ops.aten.silu_backward(grad * up, gate), F.silu(gate).mul_(grad)


class _RMSNorm(torch.autograd.Function):
    """PyTorch's own keeps the normalised rows too, unless it is on a GPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows = x.float()
        scales = rows.square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scales)
        return (rows * scales).to(x.dtype).mul_(weight.to(x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scales = ctx.saved_tensors
        normed = x.float().mul(scales)
        grad_weight = (grad * normed).reshape(-1, weight.numel()).sum(dim=0).to(weight.dtype)
        grad_normed = grad.float() * weight.float()
        # d/dx of x * s(x): s * (g - n * mean(g * n)), where n = x * s.
        shares = (grad_normed * normed).mean(dim=-1, keepdim=True)
        return grad_normed.sub_(normed.mul_(shares)).mul_(scales).to(x.dtype), grad_weight, None
