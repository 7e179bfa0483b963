"""Muon against torch's own, and what its directions are."""

import pytest
import torch

from agent_rl.learning.muon import Muon, orthogonal


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_directions_have_singular_values_near_one_and_the_same_vectors(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    values = left.T @ orthogonal(matrix, torch.float32) @ right.T
    assert torch.allclose(values, torch.diag(values.diagonal()), atol=1e-4)
    assert ((values.diagonal() > 0.5) & (values.diagonal() < 1.3)).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 1e-7), (torch.float32, 2e-3)])
def test_steps_are_those_of_torch(dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(1)
    ours, theirs = (torch.nn.Parameter(torch.ones(6, 3) / 3) for _ in range(2))
    first = Muon([ours], lr=0.02, weight_decay=0.05, dtype=dtype)
    second = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.05)
    for _ in range(4):
        ours.grad = torch.randn(6, 3, generator=generator)
        theirs.grad = ours.grad.clone()
        first.step()
        second.step()
    assert torch.allclose(ours, theirs, atol=tolerance)


def test_a_matrix_without_gradient_stays() -> None:
    matrix = torch.nn.Parameter(torch.ones(2, 2))
    Muon([matrix], lr=1.0, weight_decay=0.5).step()
    assert torch.equal(matrix, torch.ones(2, 2))
