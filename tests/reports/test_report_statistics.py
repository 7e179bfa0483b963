"""Statistics of reports: golden values by hand, laws of random cases, intervals that cover what they claim."""

import random
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.telemetry.statistics import (
    clustered_interval,
    effective_episodes,
    ks_of,
    pass_at_k,
    t_quantile,
    wilson_interval,
)


def test_pass_at_k_by_hand() -> None:
    assert pass_at_k(4, 1, 1) == 0.25
    assert pass_at_k(4, 1, 2) == 0.5
    assert pass_at_k(4, 1, 4) == 1.0
    assert pass_at_k(5, 2, 2) == pytest.approx(1 - 3 / 10)
    assert pass_at_k(3, 0, 2) == 0.0
    assert pass_at_k(3, 2, 2) == 1.0


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_subsets_with_a_success(case: tuple[int, int, int]) -> None:
    n, c, k = case
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(fmean(any(subset) for subset in subsets))


@pytest.mark.parametrize(("n", "c", "k"), [(3, 1, 4), (3, 1, 0), (3, 4, 1), (3, -1, 1)])
def test_pass_at_k_refuses_what_is_not_defined(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k}"):
        pass_at_k(n, c, k)


def test_the_ks_that_are_shown() -> None:
    assert [ks_of(n) for n in (1, 2, 4, 6)] == [[1], [1, 2], [1, 2, 4], [1, 2, 4, 6]]


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_with_one_episode_a_task_the_interval_is_wilsons(solved: list[bool]) -> None:
    expected = wilson_interval(sum(solved), len(solved))
    assert clustered_interval([float(each) for each in solved], len(solved)) == pytest.approx(expected)


def test_episodes_that_always_agree_count_once_and_independent_ones_each() -> None:
    assert clustered_interval([1.0] * 10 + [0.0] * 10, 80) == pytest.approx(wilson_interval(10, 20))
    # Of 80 episodes 72 count: that they are independent is known from 20 tasks only.
    assert clustered_interval([0.5] * 20, 80) == pytest.approx(wilson_interval(36, 72), abs=1e-3)


def test_the_number_of_effective_episodes_by_hand() -> None:
    # Rates 0, 1/2, 1/2, 1, five times each: variance 0.125 * 20/19, of the mean 0.125 / 19; of 80 independent episodes
    # 0.25 / 79. The design effect is 79 / 38, and the number is known from 20 tasks only.
    rates = [0.0, 0.5, 0.5, 1.0] * 5
    expected = 80 * 38 / 79 * (t_quantile(79) / t_quantile(19)) ** 2
    assert effective_episodes(rates, 80) == pytest.approx(expected)
    assert effective_episodes(rates, 80) == pytest.approx(34.8, abs=0.1)
    assert effective_episodes([0.0, 1.0, 1.0], 3) == 3  # one episode a task
    assert effective_episodes([0.25], 4) == 1


def test_all_or_none_solved_count_tasks_and_one_failure_does_not_narrow_that() -> None:
    assert clustered_interval([0.0] * 10, 40) == wilson_interval(0, 10)
    assert clustered_interval([1.0] * 10, 40) == wilson_interval(10, 10)
    assert clustered_interval([], 0) == (0.0, 1.0)
    every, but_one = clustered_interval([1.0] * 20, 160), clustered_interval([1.0] * 19 + [7 / 8], 160)
    assert every == pytest.approx((0.8389, 1.0), abs=1e-4)
    assert but_one[0] <= every[0]


@given(st.integers(2, 30), st.integers(1, 8))
def test_the_low_end_rises_with_what_is_solved(num_tasks: int, samples: int) -> None:
    """Tasks are solved one after the other, each at all of its episodes."""
    lows = [
        clustered_interval([1.0] * solved + [0.0] * (num_tasks - solved), samples * num_tasks)[0]
        for solved in range(num_tasks + 1)
    ]
    assert lows == sorted(lows)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_the_interval_holds_the_rate_and_is_no_narrower_than_that_of_episodes(solved: list[int]) -> None:
    rates = [count / 4 for count in solved]
    low, high = clustered_interval(rates, 4 * len(rates))
    assert 0.0 <= low <= fmean(rates) + 1e-12
    assert fmean(rates) - 1e-12 <= high <= 1.0
    of_episodes = wilson_interval(sum(solved), 4 * len(solved))
    assert high - low >= of_episodes[1] - of_episodes[0] - 1e-9


@pytest.mark.parametrize(("easy", "hard"), [(0.9, 0.1), (1.0, 0.9), (0.5, 0.5)])
@pytest.mark.parametrize("num_tasks", [2, 3, 5, 20, 40])
def test_the_interval_covers_the_truth(num_tasks: int, easy: float, hard: float) -> None:
    """Half of all tasks are easy; eight episodes each. Of 500 intervals 93 % hold the mean, 2.2 standard errors less
    than 95 %."""
    rng, held = random.Random(0), 0
    for _ in range(500):
        counts = [sum(rng.random() < p for _ in range(8)) for p in rng.choices([easy, hard], k=num_tasks)]
        low, high = clustered_interval([count / 8 for count in counts], 8 * num_tasks)
        held += low <= (easy + hard) / 2 <= high
    assert held / 500 >= 0.93


def test_an_interval_that_counts_episodes_would_not_cover_it() -> None:
    rng, held = random.Random(0), 0
    for _ in range(500):
        solved = sum(rng.random() < p for p in rng.choices([0.9, 0.1], k=20) for _ in range(8))
        low, high = wilson_interval(solved, 160)
        held += low <= 0.5 <= high
    assert held / 500 < 0.85
