"""Success on held-out rows before and after, with 95 % intervals. Pure functions on numbers, and their sentence.

Not here: playing them (`trainer.py`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Z = 1.959964
"""97.5 % point of the normal distribution."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One evaluation: per row whether it was solved, None where that could not be found out."""

    solved: Mapping[str, bool | None]
    reward: float
    """Mean over rows that were scored."""
    num_failed: int
    """Rows whose workflow raised; they count as not solved, unless the endpoint failed."""
    first_error: str | None
    weight_version: int

    @property
    def num_scored(self) -> int:
        return sum(each is not None for each in self.solved.values())

    @property
    def num_solved(self) -> int:
        return sum(bool(each) for each in self.solved.values())

    @property
    def text(self) -> str:
        """`52.0 % [44.1, 59.8] of 150 rows`."""
        low, high = wilson_interval(self.num_solved, self.num_scored)
        rate = self.num_solved / max(1, self.num_scored)
        return f"{100 * rate:.1f} % [{100 * low:.1f}, {100 * high:.1f}] of {self.num_scored} rows"

    def as_json(self) -> dict[str, Any]:
        low, high = wilson_interval(self.num_solved, self.num_scored)
        return {
            "weight_version": self.weight_version,
            "rows": len(self.solved),
            "scored": self.num_scored,
            "solved": self.num_solved,
            "success": self.num_solved / max(1, self.num_scored),
            "success_95": [low, high],
            "reward": self.reward,
            "failed": self.num_failed,
            "first_error": self.first_error,
        }


def wilson_interval(successes: int, n: int) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson 1927); (0, 1) when n is 0."""
    if n == 0:
        return 0.0, 1.0
    p, zz = successes / n, Z * Z
    half = Z * math.sqrt(p * (1 - p) / n + zz / (4 * n * n))
    low, high = ((p + zz / (2 * n) + sign * half) / (1 + zz / n) for sign in (-1, 1))
    return (0.0 if successes == 0 else low), (1.0 if successes == n else high)


def paired_interval(both: int, gained: int, lost: int, neither: int) -> tuple[float, float]:
    """95 % interval of `(gained - lost) / n` (Newcombe 1998, Statist. Med. 17:2635, method 10).

    `paired_interval(36, 2, 12, 0)` is that paper's [-0.340, -0.057]. Raises ValueError without rows.
    """
    n = both + gained + lost + neither
    if not n:
        raise ValueError("an interval needs at least one row")
    before, after = (both + lost) / n, (both + gained) / n
    (low_before, high_before), (low_after, high_after) = (
        wilson_interval(both + lost, n),
        wilson_interval(both + gained, n),
    )
    product = (both + gained) * (lost + neither) * (both + lost) * (gained + neither)
    excess = both * neither - gained * lost
    if excess > 0:
        excess = max(excess - n / 2, 0)
    phi = excess / math.sqrt(product) if product else 0.0

    def distance(one: float, other: float) -> float:
        return math.sqrt(max(0.0, one * one - 2 * phi * one * other + other * other))

    change = after - before
    return (
        change - distance(after - low_after, high_before - before),
        change + distance(high_after - after, before - low_before),
    )


def mcnemar_p(gained: int, lost: int) -> float:
    """Exact two-sided p-value of McNemar's test; 1 without any change. `mcnemar_p(6, 0)` is 0.03125."""
    n = gained + lost
    tail = sum(math.comb(n, k) for k in range(min(gained, lost) + 1)) / 2**n
    return min(1.0, 2 * tail)


def paired_change(before: HeldOut, after: HeldOut) -> dict[str, Any]:
    """The change of the rows that both evaluations scored; empty when there is none."""
    pairs = [
        (was, after.solved[row])
        for row, was in before.solved.items()
        if was is not None and after.solved.get(row) is not None
    ]
    if not pairs:
        return {}
    both, neither = pairs.count((True, True)), pairs.count((False, False))
    gained, lost = pairs.count((False, True)), pairs.count((True, False))
    low, high = paired_interval(both, gained, lost, neither)
    return {
        "rows": len(pairs),
        "change": (gained - lost) / len(pairs),
        "change_95": [low, high],
        "gained": gained,
        "lost": lost,
        "mcnemar_p": mcnemar_p(gained, lost),
    }


def change_text(change: Mapping[str, Any]) -> str:
    """`+29.3 [+20.6, +37.3] points on 150 rows (48 gained, 4 lost), McNemar p = 1e-09`."""
    if not change:
        return "no row was scored both before and after"
    low, high = change["change_95"]
    return (
        f"{100 * change['change']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}] points on {change['rows']} rows "
        f"({change['gained']} gained, {change['lost']} lost), McNemar p = {change['mcnemar_p']:.2g}"
    )
