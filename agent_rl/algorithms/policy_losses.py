"""Policy losses and a critic's loss per token, and how far the trainer is from the policy that sampled.

A loss of your own is one decorated function (`@policy_loss_function`). Pure functions on tensors: whatever stands
where the mask is 0, infinities and NaN included, changes no loss and no gradient. A row must hold all trained tokens
of its sample where the ratio is one of sequences.
Not here: one number from token losses (`aggregation.py`), weights for a sampler that is not the trainer
(`corrections.py`), the KL to a reference (`kl.py`).
Shape suffixes: `_B` sample, `_T` token, `_N` trained token.
"""

from collections.abc import Callable
from typing import Any

import torch

from agent_rl.algorithms.ratios import MAX_LOG_RATIO, bounded_exp, masked_log_ratio, sequence_log_ratios
from agent_rl.algorithms.results import tensor_given, wrong_result
from agent_rl.errors import ConfigError
from agent_rl.registry import POLICY_LOSSES, look_up

MAX_SEQUENCE_LOG_RATIO = 10.0
"""Upper clamp of the log-ratio of a sequence, before `exp`."""

PolicyLoss = Callable[..., torch.Tensor]

policy_loss_function = POLICY_LOSSES.register
"""`@policy_loss_function("name")` on `(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT, *, options)`, to answer
token losses [B, T].

The three inputs are 0 where the mask is 0, and so will be the losses, whatever the function answers there.
"""


def token_policy_loss(
    name: str,
    logprobs_BT: torch.Tensor,
    old_logprobs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    **options: Any,
) -> torch.Tensor:
    """Token losses [B, T] of the loss of that name, with those of the options that it uses; 0 where the mask is 0.

    ConfigError with the nearest name for an unknown loss, for an option that no loss uses, and for a function that
    gives no losses of that shape, or losses without a gradient.
    """
    masked_BT = ~mask_BT.bool()
    columns = [column.masked_fill(masked_BT, 0.0) for column in (logprobs_BT, old_logprobs_BT, advantages_BT)]
    given, function = POLICY_LOSSES.call(name, *columns, ~masked_BT, **options), POLICY_LOSSES.get(name)
    what = f"the policy loss {name!r}"
    losses_BT = tensor_given(given, mask_BT.shape, function, what=what, expected="a tensor of token losses")
    if columns[0].requires_grad and not losses_BT.requires_grad:
        raise wrong_result(what, function, "losses without a gradient", "losses computed from its first input")
    return losses_BT.masked_fill(masked_BT, 0.0)


@policy_loss_function("ppo_clip")
def policy_loss(
    logprobs_BT: torch.Tensor,
    old_logprobs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    ratio_level: str = "token",
) -> torch.Tensor:
    """Clipped policy loss per token [B, T], to be minimised; 0 where the mask is 0.

    `-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)` with `ratio = exp(logprobs - denominator)`.
    `dual_clip`, above 1: where A < 0, the loss is never more than `-dual_clip * A`.
    `ratio_level` `sequence`: every token of a sample has the ratio `exp(mean of log-ratios)`, whose gradient reaches
    each token's log-prob as if the ratio were the token's own.
    Formulas: Schulman et al. 2017 (PPO, equation 7); two clip ranges: Yu et al. 2025 (DAPO, "clip-higher"); dual clip:
    Ye et al. 2020, equation 5; sequences: Zheng et al. 2025 (GSPO, equations 7 and 14).
    """
    mask_BT = mask_BT.bool()
    advantages_BT = advantages_BT.masked_fill(~mask_BT, 0.0)
    ratio_BT = _ratio(logprobs_BT, old_logprobs_BT, mask_BT, ratio_level)
    clipped_BT = ratio_BT.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss_BT = -torch.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)
    if dual_clip is None:
        return loss_BT
    _check_dual_clip(dual_clip)
    return torch.where(advantages_BT < 0, torch.minimum(loss_BT, -dual_clip * advantages_BT), loss_BT)


