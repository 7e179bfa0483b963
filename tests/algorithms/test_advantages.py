import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.algorithms.advantages import (
    grpo_advantages,
    has_variance,
    maxrl_advantages,
    normalize_parts,
    opo_advantages,
    pass_at_k_advantages,
    remax_advantages,
    rloo_advantages,
)
from agent_rl.errors import ConfigError

# Multiples of 1/8 and shifts by whole numbers are exact in binary, so that shifting changes no bit of a difference.
rewards = st.lists(st.integers(0, 16).map(lambda k: k / 8), min_size=1, max_size=12)
quick = settings(max_examples=60, deadline=None)


def close(actual, expected, atol=1e-6):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), atol=atol, rtol=0)


def test_four_rewards_give_the_published_advantages():
    close(grpo_advantages([1.0, 0.0, 0.5, 0.0]), [1.305580, -0.783348, 0.261116, -0.783348])


def test_without_std_the_advantages_are_the_centred_rewards():
    close(grpo_advantages([1.0, 0.0, 0.5, 0.0], scale_by_std=False), [0.625, -0.375, 0.125, -0.375])


def test_a_group_that_hardly_differs_is_divided_by_the_least_standard_deviation():
    nearly_equal = [2.3] * 7 + [2.29]
    close(grpo_advantages(nearly_equal)[-1], -2.47, atol=0.01)
    close(grpo_advantages(nearly_equal, min_std=0.25), [0.005] * 7 + [-0.035])
    close(grpo_advantages([1.0, 0.0, 0.5, 0.0], min_std=0.25), grpo_advantages([1.0, 0.0, 0.5, 0.0]))
    assert grpo_advantages([0.7] * 8, min_std=0.25).tolist() == [0.0] * 8


@pytest.mark.parametrize("scale_by_std", [True, False])
@pytest.mark.parametrize("value", [0.9, 0.1, 0.7, 1.0, 0.0])
def test_a_group_of_equal_rewards_has_advantage_exactly_zero(value, scale_by_std):
    for rewards_G in ([value] * 8, torch.full((8,), value), [value + k * 1e-7 for k in range(8)]):
        assert grpo_advantages(rewards_G, scale_by_std=scale_by_std).tolist() == [0.0] * 8
        assert not has_variance(rewards_G)


@pytest.mark.parametrize("rewards_G", [[1.0], [1.0, None], [None, 0.3, math.nan]])
def test_a_group_with_one_scored_episode_has_advantage_exactly_zero(rewards_G):
    assert grpo_advantages(rewards_G).tolist() == [0.0] * len(rewards_G)
    assert not has_variance(rewards_G)


def test_a_group_without_any_score_has_advantage_exactly_zero():
    assert grpo_advantages([None, math.nan]).tolist() == [0.0, 0.0]
    assert not has_variance([])


@pytest.mark.parametrize("unscored", [None, math.nan])
def test_unscored_episodes_are_left_out_of_the_statistics(unscored):
    actual = grpo_advantages([1.0, unscored, 0.0, 0.5, 0.0])
    close(actual, [1.305580, 0.0, -0.783348, 0.261116, -0.783348])
    assert has_variance([1.0, unscored, 0.0])


def test_a_float32_tensor_is_computed_in_float64():
    actual = grpo_advantages(torch.tensor([1.0, 0.0, 0.5, 0.0]))
    assert actual.dtype == torch.float64
    close(actual, [1.305580, -0.783348, 0.261116, -0.783348])


def test_an_infinite_reward_is_refused():
    with pytest.raises(ValueError, match="infinite"):
        grpo_advantages([1.0, math.inf])


def test_rewards_of_two_groups_at_once_are_refused():
    with pytest.raises(ValueError, match=r"shape \[G\], got \[2, 4\]"):
        grpo_advantages(torch.zeros(2, 4))


@quick
@given(rewards, st.booleans())
def test_advantages_sum_to_zero(rewards_G, scale_by_std):
    assert abs(grpo_advantages(rewards_G, scale_by_std=scale_by_std).sum().item()) < 1e-9


@quick
@given(rewards, st.integers(-5, 5), st.booleans())
def test_adding_a_constant_to_all_rewards_changes_nothing(rewards_G, shift, scale_by_std):
    shifted = grpo_advantages([r + shift for r in rewards_G], scale_by_std=scale_by_std)
    close(shifted, grpo_advantages(rewards_G, scale_by_std=scale_by_std), atol=1e-9)


@quick
@given(rewards, st.floats(0.5, 100.0))
def test_with_std_multiplying_all_rewards_changes_nothing(rewards_G, factor):
    scaled = grpo_advantages([r * factor for r in rewards_G], eps=0.0)
    close(scaled, grpo_advantages(rewards_G, eps=0.0), atol=1e-9)


@quick
@given(rewards.flatmap(lambda r: st.tuples(st.just(r), st.permutations(range(len(r))))))
def test_permuting_the_episodes_permutes_the_advantages(case):
    rewards_G, order = case
    permuted = grpo_advantages([rewards_G[i] for i in order])
    close(permuted, grpo_advantages(rewards_G)[list(order)], atol=1e-9)


@quick
@given(rewards)
def test_a_group_has_variance_exactly_when_some_advantage_is_not_zero(rewards_G):
    assert has_variance(rewards_G) == bool(grpo_advantages(rewards_G).any())


