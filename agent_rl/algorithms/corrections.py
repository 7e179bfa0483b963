"""Weights for tokens sampled by a policy that is not exactly the trainer's, and the size of the gap.

The sampler may run other kernels, another number format or older weights. Weights multiply token losses and carry no
gradient; denominators stay those of the uncorrected step. A row must hold all trained tokens of its sample.
Not here: the ratio between updates of one step (`policy_losses.py`).
Shape suffixes: `_B` sample, `_T` token, `_N` trained token.
"""

import math

import torch

from agent_rl.algorithms.ratios import MAX_LOG_RATIO, bounded_exp, masked_log_ratio, sequence_log_ratios
from agent_rl.registry import look_up

_LEVELS = {
    "none": "token",
    "token_tis": "token",
    "token_mask": "token",
    "sequence_tis": "product",
    "sequence_mask": "product",
    "geometric_mask": "mean",
}

CORRECTIONS = tuple(_LEVELS)
"""All kinds."""


@torch.no_grad()
def importance_weights(
    old_logprobs_BT: torch.Tensor,
    sampling_logprobs_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    kind: str,
    low: float = 0.0,
    high: float = math.inf,
) -> torch.Tensor:
    """Weights [B, T] of token losses, detached; 0 where the mask is 0. With `w = exp(old - sampling)`:

    | kind | weight |
    | --- | --- |
    | `none` | 1 |
    | `token_tis` | `min(w, high)`: truncated importance sampling (Yao et al. 2025) |
    | `token_mask` | w where `low <= w <= high`, else 0 (IcePop; Ling team 2025) |
    | `sequence_tis` | `min(product of the sample's w, high)` on all its tokens |
    | `sequence_mask` | 1 where `low <= product of the sample's w <= high`, else 0 |
    | `geometric_mask` | 1 where `low <= geometric mean of the sample's w <= high`, else 0 |

    Log-ratios are clamped to 20 before `exp`. The truncating kinds have no use for `low`.
    ConfigError for an unknown kind.
    """
    mask_BT = mask_BT.bool()
    ratio_BT = _ratio(old_logprobs_BT, sampling_logprobs_BT, mask_BT, kind)
    is_cut_BT = _is_cut(ratio_BT, kind, low=low, high=high)
    if kind in ("token_tis", "sequence_tis"):
        weights_BT = ratio_BT.clamp(max=high)
    elif kind == "token_mask":
        weights_BT = ratio_BT.masked_fill(is_cut_BT, 0.0)
    else:
        weights_BT = (~is_cut_BT).to(ratio_BT.dtype)
    return weights_BT.masked_fill(~mask_BT, 0.0)


@torch.no_grad()
def mismatch_metrics(
    old_logprobs_BT: torch.Tensor,
    sampling_logprobs_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    kind: str = "none",
    low: float = 0.0,
    high: float = math.inf,
) -> dict[str, float]:
    """How far trainer and sampler are apart before any update, over trained tokens; empty when there are none.

    Of raw ratios `w = exp(x)`, `x = old - sampling`, before any truncation (x clamped to 20 for `exp` alone):
    `mismatch/log_diff_mean` of `-x`, `mismatch/abs_log_diff_max`, `mismatch/k2` and `mismatch/k3` (KL(sampler ||
    trainer)), `mismatch/chi_square` `mean(w**2) - 1`, `mismatch/ess` the effective share of the sample size
    `sum(w)**2 / (N * sum(w**2))`, `mismatch/ratio_max`, `mismatch/sequence_ratio_max` of products and
    `mismatch/geometric_ratio_max` of geometric means.
    Of the correction: `mismatch/cut_tokens`, `mismatch/cut_samples`, the shares of trained tokens that `kind` truncates
    or drops, and of samples with such a token. A sample without a trained token counts nowhere.
    Not additive over micro-batches: concatenate a step's samples first.
    """
    mask_BT = mask_BT.bool()
    if not mask_BT.any():
        return {}
    has_tokens_B = mask_BT.any(dim=-1)
    log_ratio_BT = masked_log_ratio(old_logprobs_BT.double(), sampling_logprobs_BT.double(), mask_BT)
    x_N = log_ratio_BT[mask_BT]
    w_N = bounded_exp(x_N)
    by_level = {kind: sequence_log_ratios(log_ratio_BT, mask_BT, mean=kind == "mean") for kind in ("product", "mean")}
    is_cut_BT = _is_cut(_ratio(old_logprobs_BT, sampling_logprobs_BT, mask_BT, kind), kind, low=low, high=high)
    is_cut_BT = is_cut_BT & mask_BT
    return {
        "mismatch/log_diff_mean": float(-x_N.mean()),
        "mismatch/abs_log_diff_max": float(x_N.abs().max()),
        "mismatch/k2": float(x_N.square().mean() / 2),
        "mismatch/k3": float((w_N - 1.0 - x_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)).mean()),
        "mismatch/chi_square": float(w_N.square().mean() - 1.0),
        "mismatch/ess": float(w_N.sum().square() / (len(w_N) * w_N.square().sum())),
        "mismatch/ratio_max": float(w_N.max()),
        "mismatch/sequence_ratio_max": float(bounded_exp(by_level["product"][has_tokens_B]).max()),
        "mismatch/geometric_ratio_max": float(bounded_exp(by_level["mean"][has_tokens_B]).max()),
        "mismatch/cut_tokens": float(is_cut_BT[mask_BT].double().mean()),
        "mismatch/cut_samples": float(is_cut_BT.any(dim=-1)[has_tokens_B].double().mean()),
    }


def _ratio(old: torch.Tensor, sampling: torch.Tensor, mask_BT: torch.Tensor, kind: str) -> torch.Tensor:
    """The ratio that decides in this kind, for every token, [B, T]."""
    level = look_up(_LEVELS, kind, kind="sampler correction")
    log_ratio_BT = masked_log_ratio(old, sampling, mask_BT)
    if level != "token":
        log_ratio_BT = sequence_log_ratios(log_ratio_BT, mask_BT, mean=level == "mean").expand_as(log_ratio_BT)
    return bounded_exp(log_ratio_BT)


def _is_cut(ratio_BT: torch.Tensor, kind: str, *, low: float, high: float) -> torch.Tensor:
    if kind == "none":
        return torch.zeros_like(ratio_BT, dtype=torch.bool)
    above_BT = ratio_BT > high
    return above_BT if kind.endswith("_tis") else above_BT | (ratio_BT < low)
