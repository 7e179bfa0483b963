"""Log-ratios of two policies on the same tokens, per token and per sample, blind to what stands where the mask is 0.

Not here: what is made of them (`policy_losses.py`, `corrections.py`, `kl.py`).
Shape suffixes: `_B` sample, `_T` token.
"""

import torch

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to plus or minus this before `exp`, which keeps one absurd token from overflowing."""


def masked_log_ratio(logprobs: torch.Tensor, denominator: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`logprobs - denominator`, any one shape, with value and gradient 0 where masked.

    A product with the mask would keep NaN, so values are replaced.
    """
    return (logprobs - denominator).masked_fill(~mask, 0.0)


def sequence_log_ratios(log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor, *, mean: bool) -> torch.Tensor:
    """Sum, or `mean`, of the log-ratios of each sample's trained tokens, [B, 1]; 0 for a sample without any.

    Masked log-ratios must be 0, as `masked_log_ratio` makes them.
    """
    total_B1 = log_ratio_BT.sum(dim=-1, keepdim=True)
    return total_B1 / mask_BT.sum(dim=-1, keepdim=True).clamp(min=1) if mean else total_B1


def bounded_exp(log_ratio: torch.Tensor) -> torch.Tensor:
    """`exp` of log-ratios clamped to plus or minus `MAX_LOG_RATIO`."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