@policy_loss_function("cispo")
def cispo_loss(
    logprobs_BT: torch.Tensor,
    old_logprobs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> torch.Tensor:
    """`-clip(ratio, 1 - clip_low, 1 + clip_high) * A * logprobs` per token [B, T], without a gradient of the ratio.

    So a clipped token is weighed less but never falls out. `clip_low` 1 clips above only.
    Formula: MiniMax 2025 (CISPO, equation 4).
    """
    mask_BT = mask_BT.bool()
    weights_BT = _ratio(logprobs_BT.detach(), old_logprobs_BT, mask_BT, "token").clamp(1.0 - clip_low, 1.0 + clip_high)
    advantages_BT = advantages_BT.masked_fill(~mask_BT, 0.0)
    return -weights_BT * advantages_BT * logprobs_BT.masked_fill(~mask_BT, 0.0)


@torch.no_grad()
def ratio_metrics(
    logprobs_BT: torch.Tensor,
    sampling_logprobs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    ratio_level: str = "token",
) -> dict[str, float]:
    """How far the trainer is from the sampler, over trained tokens; empty when there are none.

    `loss/clip_frac`: share of tokens whose gradient `policy_loss` with these options removes.
    `loss/abs_log_ratio_mean|max`: of `logprobs - sampling_logprobs` per token, not clamped. `policy/kl`: KL(sampler ||
    trainer) estimated by `exp(x) - 1 - x` of that log-ratio x (k3, Schulman 2020), clamped as in the loss.
    All inputs may have any one shape, rows of samples where `ratio_level` is `sequence`: means do not average over
    micro-batches, so concatenate a step's tokens first.
    """
    mask_BT = mask_BT.bool()
    if not mask_BT.any():
        return {}
    log_ratio_N = masked_log_ratio(logprobs_BT, sampling_logprobs_BT, mask_BT)[mask_BT]
    ratio_N = _ratio(logprobs_BT, sampling_logprobs_BT, mask_BT, ratio_level)[mask_BT]
    advantages_N = advantages_BT[mask_BT]
    clipped_N = torch.where(advantages_N > 0, ratio_N > 1.0 + clip_high, ratio_N < 1.0 - clip_low)
    if dual_clip is not None:
        _check_dual_clip(dual_clip)
        clipped_N |= (advantages_N < 0) & (ratio_N > dual_clip)
    clamped_N = log_ratio_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return {
        "loss/clip_frac": float((clipped_N & (advantages_N != 0)).double().mean()),
        "loss/abs_log_ratio_mean": float(log_ratio_N.abs().mean()),
        "loss/abs_log_ratio_max": float(log_ratio_N.abs().max()),
        "policy/kl": float((torch.expm1(clamped_N) - clamped_N).mean()),
    }


def _ratio(logprobs: torch.Tensor, denominator: torch.Tensor, mask: torch.Tensor, level: str) -> torch.Tensor:
    return look_up(_RATIOS, level, kind="ratio level")(logprobs, denominator, mask)


def _token_ratio(logprobs: torch.Tensor, denominator: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return bounded_exp(masked_log_ratio(logprobs, denominator, mask))


def _sequence_ratio(logprobs_BT: torch.Tensor, denominator_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    log_ratio_BT = masked_log_ratio(logprobs_BT, denominator_BT, mask_BT)
    of_sequence_B1 = sequence_log_ratios(log_ratio_BT, mask_BT, mean=True).detach()
    # Adds 0, with the gradient of the token's own log-prob.
    own_BT = log_ratio_BT - log_ratio_BT.detach()
    return (of_sequence_B1 + own_BT).clamp(-MAX_LOG_RATIO, MAX_SEQUENCE_LOG_RATIO).exp()


_RATIOS = {"token": _token_ratio, "sequence": _sequence_ratio}


def _check_dual_clip(dual_clip: float) -> None:
    if not dual_clip > 1:
        raise ConfigError(
            f"dual_clip is {dual_clip}, expected a number above 1, as 3, or none; see algorithm.dual_clip"
        )


def value_loss(
    values_BT: torch.Tensor,
    old_values_BT: torch.Tensor,
    returns_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    clip: float,
) -> torch.Tensor:
    """Clipped squared error per token [B, T], to be minimised; value and gradient 0 where the mask is 0.

    `0.5 * max((V - R)**2, (clip(V, V_before - clip, V_before + clip) - R)**2)` with V_before the value by the critic
    before the step's first update (`old_values_BT`). `clip` infinity is the plain squared error.
    Formula: Schulman et al. 2017, as in OpenAI baselines.
    """
    masked_BT = ~mask_BT.bool()
    columns = (values_BT, old_values_BT, returns_BT)
    values_BT, before_BT, returns_BT = (column.masked_fill(masked_BT, 0.0) for column in columns)
    clipped_BT = values_BT.clamp(before_BT - clip, before_BT + clip)
    return torch.maximum((values_BT - returns_BT).square(), (clipped_BT - returns_BT).square()) / 2
