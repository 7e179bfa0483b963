"""Muon with orthogonalisation in a format of choice: momentum made orthogonal by five Newton-Schulz iterations.

Jordan et al. 2024, as `torch.optim.Muon` has it with its defaults; that one always iterates in bfloat16, which is
far slower on a CPU without instructions for it. For matrices alone, not for vectors and embeddings.
"""

import math
from collections.abc import Iterable

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
MOMENTUM = 0.95


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonal steps scaled by sqrt(max(1, rows / columns)), weight decay apart from them."""

    def __init__(
        self, matrices: Iterable[torch.Tensor], *, lr: float, weight_decay: float, dtype: torch.dtype = torch.float32
    ) -> None:
        """`dtype`: format of the iterations, bfloat16 as in the paper or float32."""
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                momentum = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix.grad))
                momentum.lerp_(matrix.grad, 1 - MOMENTUM)
                direction = orthogonal(matrix.grad.lerp(momentum, MOMENTUM), self._dtype)
                scale = math.sqrt(max(1.0, matrix.shape[0] / matrix.shape[1]))
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(direction.to(matrix.dtype), alpha=-group["lr"] * scale)


def orthogonal(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A matrix of the same singular vectors, its singular values near 1."""
    first, second, third = COEFFICIENTS
    out = matrix.to(dtype)
    is_tall = out.shape[0] > out.shape[1]
    out = out.T if is_tall else out
    out = out / out.norm().clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = out @ out.T
        out = torch.addmm(out, torch.addmm(gram, gram, gram, beta=second, alpha=third), out, beta=first)
    return out.T if is_tall else out
