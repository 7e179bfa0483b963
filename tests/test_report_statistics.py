"""Statistics of reports: golden values by hand, laws by drawn cases, and intervals that cover what they should."""

import random
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.reports.statistics import (
    bootstrap_interval,
    clustered_interval,
    ks_of,
    mcnemar_p,
    paired_change,
    paired_interval,
    pass_at_k,
)
from agent_rl.telemetry.metrics import wilson_interval


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
    agreeing = clustered_interval([1.0] * 10 + [0.0] * 10, 80)
    assert agreeing == pytest.approx(wilson_interval(10, 20))
    even = clustered_interval([0.5] * 20, 80)
    assert even == pytest.approx(wilson_interval(40, 80))
    between = clustered_interval([0.25, 0.75] * 10, 80)  # n = 0.25 / (0.0625 / 20) = 80: as much as chance has
    assert between == pytest.approx(wilson_interval(40, 80))
    # p = 0.5, variance of the rates 0.125, over 20 tasks: 0.25 / 0.00625 = 40 episodes' worth.
    assert clustered_interval([0.0, 0.5, 0.5, 1.0] * 5, 80) == pytest.approx(wilson_interval(20, 40))


def test_all_or_none_solved_count_tasks() -> None:
    assert clustered_interval([0.0] * 10, 40) == wilson_interval(0, 10)
    assert clustered_interval([1.0] * 10, 40) == wilson_interval(10, 10)
    assert clustered_interval([], 0) == (0.0, 1.0)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_the_interval_holds_the_rate_and_is_between_that_of_tasks_and_that_of_episodes(solved: list[int]) -> None:
    rates = [count / 4 for count in solved]
    low, high = clustered_interval(rates, 4 * len(rates))
    assert 0.0 <= low <= fmean(rates) + 1e-12
    assert fmean(rates) - 1e-12 <= high <= 1.0
    of_episodes = wilson_interval(sum(solved), 4 * len(solved))
    assert high - low >= of_episodes[1] - of_episodes[0] - 1e-9


def test_the_interval_covers_the_truth_where_one_of_episodes_would_not() -> None:
    """Tasks are easy (0.9) or hard (0.1), four episodes each: 95 % of intervals should hold the mean, 0.5."""
    rng, held, held_naive = random.Random(0), 0, 0
    for _ in range(1000):
        counts = [sum(rng.random() < p for _ in range(4)) for p in rng.choices([0.9, 0.1], k=40)]
        low, high = clustered_interval([count / 4 for count in counts], 160)
        held += low <= 0.5 <= high
        low, high = wilson_interval(sum(counts), 160)
        held_naive += low <= 0.5 <= high
    assert 0.93 <= held / 1000 <= 0.97
    assert held_naive / 1000 < 0.85


def test_the_bootstrap_repeats_and_agrees_with_the_normal_interval() -> None:
    values = [0.0, 1.0] * 100
    assert bootstrap_interval(values, seed=3) == bootstrap_interval(values, seed=3)
    # 0.5 +- 1.96 sqrt(0.25 / 200) = 0.5 +- 0.0693
    assert bootstrap_interval(values) == pytest.approx((0.4307, 0.5693), abs=0.006)
    assert bootstrap_interval([2.0, 2.0]) == (2.0, 2.0)
    with pytest.raises(ValueError, match="at least one"):
        bootstrap_interval([])


def test_mcnemar_by_hand() -> None:
    assert mcnemar_p(6, 0) == 2 * 0.5**6
    assert mcnemar_p(5, 0) == 2 * 0.5**5
    assert mcnemar_p(1, 3) == pytest.approx(2 * (1 + 4) / 16)
    assert mcnemar_p(2, 2) == 1.0
    assert mcnemar_p(0, 0) == 1.0


def test_the_interval_of_a_change_is_the_published_one() -> None:
    assert paired_interval(36, 2, 12, 0) == pytest.approx((-0.3404, -0.0569), abs=1e-4)
    # Both sides all right: the change is 0 in any case, the interval that of two rates of 10 out of 10.
    low = wilson_interval(10, 10)[0]
    assert paired_interval(10, 0, 0, 0) == pytest.approx((low - 1, 1 - low))
    with pytest.raises(ValueError, match="at least one task"):
        paired_interval(0, 0, 0, 0)


counts = st.integers(0, 40)


@given(counts, counts, counts, counts.filter(bool))
def test_the_interval_holds_the_change_and_turns_with_the_sides(both: int, gained: int, lost: int, none: int) -> None:
    low, high = paired_interval(both, gained, lost, none)
    change = (gained - lost) / (both + gained + lost + none)
    assert -1.0 <= low <= change <= high <= 1.0
    assert paired_interval(both, lost, gained, none) == pytest.approx((-high, -low))


@pytest.mark.parametrize(("gain", "loss"), [(0.62, 0.01), (0.09, 0.01), (0.25, 0.1)])
def test_the_interval_of_a_change_covers_the_truth(gain: float, loss: float) -> None:
    rng, held = random.Random(0), 0
    for _ in range(1000):
        kinds = rng.choices(["both", "gained", "lost", "neither"], [0.2, gain, loss, 0.8 - gain - loss], k=120)
        low, high = paired_interval(*(kinds.count(kind) for kind in ("both", "gained", "lost", "neither")))
        held += low <= gain - loss <= high
    assert 0.93 <= held / 1000 <= 0.975


def one_each(*solved: bool) -> list[list[bool]]:
    return [[each] for each in solved]


def test_a_change_of_single_episodes_is_judged_by_mcnemar() -> None:
    before = one_each(*[False] * 8, *[True] * 2)
    after = one_each(*[True] * 8, *[True] * 2)
    change = paired_change(before, after)
    assert (change.num_gained, change.num_lost, change.before, change.after) == (8, 0, 0.2, 1.0)
    assert change.p_value == 2 * 0.5**8
    assert change.is_real
    assert change.sentence.startswith(
        "Success rose from 20.0 % to 100.0 % on 10 tasks (8 tasks better, 0 worse): beyond chance; the 95 % interval "
    )
    assert change.sentence.endswith("McNemar p = 0.0078.")


def test_a_change_within_chance_is_called_so() -> None:
    change = paired_change(one_each(False, False, True), one_each(True, False, True))
    assert not change.is_real
    assert "within chance" in change.sentence
    same = paired_change(one_each(True), one_each(True))
    assert same.sentence == "Success stayed at 100.0 % on 1 task: it is the same on every one."


def test_a_change_of_several_episodes_is_judged_by_tasks() -> None:
    before = [[False, False, False, True]] * 20
    after = [[True, True, False, True]] * 20
    change = paired_change(before, after)
    assert change.p_value is None
    assert (change.before, change.after, change.low, change.high) == (0.25, 0.75, 0.5, 0.5)
    noisy = paired_change([[False, True], [True, True]] * 10, [[True, True], [False, True]] * 10)
    assert (noisy.num_gained, noisy.num_lost) == (10, 10)
    assert noisy.low < 0.0 < noisy.high


def test_tasks_without_episodes_on_a_side_are_left_out() -> None:
    change = paired_change([[True], [], [False]], [[True], [True], []])
    assert change.num_tasks == 1
    with pytest.raises(ValueError, match="both sides"):
        paired_change([[]], [[True]])
