"""What an agent says its episode was worth.

Not here: what an episode without a reward, or of a failed agent, becomes (`external.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_rl.rewards.base import FULL_REWARD
from agent_rl.rewards.numbers import finite_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """The worth of an episode: `Reward(value=0.5, parts={"tests": 0.5}, success=False)`."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named components, for logs."""
    success: bool | None = None
    """Whether the task was solved; None: when `value` is 1 or more."""

    def reward_parts(self) -> dict[str, float]:
        """The parts as a trajectory has them, `success` among them."""
        is_solved = self.value >= FULL_REWARD if self.success is None else self.success
        return {**{name: float(value) for name, value in self.parts.items()}, "success": float(is_solved)}


def to_reward(value: Any) -> Reward:
    """A number, a Reward, or a mapping with `reward` (and `success`, `parts` or other numbers) as a Reward.

    ValueError for anything else, and for numbers that are not finite; the text says what was expected.
    """
    if isinstance(value, Reward):
        return Reward(value=_number(value.value), parts=_parts(value.parts), success=value.success)
    if isinstance(value, Mapping):
        return _from_mapping(value)
    return Reward(value=_number(value))


def _from_mapping(value: Mapping[Any, Any]) -> Reward:
    rest = {name: part for name, part in value.items() if name not in ("reward", "success", "parts")}
    success, parts = value.get("success"), value.get("parts") or {}
    if "reward" not in value or not isinstance(parts, Mapping) or not isinstance(success, bool | int | float | None):
        raise ValueError(f"{value!r:.80} is no reward; expected a number, or {{reward, success?, parts?}}")
    is_solved = None if success is None else bool(success)
    return Reward(value=_number(value["reward"]), parts=_parts({**parts, **rest}), success=is_solved)


def _parts(parts: Mapping[Any, Any]) -> dict[str, float]:
    return {str(name): _number(part) for name, part in parts.items()}


def _number(value: Any) -> float:
    try:
        return finite_number(value)
    except ValueError as error:
        raise ValueError(f"no reward: {error}; expected a finite number, a Reward or a mapping with reward") from None
