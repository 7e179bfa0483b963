"""The KL penalty to a frozen reference: its estimators per token, and the coefficient over the steps.

In the loss the penalty carries a gradient; in the reward it is computed from detached log-probs and has none.
Not here: where the log-probs come from (`logprobs.py`, which gives the exact KL chunk by chunk), aggregation.
Shape suffixes: `_N` trained token, `_V` vocabulary.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from agent_rl.algorithms.ratios import bounded_exp
from agent_rl.registry import look_up

MAX_K3 = 10.0
"""Upper clamp of a token's k3: one absurd token must not outweigh a step."""


def kl_penalty(
    logprobs: torch.Tensor, ref_logprobs: torch.Tensor, kind: str, *, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """KL(policy || reference) per token, with `x = logprobs - ref_logprobs` of the sampled ids; 0 where `mask` is 0.

    | kind | alias | value | its gradient by a token's log-prob, when it is a loss |
    | --- | --- | --- | --- |
    | `k1` | `kl` | `x` | 1: no pull to the reference at all, so for the reward only |
    | `abs` | | `abs(x)` | sign of x |
    | `k2` | `mse` | `x**2 / 2` | x: the right one on average |
    | `k3` | `low_var_kl` | `exp(-x) - 1 + x` | `1 - exp(-x)`, 0 where the value is clamped to 10 |
    | `full` | | `sum over V of p * (log p - log p_ref)` | exact |

    For `full` the inputs are log-softmax rows `[..., V]`, and the mask has their shape without V; a trainer takes the
    column that `token_scores` gives instead. Source of k1 to k3: Schulman 2020, "Approximating KL divergence".
    """
    function = look_up(_KINDS, _ALIASES.get(kind, kind), kind="KL kind")
    if mask is not None:
        # Values are replaced before anything is computed: the gradient of a NaN would be one.
        masked = ~(mask.bool().unsqueeze(-1) if kind == "full" else mask.bool())
        logprobs, ref_logprobs = logprobs.masked_fill(masked, 0.0), ref_logprobs.masked_fill(masked, 0.0)
    return function(logprobs, ref_logprobs)


def _k3(x: torch.Tensor) -> torch.Tensor:
    return (bounded_exp(-x) - 1.0 + x).clamp(max=MAX_K3)


def _full(rows: torch.Tensor, ref_rows: torch.Tensor) -> torch.Tensor:
    # An id that is ruled out has log-prob -inf, and 0 * inf would be NaN.
    lowest = torch.finfo(rows.dtype).min
    difference = rows.clamp(min=lowest) - ref_rows.clamp(min=lowest)
    return (rows.exp() * difference).sum(dim=-1)


_KINDS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "k1": lambda logprobs, ref_logprobs: logprobs - ref_logprobs,
    "abs": lambda logprobs, ref_logprobs: (logprobs - ref_logprobs).abs(),
    "k2": lambda logprobs, ref_logprobs: (logprobs - ref_logprobs).square() / 2,
    "k3": lambda logprobs, ref_logprobs: _k3(logprobs - ref_logprobs),
    "full": _full,
}
_ALIASES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}

KL_KINDS = (*_KINDS, *_ALIASES)
"""All kinds, aliases last."""


class KLController:
    """The coefficient of the penalty: fixed, or, with a target, moved after every step towards that KL.

    A step moves it by the factor `1 + clip(kl / target - 1, -0.2, 0.2) * min(num_samples / horizon, 1)`.
    Formula: Ziegler et al. 2019, section 2.2, where a step has far fewer samples than the horizon.
    """

    def __init__(self, coefficient: float, *, target: float | None = None, horizon: int = 10_000) -> None:
        """`target` in nats per token, `horizon` in samples; without a target the coefficient stays."""
        self.coefficient = coefficient
        self._target = target
        self._horizon = horizon

    def update(self, kl: float, *, num_samples: int) -> None:
        """Move after a step of `num_samples` samples with mean KL `kl`; ValueError when that is not finite."""
        if self._target is None:
            return
        if not math.isfinite(kl):
            raise ValueError(f"the KL of the step is {kl}: leave the controller alone when a step is skipped")
        error = min(max(kl / self._target - 1.0, -0.2), 0.2)
        # A step of five horizons would make the factor 0 and a larger one negative: a reward for leaving the reference.
        self.coefficient *= 1.0 + error * min(num_samples / self._horizon, 1.0)

    def state_dict(self) -> dict[str, Any]:
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a stored coefficient; a fixed one is the configuration's, whatever was stored."""
        if self._target is not None:
            self.coefficient = state["coefficient"]
