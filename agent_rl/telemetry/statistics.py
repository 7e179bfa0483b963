"""Statistics of success and reward: intervals, pass@k, and tests of the same tasks before and after.

Pure functions on numbers. Tasks, not episodes, are what an evaluation samples: with several episodes of a task the
intervals and tests count tasks. Runs, reports and evaluations all use these.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev, variance

import numpy as np

LEVEL = 0.05
"""Share of intervals that miss what they are for: 95 % intervals, and p-values below it count as beyond chance."""
Z = 1.959964
"""97.5 % point of the normal distribution."""
MAX_UNITS = 1000
"""Parts of one task's success that the sign-flip test distinguishes; finer changes are rounded to it."""


def is_success(reward_parts: Mapping[str, float]) -> bool:
    """Whether an episode is solved: its reward part `success` is present and 1."""
    return reward_parts.get("success", 0.0) >= 1.0


def wilson_interval(successes: float, n: float, z: float = 1.96) -> tuple[float, float]:
    """Score interval (low, high) of a proportion; (0, 1) when n is 0. `z` 1.96 gives 95 %.

    Neither number need be whole: trials that depend on each other count as fewer ones.

    `(p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)`: Wilson 1927; Newcombe 1998, Statist. Med. 17:857, method 3.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} trials is not a proportion")
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre = p + z * z / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # At 0 and n the formula gives exactly 0 and 1; rounding would leave 1e-17.
    low = 0.0 if successes == 0 else (centre - half) / scale
    high = 1.0 if successes == n else (centre + half) / scale
    return low, high


def rate_text(successes: int, n: int) -> str:
    """`54.0 [47.1, 60.8]`: per cent with the 95 % Wilson interval. Raises ValueError without trials."""
    if not n:
        raise ValueError("a rate needs at least one trial")
    low, high = wilson_interval(successes, n)
    return f"{100 * successes / n:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


@cache
def t_quantile(df: int) -> float:
    """97.5 % point of Student's t: exact for 1 and 2 degrees of freedom, else within 0.3 % of it.

    Cornish-Fisher expansion, Abramowitz and Stegun 1964, 26.7.5. `t_quantile(10)` is 2.228. Raises ValueError below 1.
    """
    if df < 1:
        raise ValueError(f"{df} degrees of freedom have no t distribution")
    if df == 1:
        return math.tan(math.pi * (0.5 - LEVEL / 2))
    if df == 2:
        return (1 - LEVEL) / math.sqrt(2 * (1 - LEVEL / 2) * (LEVEL / 2))
    z = Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / df**power for power, term in enumerate(terms, start=1))


def sign_flip_p(changes: Sequence[int]) -> float:
    """Exact two-sided p-value that each task's change could as well have had the other sign; 1 without any change.

    The share of all `2^n` choices of signs whose sum is as far from 0 as the observed one: Fisher's randomisation test
    for pairs (1935, The Design of Experiments, section 21). With changes of 1 and -1 it is McNemar's exact test:
    `sign_flip_p([1] * 6)` is 0.03125.
    """
    sizes = [abs(change) for change in changes if change]
    total, observed = sum(sizes), abs(sum(changes))
    if not total:
        return 1.0
    share = np.ones(1)  # of choices by the sum of what is positive
    for size in sizes:
        share = (np.append(share, np.zeros(size)) + np.append(np.zeros(size), share)) / 2
    sums = np.abs(2 * np.arange(total + 1) - total)
    return min(1.0, float(share[sums >= observed].sum()))


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


def changes_interval(changes: Sequence[float], unit: float) -> tuple[float, float]:
    """95 % interval of the mean change of tasks; `unit` is the change that one episode of a task can make.

    Student's t over tasks, with two tasks more that changed by `unit` and `-unit`: so it has a width where few tasks
    happen to change alike, one task included. With one episode a task these are the pseudo-tasks of Bonett and Price
    2012, J. Educ. Behav. Stat. 37:479. Raises ValueError without tasks.
    """
    if not changes:
        raise ValueError("an interval needs at least one task")
    values = [*changes, unit, -unit]
    half = t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedChange:
    """The success rate of the same tasks before and after."""

    num_tasks: int
    num_episodes: int
    """After, over all tasks."""
    before: float
    after: float
    low: float
    high: float
    """95 % interval of `after - before`."""
    num_gained: int
    """Tasks solved more often after than before; with one episode a task: solved after and not before."""
    num_lost: int
    p_value: float
    """Of the exact test that `method` names."""
    method: str
    """`McNemar` with one episode a task, else `sign-flip`."""

    @property
    def change(self) -> float:
        return self.after - self.before

    @property
    def points(self) -> str:
        """`+15.5 [+6.0, +24.6]`: the change in points, with its interval."""
        return f"{100 * self.change:+.1f} [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"

    @property
    def is_outside_interval(self) -> bool:
        """Whether the 95 % interval leaves 0 out."""
        return self.low > 0 or self.high < 0

    @property
    def is_real(self) -> bool:
        """Whether the 95 % interval leaves 0 out, and the exact test agrees."""
        return self.is_outside_interval and self.p_value < LEVEL

    @property
    def sentence(self) -> str:
        """Did the success rate move by more than chance explains?"""
        tasks = _counted(self.num_tasks, "task")
        interval = f"the 95 % interval of the change is [{100 * self.low:+.1f}, {100 * self.high:+.1f}] points"
        if not self.num_gained and not self.num_lost:
            return f"Success is {100 * self.after:.1f} % on {tasks}, as before, and the same on every one; {interval}."
        counts = f"{_counted(self.num_gained, 'task')} better, {self.num_lost} worse"
        if math.isclose(self.change, 0.0, abs_tol=1e-12):
            claim = f"Success is {100 * self.after:.1f} % on {tasks}, as before"
        else:
            word = "rose" if self.change > 0 else "fell"
            claim = f"Success {word} from {100 * self.before:.1f} % to {100 * self.after:.1f} % on {tasks}"
        loose = ""
        if self.is_outside_interval != (self.p_value < LEVEL):
            one, other = ("interval", "exact test") if self.is_outside_interval else ("exact test", "interval")
            loose = f" (the {one} alone would call it beyond chance, the {other} does not; both have to)"
        chance = "beyond chance" if self.is_real else "within chance"
        return f"{claim} ({counts}): {chance}; {interval}, {self.method} p = {self.p_value:.2g}{loose}."


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def paired_change(before: Sequence[Sequence[bool]], after: Sequence[Sequence[bool]]) -> PairedChange:
    """Compare successes of the same tasks, `before[t]` and `after[t]` being the episodes of task t.

    One episode a task on both sides: McNemar's exact test and Newcombe's interval. Else the sign-flip test over tasks
    and `changes_interval`. A task without episodes on one side is left out. Raises ValueError when none is left.
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
        low, high = changes_interval(changes, 1 / _fewest(pairs))
    units = min(MAX_UNITS, math.lcm(*(len(side) for pair in pairs for side in pair)))
    return PairedChange(
        num_tasks=len(pairs),
        num_episodes=sum(len(a) for _, a in pairs),
        before=fmean(fmean(b) for b, _ in pairs),
        after=fmean(fmean(a) for _, a in pairs),
        low=max(-1.0, low),
        high=min(1.0, high),
        num_gained=gained,
        num_lost=lost,
        p_value=sign_flip_p([round(units * change) for change in changes]),
        method="McNemar" if is_single else "sign-flip",
    )


