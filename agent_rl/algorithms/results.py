"""What functions of a user gave, estimators and losses: a tensor of the right shape, or one sentence with his line.

Not here: whether they take what they are given (`registry.py`).
"""

from collections.abc import Sequence
from typing import Any

import torch

from agent_rl.errors import ConfigError, defined_at


def tensor_given(given: Any, shape: Sequence[int], function: Any, *, what: str, expected: str) -> torch.Tensor:
    """`given`, if it is a tensor of that shape. ConfigError otherwise: `what`, the function, gave no `expected`."""
    if not isinstance(given, torch.Tensor):
        raise wrong_result(what, function, type(given).__name__, expected)
    if given.shape != torch.Size(shape):
        raise wrong_result(what, function, f"shape {list(given.shape)}", f"{expected} of shape {list(shape)}")
    return given


def wrong_result(what: str, function: Any, got: str, expected: str) -> ConfigError:
    """The error of a function that gave something else."""
    return ConfigError(f"{what}{defined_at(function)} gave {got}, expected {expected}; correct what it returns")
