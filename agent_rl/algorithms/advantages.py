"""Advantages of one group: the rewards of its episodes in, one advantage per episode out; a penalty on long ones.

Pure functions on small tensors, computed in float64. A zero-variance group gets exactly 0, so that rounding is
never divided by a tiny standard deviation. A reward of None or NaN could not be scored: it is left out of the
statistics and its advantage is 0. Infinite rewards and rewards that are not one-dimensional raise ValueError.
Not here: advantages per token (`token_advantages.py`), a whole step (`estimators.py`).
Shape suffixes: `_G` episode of the group, `_E` episode of the step.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from agent_rl.algorithms.token_advantages import differ
from agent_rl.errors import ConfigError
from agent_rl.registry import look_up

Rewards = Sequence[float | None] | torch.Tensor


def has_variance(rewards_G: Rewards) -> bool:
    """Whether the scored rewards of a group differ by more than `SIGNAL_TOLERANCE`; False for fewer than two."""
    values_G, scored_G = _to_float64(rewards_G)
    return differ(values_G[scored_G])


def grpo_advantages(
    rewards_G: Rewards, *, scale_by_std: bool = True, min_std: float = 0.0, eps: float = 1e-6
) -> torch.Tensor:
    """Group-relative advantages, float64 [G]: `(r - mean) / (std + eps)`, or `r - mean` without `scale_by_std`.

    `std` divides by n - 1, and is `min_std` (a reward) where it is smaller: else a group whose rewards hardly differ
    counts as much as one of successes and failures.
    Formula: Shao et al. 2024 (DeepSeekMath, section 4.1); without std: Liu et al. 2025 (Dr. GRPO).
    """

    def advantages_of(scored: torch.Tensor) -> torch.Tensor:
        centred = scored - scored.mean()
        return centred / (scored.std(correction=1).clamp(min=min_std) + eps) if scale_by_std else centred

    return _with_signal(rewards_G, advantages_of)


def rloo_advantages(rewards_G: Rewards) -> torch.Tensor:
    """Leave-one-out advantages, float64 [G]: each reward minus the mean of the others, `n / (n - 1) * (r - mean)`.

    Formula: Kool et al. 2019; Ahmadian et al. 2024 (RLOO).
    """
    return _with_signal(rewards_G, lambda scored: (scored - scored.mean()) * len(scored) / (len(scored) - 1))


def maxrl_advantages(rewards_G: Rewards, *, eps: float = 1e-6) -> torch.Tensor:
    """Advantages relative to the mean reward, float64 [G]: `(r - mean) / (mean + eps)`.

    The rarer success is in a group, the more it weighs. ConfigError for a negative reward: the mean would then be no
    measure of success.
    Formula: Tajwar et al. 2026 (MaxRL).
    """

    def advantages_of(scored: torch.Tensor) -> torch.Tensor:
        if scored.min() < 0:
            raise ConfigError(
                f"the estimator 'maxrl' divides by a group's mean reward and got a reward of {float(scored.min())}, "
                "expected none below 0; choose another algorithm.advantage or rewards from 0 up"
            )
        return (scored - scored.mean()) / (scored.mean() + eps)

    return _with_signal(rewards_G, advantages_of)


def opo_advantages(rewards_G: Rewards, num_tokens_G: Sequence[int] | torch.Tensor) -> torch.Tensor:
    """Advantages over the length-weighted mean, float64 [G]: `r - sum(l * r) / sum(l)` with l trained tokens.

    Formula: Hao et al. 2025 (OPO, optimal reward baseline).
    """
    lengths_G = torch.as_tensor(num_tokens_G, dtype=torch.float64)
    values_G, scored_G = _to_float64(rewards_G)
    if lengths_G.shape != values_G.shape:
        raise ValueError(f"{len(lengths_G)} lengths for {len(values_G)} rewards of one group")
    weights = lengths_G[scored_G]
    return _with_signal(values_G, lambda scored: scored - (weights * scored).sum() / weights.sum())


def pass_at_k_advantages(rewards_G: Rewards, *, scale_by_std: bool = True, eps: float = 1e-6) -> torch.Tensor:
    """Credit for the best episode alone, float64 [G]: by how much it beats the second best, 0 for all others.

    Divided by `std + eps` with `scale_by_std`. Where several are best, all advantages are 0.
    Formula: Tang et al. 2025 (pass@k training).
    """

    def advantages_of(scored: torch.Tensor) -> torch.Tensor:
        (first, second), places = scored.topk(2)
        advantages = torch.zeros_like(scored)
        advantages[places[0]] = first - second
        return advantages / (scored.std(correction=1) + eps) if scale_by_std else advantages

    return _with_signal(rewards_G, advantages_of)


def remax_advantages(rewards_G: Rewards, greedy_reward: float | torch.Tensor) -> torch.Tensor:
    """Advantages over a greedy episode of the same task, float64 [G]: `r - greedy_reward`.

    Nothing is compared inside the group, so a group of one or of equal rewards has advantages as well. Exactly 0
    where the greedy episode has no score (NaN). `greedy_reward` may hold one value per episode, [G].
    Formula: Li et al. 2023 (ReMax).
    """
    values_G, _ = _to_float64(rewards_G)
    return (values_G - torch.as_tensor(greedy_reward, dtype=torch.float64)).nan_to_num(nan=0.0)


def normalize_parts(parts_G: Mapping[str, Rewards], weights: Mapping[str, float]) -> torch.Tensor:
    """Weighted sum of reward parts, float64 [G], each standardised inside the group as by `grpo_advantages`.

    A part that does not differ within the group adds exactly 0, whatever the others do. Only parts that have a weight
    are used; ConfigError where `parts_G` lacks one of them. Whitening over the batch is a separate step (`whitened`).
    Formula: Liu et al. 2026 (GDPO).
    """
    if not weights:
        raise ConfigError(f"no part of the reward has a weight; give weights to some of: {', '.join(parts_G)}")
    columns = [weight * grpo_advantages(look_up(parts_G, n, kind="reward part")) for n, weight in weights.items()]
    return torch.stack(columns).sum(dim=0)


def _with_signal(rewards_G: Rewards, advantages_of: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """`advantages_of` the scored rewards in their places, 0 elsewhere; all 0 for a zero-variance group."""
    values_G, scored_G = _to_float64(rewards_G)
    advantages_G = torch.zeros_like(values_G)
    if differ(values_G[scored_G]):
        advantages_G[scored_G] = advantages_of(values_G[scored_G])
    return advantages_G


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


def overlong_penalty(num_tokens_E: torch.Tensor, *, max_tokens: int, buffer: int) -> torch.Tensor:
    """What to add to the rewards of episodes of so many tokens: from 0 down to -1, float64 [E].

    0 up to `max_tokens - buffer`, then falling linearly to -1 at `max_tokens`, and -1 beyond.
    ConfigError when `buffer` is not from 1 to `max_tokens`. Formula: Yu et al. 2025 (DAPO, equation 13).
    """
    if not 1 <= buffer <= max_tokens:
        raise ConfigError(f"the overlong buffer is {buffer} tokens, expected from 1 to the budget of {max_tokens}")
    return ((max_tokens - buffer - num_tokens_E.double()) / buffer).clamp(-1.0, 0.0)
