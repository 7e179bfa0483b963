"""Statistics of evaluations: pass@k, intervals that know which episodes share a task, comparisons of the same tasks.

Pure functions on numbers. Tasks, not episodes, are what an evaluation drew from the world: with several episodes of a
task the intervals here count tasks. Not here: intervals of independent episodes (`telemetry/metrics.py`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance

import numpy as np

from agent_rl.telemetry.metrics import wilson_interval

NUM_RESAMPLES = 10_000
"""Of a bootstrap: the limits then repeat to about a fiftieth of the interval's width under another seed."""
LEVEL = 0.05
"""Share of intervals that miss what they are for: 95 % intervals, and p-values below it count as beyond chance."""


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Probability that one of `k` samples is correct, unbiased: `1 - C(n - c, k) / C(n, k)`.

    Chen et al. 2021, arXiv:2107.03374, eq. 1. `pass_at_k(4, 1, 2)` is 0.5. Raises ValueError unless 1 <= k <= n and
    0 <= c <= n.
    """
    if not (1 <= k <= num_samples and 0 <= num_correct <= num_samples):
        raise ValueError(f"pass@{k} of {num_correct} correct in {num_samples} samples is not defined")
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def ks_of(num_samples: int) -> list[int]:
    """The k for which pass@k is shown: powers of two up to `num_samples`, and that itself; 6 -> 1, 2, 4, 6."""
    powers = [2**i for i in range(num_samples.bit_length()) if 2**i <= num_samples]
    return powers if powers[-1:] == [num_samples] else [*powers, num_samples]


def clustered_interval(rates: Sequence[float], num_episodes: int) -> tuple[float, float]:
    """95 % interval of a success rate: the mean of `rates`, which are one per task, over `num_episodes` in all.

    Wilson's interval with the effective number of episodes `n = p (1 - p) / var`, where `var` is the variance of the
    rates over the number of tasks: episodes of one task that always agree count once, such that agree no more than
    chance would have them count each. With one episode a task this is Wilson's interval exactly; where all rates are 0
    or all are 1, the number of tasks is taken. (0, 1) without tasks.
    Dean and Pagano 2015, J. Survey Stat. Methodol. 3:484 (modified Wilson).
    """
    num_tasks = len(rates)
    if not num_tasks:
        return 0.0, 1.0
    p = fmean(rates)
    if p in (0.0, 1.0):
        return wilson_interval(round(p * num_tasks), num_tasks)
    variance = pvariance(rates) / num_tasks
    size = num_episodes if variance * num_episodes <= p * (1 - p) else p * (1 - p) / variance
    return _wilson_of_rate(p, size)


def _wilson_of_rate(p: float, n: float, z: float = 1.96) -> tuple[float, float]:
    """`telemetry.metrics.wilson_interval` for a number of trials that need not be whole, 0 < p < 1."""
    centre = p + z * z / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return (centre - half) / scale, (centre + half) / scale


def bootstrap_interval(values: Sequence[float], *, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of the mean of `values`, one per task, over `NUM_RESAMPLES` draws of tasks.

    Raises ValueError without values.
    """
    if not values:
        raise ValueError("an interval needs at least one value")
    array, rng = np.asarray(values, dtype=float), np.random.default_rng(seed)
    means = [array[rng.integers(len(array), size=len(array))].mean() for _ in range(NUM_RESAMPLES)]
    low, high = np.quantile(means, (LEVEL / 2, 1 - LEVEL / 2))
    return float(low), float(high)


def mcnemar_p(num_gained: int, num_lost: int) -> float:
    """Two-sided exact p-value that `num_gained` and `num_lost` come from a fair coin; 1 when both are 0.

    McNemar's test on the tasks that one side solved and the other did not: twice the smaller binomial tail.
    `mcnemar_p(6, 0)` is 0.03125.
    """
    n = num_gained + num_lost
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(min(num_gained, num_lost) + 1)) / 2**n)


