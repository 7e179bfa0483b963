"""Element-by-element parts of a layer that store less for the backward pass and recompute the rest.

A layer's norms and gate are cheap, but what they put out is as large as what its products do. Same numbers, bit for
bit, in what is computed again. Not here: products, attention; whole layers computed again (Transformers' gradient
checkpointing, which this does not disturb).
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
def computed_again(tensor: Tensor) -> Iterator[None]:
    """Inside, `tensor`, which `rms_norm` or a gate made, is not stored for the backward pass but computed again.

    It is recomputed from the tensors that its node in the graph saved, so nothing else is stored for it. What else is
    saved inside is stored as outside: by gradient checkpointing, where that is on.
    """
    node = tensor.grad_fn
    if not hasattr(node, "compute"):
        yield
        return
    identity = _identity(tensor)
    # PyTorch calls the innermost hooks alone, so that those of gradient checkpointing must be called from here.
    outer_pack, outer_unpack = torch._C._autograd._top_saved_tensors_default_hooks(False) or (_as_it_is, _as_it_is)

    def pack(stored: Tensor) -> Any:
        # By storage, because products save a view; `tensor` lives here, so no other has it.
        is_same = _identity(stored) == identity and stored.is_contiguous()
        return stored.shape if is_same else outer_pack(stored)

    def unpack(stored: Any) -> Tensor:
        return node.compute(*_saved(node)).view(stored) if isinstance(stored, torch.Size) else outer_unpack(stored)

    with saved_tensors_hooks(pack, unpack):
        yield


def _as_it_is(stored: Any) -> Any:
    return stored


def _identity(tensor: Tensor) -> tuple[int, int, int, torch.dtype]:
    """Which numbers these are: their storage, which fake tensors have too, and the part of it."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.numel(), tensor.dtype


def _saved(node: Any) -> tuple[Tensor, ...]:
    """The node's saved tensors. Read once and held until its backward: gradient checkpointing returns them once."""
    if node.held is None:
        node.held = node.saved_tensors
    return node.held


def _taken(ctx: Any) -> tuple[Tensor, ...]:
    """The same in the node's own backward, after which it is not needed."""
    saved, ctx.held = _saved(ctx), None
    return saved


def swiglu(x: Tensor, gate_proj: Layer, up_proj: Layer, down_proj: Layer) -> Tensor:
    """Return down(silu(gate(x)) * up(x)); saves the outputs of `gate_proj` and `up_proj`, and `x`."""
    opened = _GatedSiLU.apply(gate_proj(x), up_proj(x))
    with computed_again(opened):
        return down_proj(opened)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last dimension; saves `x` and one number a row."""
    if x.device.type != "cpu":
        return F.rms_norm(x, weight.shape, weight.to(x.dtype), eps)
    return _RMSNorm.apply(x, weight, eps)


def _opened(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate).mul_(up)


class _GatedSiLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.compute, ctx.held = _opened, None
        return _opened(gate, up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = _taken(ctx)
        return torch.ops.aten.silu_backward(grad * up, gate), F.silu(gate).mul_(grad)


def _normed(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    return (_widened(x) * scales).to(x.dtype).mul_(weight)


def _widened(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class _RMSNorm(torch.autograd.Function):
    """Less memory than PyTorch's own, which on a CPU saves the normalised rows too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scales = _widened(x).square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
        # Not the parameter itself: when `_normed` is computed, ZeRO-3 may have freed its data.
        ctx.weight_dtype = weight.dtype
        weight = weight.detach().to(x.dtype)
        ctx.save_for_backward(x, weight, scales)
        ctx.compute, ctx.held = _normed, None
        return _normed(x, weight, scales)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, scales = _taken(ctx)
        normed, grad = _widened(x) * scales, _widened(grad)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = (grad * normed).reshape(-1, weight.numel()).sum(dim=0).to(ctx.weight_dtype)
        if ctx.needs_input_grad[0]:
            grad_normed = grad * weight
            # d/dx of x * s(x): s * (g - n * mean(g * n)), where n = x * s.
            shares = (grad_normed * normed).mean(dim=-1, keepdim=True)
            grad_x = grad_normed.sub_(normed.mul_(shares)).mul_(scales).to(x.dtype)
        return grad_x, grad_weight, None
