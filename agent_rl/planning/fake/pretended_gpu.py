"""Fake tensors that call themselves a GPU's, so that the code that asks takes the branches it takes there.

PyTorch's fake tensors have sizes, strides and formats, and no numbers. Without CUDA they can only be fake CPU tensors,
whose code would take a CPU's ways. `pretended_gpu` changes what depends on the device, for as long as it lasts:

- `tensor.device` is `cuda:0` for whoever asks outside PyTorch's own operators, and a request for that device makes a
  fake CPU tensor, which again says so. Thus our code, Transformers' and peft's choose as on a GPU.
- Autocast, its state too, is a CPU's where a GPU's is meant.
- The head has its kernels, as it has where Triton finds a compiler.
- Attention and RMS norm become what CUDA's kernels put out and keep for the backward pass. Which kernel computes an
  attention is PyTorch's rule: flash for bfloat16, memory-efficient for float32 without grouped heads, products else.
- A number that is read from a fake tensor is 1 (True, if it is a truth value): the loss and the gradient are finite.

Does not: compute anything, know what a kernel takes and returns inside (`live_bytes.py`), compile.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

GPU = torch.device("cuda", 0)
_CPU = torch.device("cpu")
_IS_CUDA = Tensor.is_cuda.__get__
_READS = {"_local_scalar_dense", "allclose", "equal", "is_nonzero"}
"""Operators whose result is a Python number."""
_DIAGONAL = "is_lower_right"
"""Attribute of what stands for a bias of `causal_lower_right`."""


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Inside, tensors are made fake, on a CPU; a number read from one is 1."""
    with FakeTensorMode(allow_non_fake_inputs=True), _Operators():
        yield


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """Inside, tensors are made fake, and are a GPU's for whoever asks; not to be nested, and not in two threads."""
    with ExitStack() as stack:
        mode = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        operators = stack.enter_context(_Operators())
        stack.enter_context(patch.object(FakeTensor, "device", _device_property(operators)))
        for holder, name in (
            (torch.autocast, "__init__"),
            (torch, "is_autocast_enabled"),
            (torch, "get_autocast_dtype"),
        ):
            stack.enter_context(patch.object(holder, name, _of_cpu(getattr(holder, name))))
        stack.enter_context(patch("torch.nn.attention.bias.causal_lower_right", _causal_lower_right))
        stack.enter_context(patch("agent_rl.algorithms.logit_kernels.what_kernels_lack", str))
        names = stack.enter_context(_Names(mode, operators))
        stack.enter_context(patch.object(torch.autograd, "_engine_run_backward", _under(names)))
        yield


class _Operators(TorchDispatchMode):
    """Knows when PyTorch is inside an operator, where a fake tensor's device must be its real one; answers reads."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _READS and isinstance(args[0], FakeTensor):
            dtype = args[0].dtype
            if name != "_local_scalar_dense" or dtype == torch.bool:
                return True
            return 1.0 if dtype.is_floating_point else 1
        with self.inside():
            return func(*args, **(kwargs or {}))

    @contextmanager
    def inside(self) -> Iterator[None]:
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1


class _Names(TorchFunctionMode):
    """Turns requests for the GPU into requests for fake CPU tensors, and kernels into what CUDA has instead."""

    def __init__(self, mode: FakeTensorMode, operators: _Operators) -> None:
        super().__init__()
        self._mode, self._operators = mode, operators

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if func in (F.rms_norm, torch.rms_norm):
            return _rms_norm(func, *args, **kwargs)
        if func == _IS_CUDA:
            return isinstance(args[0], FakeTensor)
        moves = func in (Tensor.to, Tensor.cuda)
        args = tuple(_CPU if _is_gpu(each, moves) else each for each in args)
        if _is_gpu(kwargs.get("device"), True):
            kwargs["device"] = _CPU
        if moves and not isinstance(args[0], FakeTensor):
            with self._operators.inside():
                args = (self._mode.from_tensor(args[0]), *args[1:])
        return args[0] if func is Tensor.cuda else func(*args, **kwargs)


def _is_gpu(value: Any, is_device: bool) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return is_device and isinstance(value, str) and value.startswith("cuda")


def _device_property(operators: _Operators) -> property:
    original = FakeTensor.device

    def device(tensor: FakeTensor) -> torch.device:
        is_inside = operators.depth or tensor.fake_mode.in_kernel_invocation
        return original.fget(tensor) if is_inside else GPU

    return property(device, original.fset)


def _under(names: "_Names") -> Any:
    """The backward pass with the mode on: it is off while it handles a call, of which `loss.backward()` is one."""
    original = torch.autograd._engine_run_backward

    def changed(*args: Any, **kwargs: Any) -> Any:
        with names:
            return original(*args, **kwargs)

    return changed


def _of_cpu(original: Any) -> Any:
    """The same function, with a CPU where a GPU is meant."""

    def changed(*args: Any, **kwargs: Any) -> Any:
        args = tuple("cpu" if isinstance(each, str) and each == "cuda" else each for each in args)
        return original(*args, **{key: "cpu" if value == "cuda" else value for key, value in kwargs.items()})

    return changed


def _causal_lower_right(*size: int) -> Tensor:
    """One number, marked, in place of PyTorch's bias, which is a tensor of a class of its own and cannot be fake."""
    mask = torch.empty((), dtype=torch.bool).expand(size)
    setattr(mask, _DIAGONAL, True)
    return mask


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """By the kernel that PyTorch takes on a GPU with compute capability 8 or more."""
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = (each.to(dtype) for each in (query, key, value))
    if hasattr(attn_mask, _DIAGONAL):
        attn_mask, is_causal = None, True  # the fused kernels know where the diagonal lies, and build no mask
    aten, is_grouped = torch.ops.aten, query.shape[1] != key.shape[1]
    if attn_mask is None and query.dtype != torch.float32:
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    if not is_grouped:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def _rms_norm(func: Any, input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: Any = None) -> Tensor:
    """One kernel where input and weight have one format, as on a GPU; else its parts."""
    if weight is None or weight.dtype != input.dtype:
        return func(input, normalized_shape, weight, eps)
    return _NormOfKernel.apply(input, weight)


class _NormOfKernel(torch.autograd.Function):
    """What CUDA's kernel puts out and keeps: its input, the weight, and one float32 number a row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        scales = torch.empty(*x.shape[:-1], 1, dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, scales)
        return torch.empty_like(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)
