"""Learning rate by step. Pure functions. Not here: optimizers."""

import math

from agent_rl.config import TrainConfig


def learning_rate_at(step: int, config: TrainConfig) -> float:
    """Learning rate of step 0 .. `steps - 1`: linear warm-up to the peak, then down by `schedule` to the final value.

    Step `warmup_steps` has the peak. The final value is reached when the run is over, as in Transformers' schedules:
    the last step is one before it, so that it learns something where the final value is 0.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / (config.warmup_steps + 1)
    if config.schedule == "constant":
        return config.learning_rate
    progress = (step - config.warmup_steps) / (config.steps - config.warmup_steps)
    share = progress if config.schedule == "linear" else (1.0 - math.cos(math.pi * progress)) / 2.0
    return config.learning_rate + share * (config.final_learning_rate - config.learning_rate)
