"""From token losses to one number: each micro-batch's share of the loss of a whole step.

Denominators are those of the whole step, given by the caller, so neither loss nor gradient depends on how the step is
cut into ranks and micro-batches. A row must hold all trained tokens of its sample.
Not here: token losses (`policy_losses.py`, `kl.py`), counting tokens over ranks.
Shape suffixes: `_B` sample, `_T` token.
"""

from collections.abc import Callable

import torch

from agent_rl.errors import ConfigError
from agent_rl.registry import look_up


def aggregate_loss(
    token_loss_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    mode: str,
    *,
    num_loss_tokens: int,
    num_samples: int,
    max_length: int | None = None,
) -> torch.Tensor:
    """One micro-batch's share (a scalar) of the step's loss; the shares of all micro-batches add up to it.

    `token_mean`: sum over trained tokens / `num_loss_tokens`, every token weighs the same (DAPO).
    `seq_mean_token_mean`: sum over samples of the mean over their trained tokens / `num_samples` (GRPO, GSPO).
    `seq_mean_token_sum`: sum over trained tokens / `num_samples`.
    `seq_mean_token_sum_norm`: sum over trained tokens / (`num_samples * max_length`), a constant that no length of a
    completion changes (Dr. GRPO); `max_length` is for this mode only.
    `num_loss_tokens` and `num_samples` count the whole step, over all micro-batches and ranks. A sample without a
    trained token adds nothing and is counted in `num_samples` all the same.
    ConfigError for an unknown mode and a `max_length` that is missing, or given but unused; ValueError if nothing is
    trained.
    """
    function = look_up(_AGGREGATIONS, mode, kind="aggregation")
    if (max_length is not None) != (mode == "seq_mean_token_sum_norm"):
        raise ConfigError(
            f"aggregation {mode!r} got max_length {max_length}; 'seq_mean_token_sum_norm' needs a number of tokens, "
            "all others none"
        )
    if num_loss_tokens < 1 or num_samples < 1:
        raise ValueError(
            f"the step has {num_loss_tokens} trained tokens in {num_samples} samples: there is nothing to aggregate"
        )
    mask_BT = mask_BT.bool()
    total = function(token_loss_BT.masked_fill(~mask_BT, 0.0), mask_BT)
    return total / (num_loss_tokens if mode == "token_mean" else num_samples * (max_length or 1))


def _sum(token_loss_BT: torch.Tensor, _mask: torch.Tensor) -> torch.Tensor:
    return token_loss_BT.sum()


def _sum_of_means(token_loss_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    return (token_loss_BT.sum(dim=-1) / mask_BT.sum(dim=-1).clamp(min=1)).sum()


_AGGREGATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "token_mean": _sum,
    "seq_mean_token_mean": _sum_of_means,
    "seq_mean_token_sum": _sum,
    "seq_mean_token_sum_norm": _sum,
}

AGGREGATIONS = tuple(_AGGREGATIONS)
"""All modes."""
