"""Rewards for form instead of outcome: a soft penalty for completions near their budget.

Not here: what an environment pays (`envs`).
Shape suffix `_E`: one entry per episode.
"""

import torch

from agent_rl.errors import ConfigError


def overlong_penalty(num_tokens_E: torch.Tensor, *, max_tokens: int, buffer: int) -> torch.Tensor:
    """What to add to the rewards of episodes of so many tokens: from 0 down to -1, float64 [E].

    0 up to `max_tokens - buffer`, then falling linearly to -1 at `max_tokens`, and -1 beyond.
    ConfigError when `buffer` is not from 1 to `max_tokens`. Formula: Yu et al. 2025 (DAPO, equation 13).
    """
    if not 1 <= buffer <= max_tokens:
        raise ConfigError(f"the overlong buffer is {buffer} tokens, expected from 1 to the budget of {max_tokens}")
    return ((max_tokens - buffer - num_tokens_E.double()) / buffer).clamp(-1.0, 0.0)
