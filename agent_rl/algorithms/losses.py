"""All losses and what they are made of, under one name: the place to import them from.

Whatever stands where a mask is 0, infinities and NaN included, changes no loss and no gradient, and no gradient depends
on how a step is cut into micro-batches. Not here: any code; each module says what it does.
"""

from agent_rl.algorithms.aggregation import AGGREGATIONS, aggregate_loss
from agent_rl.algorithms.corrections import CORRECTIONS, importance_weights, mismatch_metrics
from agent_rl.algorithms.critic import value_loss
from agent_rl.algorithms.kl import KL_KINDS, KLController, kl_penalty
from agent_rl.algorithms.logprobs import TokenScores, token_scores
from agent_rl.algorithms.policy_losses import (
    cispo_loss,
    policy_loss,
    policy_loss_function,
    ratio_metrics,
    token_policy_loss,
)
from agent_rl.algorithms.ratios import MAX_LOG_RATIO
from agent_rl.algorithms.shaping import overlong_penalty

__all__ = [
    "AGGREGATIONS",
    "CORRECTIONS",
    "KL_KINDS",
    "MAX_LOG_RATIO",
    "KLController",
    "TokenScores",
    "aggregate_loss",
    "cispo_loss",
    "importance_weights",
    "kl_penalty",
    "mismatch_metrics",
    "overlong_penalty",
    "policy_loss",
    "policy_loss_function",
    "ratio_metrics",
    "token_policy_loss",
    "token_scores",
    "value_loss",
]
