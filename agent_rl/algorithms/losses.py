"""Policy losses per token, their aggregation over a step, and chunked log-probs of sampled ids.

Pure functions on tensors. Whatever stands where the mask is 0, infinities and NaN included, changes no loss and no
gradient. Denominators are those of the whole step, given by the caller, so the gradient does not depend on how the
step is cut into micro-batches. Not here: the model, the shift between logits and ids, the optimizer.
Shape suffixes: `_B` sample, `_T` token, `_N` trained token, `_d` hidden width, `_V` vocabulary.
"""

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to plus or minus this before `exp`, which keeps one absurd token from overflowing."""


def policy_loss(
    logprobs_BT: torch.Tensor,
    sampling_or_prox_logprobs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> torch.Tensor:
    """Clipped policy loss per token [B, T], to be minimised; 0 where the mask is 0.

    `-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)` with `ratio = exp(logprobs - denominator)`.
    Formula: Schulman et al. 2017 (PPO, equation 7); two clip ranges: Yu et al. 2025 (DAPO, "clip-higher").
    """
    mask_BT = mask_BT.bool()
    advantages_BT = advantages_BT.masked_fill(~mask_BT, 0.0)
    log_ratio_BT = _log_ratio(logprobs_BT, sampling_or_prox_logprobs_BT, mask_BT)
    ratio_BT = log_ratio_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    clipped_BT = ratio_BT.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -torch.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)


def aggregate_loss(
    token_loss_BT: torch.Tensor, mask_BT: torch.Tensor, mode: str, *, num_loss_tokens: int, num_samples: int
) -> torch.Tensor:
    """One micro-batch's share (a scalar) of the step's loss; the shares of all micro-batches add up to it.

    `token_mean`: sum over trained tokens / `num_loss_tokens`, every token weighs the same (DAPO).
    `seq_mean_token_mean`: sum over samples of the mean over their trained tokens / `num_samples` (GRPO).
    `num_loss_tokens` and `num_samples` count the whole step, over all micro-batches and ranks.
    """
    if mode not in _AGGREGATIONS:
        raise ValueError(f"unknown aggregation {mode!r}; known: {', '.join(_AGGREGATIONS)}")
    if num_loss_tokens < 1 or num_samples < 1:
        raise ValueError(
            f"the step has {num_loss_tokens} trained tokens in {num_samples} samples: there is nothing to aggregate"
        )
    mask_BT = mask_BT.bool()
    token_loss_BT = token_loss_BT.masked_fill(~mask_BT, 0.0)
    return _AGGREGATIONS[mode](token_loss_BT, mask_BT, num_loss_tokens, num_samples)


def _token_mean(token_loss_BT: torch.Tensor, _mask: torch.Tensor, num_loss_tokens: int, _num: int) -> torch.Tensor:
    return token_loss_BT.sum() / num_loss_tokens


def _seq_mean_token_mean(
    token_loss_BT: torch.Tensor, mask_BT: torch.Tensor, _num: int, num_samples: int
) -> torch.Tensor:
    num_tokens_B = mask_BT.sum(dim=-1).clamp(min=1)
    return (token_loss_BT.sum(dim=-1) / num_tokens_B).sum() / num_samples


_AGGREGATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor, int, int], torch.Tensor]] = {
    "token_mean": _token_mean,
    "seq_mean_token_mean": _seq_mean_token_mean,
}


@torch.no_grad()
def ratio_metrics(
    logprobs_BT: torch.Tensor,
    sampling_logprobs_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> dict[str, float]:
    """How far the trainer is from the sampler, over trained tokens; empty when there are none.

    `loss/clip_frac`: share of tokens whose gradient the clip removes. `loss/abs_log_ratio_mean|max`: of
    `logprobs - sampling_logprobs`, not clamped. `loss/kl`: KL(sampler || trainer) estimated by
    `exp(x) - 1 - x` of that log-ratio x (the k3 estimator, Schulman 2020), clamped as in the loss.
    All inputs may have any one shape: means do not average over micro-batches, so concatenate a step's tokens first.
    """
    mask_BT = mask_BT.bool()
    if not mask_BT.any():
        return {}
    log_ratio_N = _log_ratio(logprobs_BT, sampling_logprobs_BT, mask_BT)[mask_BT]
    advantages_N = advantages_BT[mask_BT]
    clamped_N = log_ratio_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio_N = clamped_N.exp()
    clipped_N = torch.where(advantages_N > 0, ratio_N > 1.0 + clip_high, ratio_N < 1.0 - clip_low)
    return {
        "loss/clip_frac": float((clipped_N & (advantages_N != 0)).double().mean()),
        "loss/abs_log_ratio_mean": float(log_ratio_N.abs().mean()),
        "loss/abs_log_ratio_max": float(log_ratio_N.abs().max()),
        "loss/kl": float((torch.expm1(clamped_N) - clamped_N).mean()),
    }


def chunked_logprobs(
    hidden_rows_Nd: torch.Tensor,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    targets_N: torch.Tensor,
    *,
    temperature: float,
    chunk_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each target and entropy in nats of its distribution, both float32 [N].

    The distribution is `softmax(logits_of(hidden) / temperature)`, normalised in float32; `logits_of` is a model's
    head, [n, d] -> [n, V], and its weights get their gradients too. Rows go through in chunks of `chunk_size`, so that
    about `chunk_size * V` logits exist at a time instead of `N * V`; with more than one chunk the backward pass
    computes each chunk's logits again. The entropy carries no gradient.
    """
    logprobs: list[torch.Tensor] = []
    entropies: list[torch.Tensor] = []
    recompute = torch.is_grad_enabled() and hidden_rows_Nd.shape[0] > chunk_size
    chunks = zip(hidden_rows_Nd.split(chunk_size), targets_N.split(chunk_size), strict=True)
    for hidden, targets in chunks:
        inputs = (hidden, logits_of, targets, temperature)
        if recompute:
            chunk = checkpoint(_chunk_logprobs, *inputs, use_reentrant=False, preserve_rng_state=False)
        else:
            chunk = _chunk_logprobs(*inputs)
        logprobs.append(chunk[0])
        entropies.append(chunk[1])
    return torch.cat(logprobs), torch.cat(entropies)


def _chunk_logprobs(
    hidden: torch.Tensor,
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    targets: torch.Tensor,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = logits_of(hidden).float() / temperature  # to float32 first: bf16 division would round again
    log_softmax = torch.log_softmax(logits, dim=-1)
    logprobs = log_softmax.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        entropy = torch.special.entr(log_softmax.exp()).sum(dim=-1)
    return logprobs, entropy


def _log_ratio(logprobs: torch.Tensor, denominator: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`logprobs - denominator`, with value and gradient 0 where masked (a product with the mask would keep NaN)."""
    return (logprobs - denominator).masked_fill(~mask, 0.0)
