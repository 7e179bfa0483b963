"""Advantages per token: token rewards in, returns and advantages of trained tokens out.

Pure functions, computed in float64. Masked tokens (prompts, tool outputs, padding) are not steps of the episode: the
token after one trained token is the next trained one, however many masked ones stand between, and what stands where
the mask is 0, infinities and NaN included, is never read. All results are 0 there.
Not here: rewards of a group (`advantages.py`), where a reward is placed (`estimators.py`).
Shape suffixes: `_B` sample, `_T` token.
"""

import torch

SIGNAL_TOLERANCE = 1e-6
"""Rewards, or returns, that differ by no more than this are the same."""

_VARIANCE_EPS = 1e-8


def reinforce_pp_advantages(
    token_rewards_BT: torch.Tensor, mask_BT: torch.Tensor, *, gamma: float = 1.0
) -> torch.Tensor:
    """Discounted returns, whitened over all trained tokens; float64 [B, T].

    `G_t = R_t + gamma * G_next` with `next` the next trained token of the row.
    Formula: Hu 2025 (REINFORCE++).
    """
    # Without a critic and with lam 1, generalised advantages are the returns.
    returns_BT, _ = gae_advantages(
        token_rewards_BT, torch.zeros_like(token_rewards_BT), mask_BT, gamma=gamma, lam=1.0, whiten=False
    )
    return whitened(returns_BT, mask_BT)


def gae_advantages(
    token_rewards_BT: torch.Tensor,
    values_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    gamma: float,
    lam: float,
    whiten: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalised advantages and the critic's targets, both float64 [B, T].

    `delta_t = R_t + gamma * V_next - V_t`, `A_t = delta_t + gamma * lam * A_next`, with `next` the next trained token
    of the row and 0 after the last one. Targets are `A + V`; with `whiten`, advantages (not targets) are whitened over
    all trained tokens.
    Formula: Schulman et al. 2016 (GAE, equation 16).
    """
    mask_BT = mask_BT.bool()
    # Columns first, so that each step of the loop reads one contiguous row.
    rewards_TB = _clean(token_rewards_BT, mask_BT).T.contiguous()
    values_TB = _clean(values_BT, mask_BT).T.contiguous()
    mask_TB = mask_BT.T.contiguous()
    advantages_TB = torch.zeros_like(rewards_TB)
    next_advantage_B = next_value_B = rewards_TB.new_zeros(rewards_TB.shape[1])
    for t in reversed(range(len(rewards_TB))):
        delta_B = rewards_TB[t] + gamma * next_value_B - values_TB[t]
        next_advantage_B = torch.where(mask_TB[t], delta_B + gamma * lam * next_advantage_B, next_advantage_B)
        next_value_B = torch.where(mask_TB[t], values_TB[t], next_value_B)
        advantages_TB[t] = next_advantage_B
    advantages_BT = advantages_TB.T.masked_fill(~mask_BT, 0.0)
    returns_BT = advantages_BT + values_TB.T
    return whitened(advantages_BT, mask_BT) if whiten else advantages_BT, returns_BT


def whitened(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Values of any one shape shifted and scaled to mean 0 and variance 1 where the mask is true, float64; 0 elsewhere.

    `(x - mean) / sqrt(var + 1e-8)`, the variance divided by n - 1. Exactly 0 where all values are the same.
    """
    mask = mask.bool()
    chosen = values[mask].double()
    result = torch.zeros_like(values, dtype=torch.float64)
    if differ(chosen):
        result[mask] = (chosen - chosen.mean()) * torch.rsqrt(chosen.var(correction=1) + _VARIANCE_EPS)
    return result


def differ(values: torch.Tensor) -> bool:
    """Whether values differ by more than `SIGNAL_TOLERANCE`; False for fewer than two, True where one is NaN."""
    # Not `>`: a NaN must come out as NaN, where the trainer sees it, and not as a quiet 0.
    return values.numel() > 1 and not float(values.max() - values.min()) <= SIGNAL_TOLERANCE


def _clean(values_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    return values_BT.detach().double().masked_fill(~mask_BT, 0.0)
