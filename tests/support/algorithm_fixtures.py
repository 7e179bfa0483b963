"""Small numbers that several tests of the algorithms share; the published values belong to them."""

import torch

from agent_rl.algorithms.estimators import StepRewards
from agent_rl.registry import ADVANTAGE_ESTIMATORS

ESTIMATORS = ADVANTAGE_ESTIMATORS.names()
"""Those of the library: tests register more, but not before they import this module."""


def table(text: str) -> torch.Tensor:
    """Rows of numbers, one a line, as float64."""
    return torch.tensor([[float(word) for word in line.split()] for line in text.splitlines()], dtype=torch.float64)


# One group of four episodes; zeros stand for prompts and tool outputs between the sampled tokens.
GROUP_REWARDS = [1.0, 0.0, 0.5, 0.0]
GROUP_MASK = torch.tensor([[int(digit) for digit in row] for row in ("11001100", "11100000", "10011111", "11110000")])

# Three samples, four tokens each.
MASK = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 0], [1, 0, 0, 0]])
TRAINER = table("-0.5 -1.0 -0.2 -2.0 \n -0.7 -0.1 -3.0 -0.4 \n -1.5 -0.6 -0.9 -0.3")
PROX = table("-0.7 -0.9 -0.2 -1.0 \n -2.6 -0.5 -1.4 -0.4 \n -1.5 -0.2 -1.9 -0.3")
SAMPLING = table("-1.2 -0.9 -0.5 -1.0 \n -2.6 -0.3 -2.4 -0.4 \n -1.5 -0.2 -0.9 -1.9")
REF = table("-0.6 -0.8 -0.2 -1.5 \n -0.9 -0.1 -2.0 -0.4 \n -1.0 -0.7 -0.9 -0.5")
ADVANTAGES = torch.tensor([[1.0], [-1.0], [0.5]]).double().expand(3, 4)


def close(actual: torch.Tensor, expected: object, atol: float = 1e-6) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), atol=atol, rtol=0)


def step_of(rewards_E: list[float], mask_EN: torch.Tensor, group_E: list[int] | None = None, **more) -> StepRewards:
    """A step without penalties, all of one group by default."""
    return StepRewards(
        group_E=torch.tensor(group_E or [0] * len(rewards_E)),
        rewards_E=torch.tensor(rewards_E, dtype=torch.float64),
        mask_EN=mask_EN.bool(),
        **{"token_penalties_EN": torch.zeros(mask_EN.shape).double()} | more,
    )
