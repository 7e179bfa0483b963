"""How a configuration names rewards: `qa_f1_reward`, `{name: qa_f1_reward, weight: 0.5}`, or a list of both.

Not here: the functions of these names (`base.py`).
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


def _as_entries(value: Any) -> list[Any]:
    """A name, an entry or a list of both -> a list of entries."""
    listed = list(value) if isinstance(value, list | tuple) else [value]
    if not listed or not all(isinstance(entry, str | Mapping | RewardSpec) for entry in listed):
        raise ValueError("expected the name of a reward, {name, weight}, or a list of these")
    return [{"name": entry} if isinstance(entry, str) else entry for entry in listed]


class RewardSpec(BaseModel):
    """One reward of a sum: `{name: qa_f1_reward, weight: 0.5}`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """Name that a function is registered under, or its import path."""
    weight: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    """Factor of its reward in the sum; negative ones punish."""


def _not_all_zero(entries: tuple[RewardSpec, ...]) -> tuple[RewardSpec, ...]:
    if not any(each.weight for each in entries):
        raise ValueError("all weights are 0, so that every episode is worth the same; give one that is not")
    return entries


RewardSpecs = Annotated[tuple[RewardSpec, ...], BeforeValidator(_as_entries), AfterValidator(_not_all_zero)]
"""A field of a configuration model: a name, `{name, weight}`, or a list of them."""
