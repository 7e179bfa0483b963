"""The optimizer of a step's updates and its learning rate by step. Not here: gradients, checkpoints."""

import math
from typing import Any

import torch

from agent_rl.config import Config, TrainConfig
from agent_rl.learning.logprob_model import LogprobModel
from agent_rl.modeling.sharding import full_shape


def learning_rate_at(step: int, config: TrainConfig) -> float:
    """Learning rate of step 0, 1, ...: linear warm-up to the peak, then down by `schedule` to the final value.

    Step `warmup_steps` has the peak. The final value is reached when the run is over, as in Transformers' schedules:
    the last step is one before it, so that it learns something where the final value is 0. Updates from `steps` on keep
    the final value.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / (config.warmup_steps + 1)
    if config.schedule == "constant":
        return config.learning_rate
    if step >= config.steps:
        return config.final_learning_rate
    progress = (step - config.warmup_steps) / (config.steps - config.warmup_steps)
    share = progress if config.schedule == "linear" else (1.0 - math.cos(math.pi * progress)) / 2.0
    return config.learning_rate + share * (config.final_learning_rate - config.learning_rate)


def make_optimizer(
    logprob_model: LogprobModel, config: Config
) -> tuple[torch.optim.Optimizer, list[tuple[bool, float]]]:
    """AdamW; and for each of its groups whether it is the critic's, and its share of the learning rate.

    Weight decay is for matrices. Groups without parameters are left out.
    """
    critic = logprob_model.critic
    of_critic = {id(parameter) for parameter in critic.parameters()} if critic is not None else set()
    groups: list[dict[str, Any]] = []
    rates = []
    for is_critic in (False, True):
        for is_matrix in (True, False):
            chosen = [
                parameter
                for parameter in logprob_model.parameters()
                if parameter.requires_grad
                and (len(full_shape(parameter)) > 1) == is_matrix
                and (id(parameter) in of_critic) == is_critic
            ]
            if chosen:
                groups.append({"params": chosen, "weight_decay": config.train.weight_decay if is_matrix else 0.0})
                factor = config.critic.learning_rate / config.train.learning_rate if is_critic else 1.0
                rates.append((is_critic, factor))
    return torch.optim.AdamW(groups, lr=config.train.learning_rate, betas=config.train.betas, fused=True), rates
