"""The same tasks before and after: golden values, laws of random cases, intervals and tests as they claim."""

import math
import random
from itertools import product
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.telemetry.statistics import (
    PairedChange,
    changes_interval,
    paired_change,
    paired_interval,
    paired_means,
    sign_flip_p,
    t_quantile,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("df", "quantile"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (10, 2.2281), (30, 2.0423), (200, 1.9719)]
)
def test_quantiles_of_student_are_those_of_the_tables(df: int, quantile: float) -> None:
    assert t_quantile(df) == pytest.approx(quantile, rel=0.003)


def test_student_needs_a_degree_of_freedom() -> None:
    with pytest.raises(ValueError, match="0 degrees of freedom"):
        t_quantile(0)


def test_sign_flips_by_hand() -> None:
    assert sign_flip_p([1] * 6) == 2 * 0.5**6
    assert sign_flip_p([1] * 5) == 2 * 0.5**5
    assert sign_flip_p([1, -1, -1, -1]) == pytest.approx(2 * (1 + 4) / 16)  # McNemar's of 1 gained and 3 lost
    assert sign_flip_p([1, 1, -1, -1]) == 1.0
    assert sign_flip_p([0, 0]) == sign_flip_p([]) == 1.0
    assert sign_flip_p([3, 1]) == 0.5  # of 4, 2, -2 and -4 two are as far out as 4


@given(st.lists(st.integers(-4, 4), max_size=8))
def test_the_p_value_is_the_share_of_sign_choices_as_far_out(changes: list[int]) -> None:
    sums = [
        abs(sum(sign * size for sign, size in zip(signs, changes, strict=True)))
        for signs in product((1, -1), repeat=len(changes))
    ]
    assert sign_flip_p(changes) == pytest.approx(fmean(each >= abs(sum(changes)) for each in sums))


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
    assert same.sentence.startswith("Success is 100.0 % on 1 task, as before, and the same on every one; the 95 % ")
    turned = paired_change(one_each(False, True), one_each(True, False))
    assert turned.sentence.startswith("Success is 50.0 % on 2 tasks, as before (1 task better, 1 worse): within chance")


def test_a_change_of_several_episodes_is_judged_by_tasks() -> None:
    before = [[False, False, False, True]] * 20
    after = [[True, True, False, True]] * 20
    change = paired_change(before, after)
    assert (change.method, change.before, change.after) == ("sign-flip", 0.25, 0.75)
    assert change.p_value == pytest.approx(2 * 0.5**20)
    # 20 changes of 0.5, one of 0.25 and one of -0.25: mean 0.4545, standard deviation 0.1682, 21 degrees of freedom.
    assert (change.low, change.high) == pytest.approx((0.3799, 0.5292), abs=1e-3)
    assert change.is_real
    noisy = paired_change([[False, True], [True, True]] * 10, [[True, True], [False, True]] * 10)
    assert (noisy.num_gained, noisy.num_lost, noisy.p_value) == (10, 10, 1.0)
    assert noisy.low < 0.0 < noisy.high


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=5))
def test_up_to_five_tasks_are_never_beyond_chance(after: list[list[bool]]) -> None:
    change = paired_change([[False] * 4] * len(after), after)
    assert change.high > change.low
    assert not change.is_real


def test_the_sentence_reports_where_test_and_interval_disagree() -> None:
    change = PairedChange(
        num_tasks=9, num_episodes=18, before=0.0, after=0.5, low=0.1, high=0.9, num_gained=4, num_lost=0, p_value=0.125,
        method="sign-flip",
    )  # fmt: skip
    assert not change.is_real
    assert "(the interval alone would call it beyond chance, the exact test does not; both have to)" in change.sentence


@pytest.mark.parametrize(("gain", "least"), [(0.0, 0.93), (0.4, 0.9)])
@pytest.mark.parametrize("num_tasks", [3, 5, 20, 100])
def test_the_interval_over_tasks_covers_the_truth_and_chance_is_seldom_called_a_change(
    num_tasks: int, gain: float, least: float
) -> None:
    """Tasks are solved 0.1 to 0.5 of the time, half of them `gain` more often afterwards; four episodes each."""
    rng, held, num_real = random.Random(0), 0, 0
    for _ in range(400):
        before, after = [], []
        for rate in (rng.uniform(0.1, 0.5) for _ in range(num_tasks)):
            later = rate + rng.choice([0.0, gain])
            before.append([rng.random() < rate for _ in range(4)])
            after.append([rng.random() < later for _ in range(4)])
        change = paired_change(before, after)
        held += change.low <= gain / 2 <= change.high
        num_real += change.is_real
    assert held / 400 >= least
    if not gain:
        assert num_real / 400 <= 0.06


def test_the_change_of_a_reward_has_a_width_with_one_task_too() -> None:
    mean, low, high = paired_means([[0.0]], [[1.0]])
    assert (mean, low < 0.0, high > 1.0) == (1.0, True, True)
    # Changes 0, 1, 2 and the pseudo-tasks 2 and -2: mean 0.6, standard deviation 1.673, t(4) = 2.776.
    assert changes_interval([0.0, 1.0, 2.0], 2.0) == pytest.approx(
        (0.6 - 2.776 * 1.673 / math.sqrt(5), 0.6 + 2.776 * 1.673 / math.sqrt(5)), abs=0.01
    )
    with pytest.raises(ValueError, match="at least one task"):
        paired_means([], [])


def test_tasks_without_episodes_on_a_side_are_left_out() -> None:
    change = paired_change([[True], [], [False]], [[True], [True], []])
    assert change.num_tasks == 1
    with pytest.raises(ValueError, match="both sides"):
        paired_change([[]], [[True]])