LENGTHS = [4, 3, 6, 4]


@pytest.mark.parametrize(
    ("function", "published"),
    [
        (rloo_advantages, [0.833333, -0.5, 0.166667, -0.5]),
        (maxrl_advantages, [1.666662, -0.999997, 0.333332, -0.999997]),
        (lambda rewards_G: opo_advantages(rewards_G, LENGTHS), [0.588235, -0.411765, 0.088235, -0.411765]),
        (pass_at_k_advantages, [1.044464, 0.0, 0.0, 0.0]),
        (lambda rewards_G: pass_at_k_advantages(rewards_G, scale_by_std=False), [0.5, 0.0, 0.0, 0.0]),
        (lambda rewards_G: remax_advantages(rewards_G, 0.25), [0.75, -0.25, 0.25, -0.25]),
    ],
)
def test_the_other_estimators_give_the_published_advantages(function, published):
    close(function([1.0, 0.0, 0.5, 0.0]), published)


GROUP_RELATIVE = {
    "grpo": grpo_advantages,
    "rloo": rloo_advantages,
    "maxrl": maxrl_advantages,
    "opo": lambda rewards_G: opo_advantages(rewards_G, range(1, len(rewards_G) + 1)),
    "pass_at_k": pass_at_k_advantages,
    "parts": lambda rewards_G: normalize_parts({"only": rewards_G}, {"only": 2.0}),
}


@pytest.mark.parametrize("name", GROUP_RELATIVE)
@pytest.mark.parametrize("rewards_G", [[0.9] * 8, [0.1] * 3, [0.7] * 12, [1.0], [1.0, None], [None, math.nan], []])
def test_no_group_relative_estimator_makes_something_of_nothing(name, rewards_G):
    assert GROUP_RELATIVE[name](rewards_G).tolist() == [0.0] * len(rewards_G)


@pytest.mark.parametrize("name", sorted(set(GROUP_RELATIVE) - {"opo"}))
def test_no_group_relative_estimator_looks_at_unscored_episodes(name):
    without = GROUP_RELATIVE[name]([1.0, 0.0, 0.5, 0.0])
    close(GROUP_RELATIVE[name]([1.0, None, 0.0, 0.5, math.nan, 0.0])[[0, 2, 3, 5]], without, atol=0)


def test_an_unscored_episode_has_no_weight_in_the_length_weighted_baseline():
    close(opo_advantages([1.0, None, 0.0], [1, 100, 3]), [0.75, 0.0, -0.25])
    with pytest.raises(ValueError, match="2 lengths for 3 rewards"):
        opo_advantages([1.0, 0.5, 0.0], [1, 3])


def test_two_best_episodes_share_no_pass_at_k_credit():
    assert pass_at_k_advantages([1.0, 1.0, 0.0]).tolist() == [0.0] * 3


def test_maxrl_refuses_negative_rewards():
    with pytest.raises(ConfigError, match=r"'maxrl' divides .* got a reward of -0.5, expected none below 0"):
        maxrl_advantages([1.0, -0.5])


def test_remax_compares_with_the_greedy_episode_alone():
    assert remax_advantages([1.0], 0.25).tolist() == [0.75]
    assert remax_advantages([0.5, 0.5, None], 0.25).tolist() == [0.25, 0.25, 0.0]
    assert remax_advantages([0.5, 1.0], math.nan).tolist() == [0.0, 0.0]
    assert remax_advantages([0.5, 1.0], torch.tensor([0.5, 0.0])).tolist() == [0.0, 1.0]


def test_each_part_of_the_reward_is_standardised_on_its_own():
    parts_G = {
        "right": [1.0, 0.0, 0.0, 1.0],
        "short": [0.02, 0.04, 0.02, 0.04],
        "same": [0.9] * 4,
        "unused": [5, 1, 2, 3],
    }
    ones = math.sqrt(0.75)  # (r - mean) / std of two values, each twice
    combined = normalize_parts(parts_G, {"right": 1.0, "short": 0.5, "same": 7.0})
    close(combined, [0.5 * ones, -0.5 * ones, -1.5 * ones, 1.5 * ones], atol=1e-4)


def test_weights_must_name_parts_that_are_there():
    with pytest.raises(ConfigError, match="unknown reward part 'rihgt'; did you mean 'right'"):
        normalize_parts({"right": [1.0, 0.0]}, {"rihgt": 1.0})
    with pytest.raises(ConfigError, match="give weights to some of: right"):
        normalize_parts({"right": [1.0, 0.0]}, {})


@quick
@given(rewards, st.sampled_from(["rloo", "parts"]))
def test_advantages_of_a_group_sum_to_zero(rewards_G, name):
    assert abs(GROUP_RELATIVE[name](rewards_G).sum().item()) < 1e-9


@quick
@given(rewards)
def test_leave_one_out_is_the_reward_less_the_mean_of_the_others(rewards_G):
    if has_variance(rewards_G):
        others = [(sum(rewards_G) - reward) / (len(rewards_G) - 1) for reward in rewards_G]
        close(rloo_advantages(rewards_G), [r - other for r, other in zip(rewards_G, others, strict=True)], atol=1e-9)