def paired_interval(num_both: int, num_gained: int, num_lost: int, num_neither: int) -> tuple[float, float]:
    """95 % interval of `(gained - lost) / n`, of n tasks solved on both sides, after only, before only, never.

    Newcombe 1998, Statist. Med. 17:2635, method 10: Wilson's intervals of both rates, put together with the correlation
    of the sides. `paired_interval(36, 2, 12, 0)` is that paper's [-0.340, -0.057]. Raises ValueError without tasks.
    """
    n = num_both + num_gained + num_lost + num_neither
    if not n:
        raise ValueError("an interval needs at least one task")
    before, after = num_both + num_lost, num_both + num_gained
    change, p_before, p_after = (after - before) / n, before / n, after / n
    (low_before, high_before), (low_after, high_after) = wilson_interval(before, n), wilson_interval(after, n)
    phi = _phi(num_both, num_gained, num_lost, num_neither)

    def distance(one: float, other: float) -> float:
        return math.sqrt(max(0.0, one * one - 2 * phi * one * other + other * other))

    return (
        change - distance(p_after - low_after, high_before - p_before),
        change + distance(high_after - p_after, p_before - low_before),
    )


def _phi(both: int, gained: int, lost: int, neither: int) -> float:
    """Correlation of two sides' successes, with that paper's continuity correction; 0 where one is constant."""
    product = (both + gained) * (lost + neither) * (both + lost) * (gained + neither)
    excess = both * neither - gained * lost
    if excess > 0:
        excess = max(excess - (both + gained + lost + neither) / 2, 0)
    return excess / math.sqrt(product) if product else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedChange:
    """The success rate of the same tasks before and after."""

    num_tasks: int
    num_episodes: int
    """On each side, over all tasks."""
    before: float
    after: float
    low: float
    high: float
    """95 % interval of `after - before`."""
    num_gained: int
    """Tasks solved more often after than before; with one episode a task: solved after and not before."""
    num_lost: int
    p_value: float | None
    """McNemar's exact; None with several episodes a task, where the interval is a paired bootstrap over tasks."""

    @property
    def change(self) -> float:
        return self.after - self.before

    @property
    def is_real(self) -> bool:
        """Whether the 95 % interval leaves 0 out, and McNemar's test, where there is one, agrees."""
        return (self.low > 0 or self.high < 0) and (self.p_value is None or self.p_value < LEVEL)

    @property
    def sentence(self) -> str:
        """Did the success rate move by more than chance explains?"""
        tasks = _counted(self.num_tasks, "task")
        if not self.num_gained and not self.num_lost:
            return f"Success stayed at {100 * self.after:.1f} % on {tasks}: it is the same on every one."
        word = "rose" if self.change > 0 else "fell" if self.change < 0 else "stayed"
        said = f"Success {word} from {100 * self.before:.1f} % to {100 * self.after:.1f} % on {tasks}"
        counts = f"{_counted(self.num_gained, 'task')} better, {self.num_lost} worse"
        chance = "beyond chance" if self.is_real else "within chance"
        interval = f"the 95 % interval of the change is [{100 * self.low:+.1f}, {100 * self.high:+.1f}] points"
        test = "" if self.p_value is None else f", McNemar p = {self.p_value:.2g}"
        return f"{said} ({counts}): {chance}; {interval}{test}."


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def paired_change(before: Sequence[Sequence[bool]], after: Sequence[Sequence[bool]], *, seed: int = 0) -> PairedChange:
    """Compare successes of the same tasks, `before[t]` and `after[t]` being the episodes of task t.

    One episode a task on both sides: McNemar's exact test and Newcombe's interval. Else a paired bootstrap over tasks
    of the mean difference. A task without episodes on one side is left out. Raises ValueError when none is left.
    """
    pairs = [(b, a) for b, a in zip(before, after, strict=True) if b and a]
    if not pairs:
        raise ValueError("no task has episodes on both sides")
    changes = [fmean(a) - fmean(b) for b, a in pairs]
    gained, lost = sum(change > 0 for change in changes), sum(change < 0 for change in changes)
    is_single = all(len(b) == len(a) == 1 for b, a in pairs)
    if is_single:
        both = sum(b[0] and a[0] for b, a in pairs)
        low, high = paired_interval(both, gained, lost, len(pairs) - both - gained - lost)
    else:
        low, high = bootstrap_interval(changes, seed=seed)
    return PairedChange(
        num_tasks=len(pairs),
        num_episodes=sum(len(a) for _, a in pairs),
        before=fmean(fmean(b) for b, _ in pairs),
        after=fmean(fmean(a) for _, a in pairs),
        low=low,
        high=high,
        num_gained=gained,
        num_lost=lost,
        p_value=mcnemar_p(gained, lost) if is_single else None,
    )