def paired_means(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Mean change of a value of the same tasks, such as the reward, with its 95 % interval: `(mean, low, high)`.

    `before[t]` and `after[t]` are the episodes of task t, at least one each. Raises ValueError without tasks.
    """
    pairs = list(zip(before, after, strict=True))
    if not pairs:
        raise ValueError("an interval needs at least one task")
    values = [value for pair in pairs for side in pair for value in side]
    changes = [fmean(a) - fmean(b) for b, a in pairs]
    low, high = changes_interval(changes, (max(values) - min(values)) / _fewest(pairs))
    return fmean(changes), low, high


def _fewest(pairs: Sequence[tuple[Sequence[object], Sequence[object]]]) -> int:
    return min(len(side) for pair in pairs for side in pair)


def correlation_within(groups: Sequence[Sequence[tuple[float, float]]]) -> float | None:
    """Correlation of two values of episodes within their groups: of their distances from the means of each group.

    The within-subject correlation of Bland and Altman 1995, BMJ 310:446; where one of the two is 0 or 1, as success,
    the point-biserial coefficient of Tate 1954, Ann. Math. Statist. 25:603, and with one group that itself. From -1 to
    1; None where one of the two differs within no group, or a value is too large or not finite.
    `correlation_within([[(1, 0), (3, 1)], [(9, 0), (7, 0)]])` is 1 / sqrt(2): the second group varies without success.
    """
    if not all(math.isfinite(value) for group in groups for pair in group for value in pair):
        return None
    squares, other_squares, products = 0.0, 0.0, 0.0
    for group in groups:
        one, other = (_centred(side) for side in zip(*group, strict=True)) if group else ((), ())
        squares += sum(value * value for value in one)
        other_squares += sum(value * value for value in other)
        products += sum(a * b for a, b in zip(one, other, strict=True))
    if not squares or not other_squares or not math.isfinite(squares + other_squares + products):
        return None
    return max(-1.0, min(1.0, products / math.sqrt(squares) / math.sqrt(other_squares)))


def _centred(values: Sequence[float]) -> list[float]:
    """Distances from the mean; 0 where the values differ by no more than rounding."""
    if max(values) - min(values) <= 1e-9 * max(map(abs, values)):
        return [0.0] * len(values)
    mean = fmean(values)
    return [value - mean for value in values]


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
    return sorted({2**i for i in range(num_samples.bit_length())} | {num_samples})


def clustered_interval(rates: Sequence[float], num_episodes: int) -> tuple[float, float]:
    """95 % interval of a success rate: the mean of `rates`, which are one per task, over `num_episodes` in all.

    Wilson's interval with the effective number of episodes (`effective_episodes`). T tasks do not rule out a kind of
    task that is never solved, or always, and that they happen not to hold; so near 1 and 0 the interval reaches as far
    as that of T tasks of T solved, or of none. With one episode a task this is Wilson's interval. (0, 1) without tasks.
    """
    num_tasks = len(rates)
    if not num_tasks:
        return 0.0, 1.0
    size = effective_episodes(rates, num_episodes)
    low, high = wilson_interval(fmean(rates) * size, size)
    return min(low, wilson_interval(num_tasks, num_tasks)[0]), max(high, wilson_interval(0, num_tasks)[1])


def effective_episodes(rates: Sequence[float], num_episodes: int) -> float:
    """How many independent episodes give as much information on the mean as these, `n / deff * (t(n - 1) / t(T - 1))²`.

    `deff` is the variance of the mean over T tasks in that of n independent episodes, both with Bessel's correction;
    the factor allows for `deff` being known from T tasks only. Between T, as episodes of a task at most always agree,
    and n. Korn and Graubard 1998, Survey Methodology 24:193; Dean and Pagano 2015, J. Survey Stat. Methodol. 3:484
    (modified Wilson). With one episode a task it is their number.
    """
    num_tasks, p = len(rates), fmean(rates)
    if num_tasks in (1, num_episodes):
        return num_tasks
    spread = variance(rates) / num_tasks
    independent = p * (1 - p) / (num_episodes - 1)
    plain = num_episodes * independent / spread if spread > 0 else num_episodes
    adjusted = plain * (t_quantile(num_episodes - 1) / t_quantile(num_tasks - 1)) ** 2
    return min(max(adjusted, num_tasks), num_episodes)
