"""Advantages: the rewards of one group in, one advantage per episode out.

Pure functions on small tensors, computed in float64. A group without signal gets exactly 0, so that rounding is
never divided by a tiny standard deviation. Not here: spreading advantages over tokens (`core/batch.py`), losses.
Shape suffix `_G`: one entry per episode of the group.
"""

import math
from collections.abc import Callable, Sequence

import torch

SIGNAL_TOLERANCE = 1e-6
"""Rewards of a group that differ by no more than this are the same reward."""

Rewards = Sequence[float | None] | torch.Tensor


def grpo_advantages(rewards_G: Rewards, *, scale_by_std: bool = True, eps: float = 1e-6) -> torch.Tensor:
    """Group-relative advantages, float64 [G]: `(r - mean) / (std + eps)`, or `r - mean` without `scale_by_std`.

    `std` divides by n - 1. A reward of None or NaN could not be scored: it is left out of the statistics and its
    advantage is 0. A group without signal (see `has_signal`) has advantage exactly 0 everywhere.
    Raises ValueError for rewards that are infinite or not one-dimensional.
    Formula: Shao et al. 2024 (DeepSeekMath, section 4.1); without std: Liu et al. 2025 (Dr. GRPO).
    """
    values_G, scored_G = _to_float64(rewards_G)
    advantages_G = torch.zeros_like(values_G)
    scored = values_G[scored_G]
    if not _differ(scored):
        return advantages_G
    centred = scored - scored.mean()
    advantages_G[scored_G] = centred / (scored.std(correction=1) + eps) if scale_by_std else centred
    return advantages_G


ESTIMATORS: dict[str, Callable[..., torch.Tensor]] = {"grpo": grpo_advantages}
"""Estimators by their name in `algorithm.advantage`."""


def has_signal(rewards_G: Rewards) -> bool:
    """Whether the scored rewards of a group differ by more than `SIGNAL_TOLERANCE`; False for fewer than two."""
    values_G, scored_G = _to_float64(rewards_G)
    return _differ(values_G[scored_G])


def _differ(scored: torch.Tensor) -> bool:
    return scored.numel() > 1 and float(scored.max() - scored.min()) > SIGNAL_TOLERANCE


def _to_float64(rewards_G: Rewards) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards as float64 [G] on the CPU and a bool mask [G] of those that were scored."""
    if isinstance(rewards_G, torch.Tensor):
        values_G = rewards_G.detach().to(device="cpu", dtype=torch.float64)
    else:
        values_G = torch.tensor([math.nan if r is None else r for r in rewards_G], dtype=torch.float64)
    if values_G.ndim != 1:
        raise ValueError(f"rewards of one group must have shape [G], got {list(values_G.shape)}")
    if values_G.isinf().any():
        raise ValueError(f"a reward is infinite: {values_G.tolist()}; an episode that cannot be scored has reward None")
    return values_G, ~values_G.isnan()
