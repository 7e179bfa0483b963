"""Sequence parallelism: several processes share one micro-batch, each with a part of its tokens (DeepSpeed-Ulysses).

All a model does with a token by itself stays where the token is. For attention, processes exchange tokens for heads:
each then has all tokens of some heads, and afterwards its own tokens of all heads again
(https://arxiv.org/abs/2309.14509). Activations and logits of long samples are divided that way, and so is the work.
Not here: attention (`modeling/packed_attention.py`), which tokens a micro-batch has (`learning/packing.py`).
Shape suffixes: `_C` tokens of this process, `_T` of all, `_H` heads, `_D` head width.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from agent_rl.errors import ConfigError


def check_sharing(size: int, *, num_processes: int) -> None:
    """ConfigError unless the processes make up groups of `size`."""
    if num_processes % size:
        raise ConfigError(
            f"train.sequence_parallel = {size}: this run has {num_processes} processes, which are no multiple of it; "
            "start as many, or lower it"
        )


def check_heads(size: int, *, num_heads: int, num_kv_heads: int) -> None:
    """ConfigError unless `size` processes can divide the heads evenly."""
    if num_heads % size or max(num_kv_heads, size) % min(num_kv_heads, size):
        raise ConfigError(
            f"train.sequence_parallel = {size}: the model has {num_heads} heads, and {num_kv_heads} of keys and "
            "values, which so many processes cannot divide evenly; use a number that divides them"
        )


class SequenceGroup:
    """The processes that share a micro-batch, as one of them sees them: number `rank` of `size`. Calls are collective.

    Every process of the run makes one, with the same `size`, which divides their number.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        blocks = [list(range(first, first + size)) for first in range(0, dist.get_world_size(), size)]
        groups = [dist.new_group(block) for block in blocks]
        block, self.rank = divmod(dist.get_rank(), size)
        self._group = groups[block]

    def span(self, num_tokens: int, rank: int | None = None) -> tuple[int, int]:
        """First token and end of a process's part (this one's) of so many tokens, which `size` divides."""
        num_own, rank = num_tokens // self.size, self.rank if rank is None else rank
        return rank * num_own, (rank + 1) * num_own

    def to_heads(self, x_CHD: Tensor) -> Tensor:
        """All tokens [T, H / size, D] of this process's heads; fewer heads than processes are repeated."""
        num_tokens, num_heads, width = x_CHD.shape
        if num_heads < self.size:
            x_CHD = x_CHD.repeat_interleave(self.size // num_heads, dim=1)
        x = x_CHD.reshape(num_tokens, self.size, -1, width).transpose(0, 1)
        return _AllToAll.apply(x.contiguous(), self._group).flatten(0, 1)

    def to_tokens(self, x_THD: Tensor) -> Tensor:
        """This process's tokens [C, H * size, D] of all heads."""
        x = x_THD.reshape(self.size, -1, *x_THD.shape[1:])
        return _AllToAll.apply(x.contiguous(), self._group).transpose(0, 1).flatten(1, 2)

    def gather(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all processes, one after the other; `counts` is how many each has.

        The gradient of what every process computes from all of them, which is the same, reaches its own rows once.
        """
        return _Gather.apply(rows, tuple(counts), self.rank, self._group)


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        """Part i of `x` goes to process i; part i of the result is from it."""
        ctx.group = group
        received = torch.empty_like(x)
        dist.all_to_all_single(received, x, group=group)
        return received

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        returned = torch.empty_like(grad, memory_format=torch.contiguous_format)
        dist.all_to_all_single(returned, grad.contiguous(), group=ctx.group)
        return returned, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: tuple[int, ...], rank: int, group: Any) -> Tensor:
        ctx.first, ctx.num = sum(counts[:rank]), counts[rank]
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part[:num] for part, num in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return grad[ctx.first : ctx.first + ctx.num], None, None, None
