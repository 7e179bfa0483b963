"""Statistics of evaluations: pass@k, and intervals of success that know which episodes share a task.

Pure functions on numbers. Tasks, not episodes, are what an evaluation drew from the world: with several episodes of a
task the intervals here count tasks. Not here: intervals of independent episodes (`telemetry/metrics.py`), comparisons
of the same tasks (`telemetry/paired.py`).
"""

import math
from collections.abc import Sequence
from statistics import fmean, variance

from agent_rl.telemetry.metrics import wilson_interval
from agent_rl.telemetry.paired import t_quantile


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
    """How many independent episodes tell as much of the mean as these, `n / deff * (t(n - 1) / t(T - 1))²`.

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
