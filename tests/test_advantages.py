import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.algorithms.advantages import grpo_advantages, has_signal

# Multiples of 1/8 and shifts by whole numbers are exact in binary, so that shifting changes no bit of a difference.
rewards = st.lists(st.integers(0, 16).map(lambda k: k / 8), min_size=1, max_size=12)
quick = settings(max_examples=60, deadline=None)


def close(actual, expected, atol=1e-6):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), atol=atol, rtol=0)


def test_four_rewards_give_the_published_advantages():
    close(grpo_advantages([1.0, 0.0, 0.5, 0.0]), [1.305580, -0.783348, 0.261116, -0.783348])


def test_without_std_the_advantages_are_the_centred_rewards():
    close(grpo_advantages([1.0, 0.0, 0.5, 0.0], scale_by_std=False), [0.625, -0.375, 0.125, -0.375])


@pytest.mark.parametrize("scale_by_std", [True, False])
@pytest.mark.parametrize("value", [0.9, 0.1, 0.7, 1.0, 0.0])
def test_a_group_of_equal_rewards_has_advantage_exactly_zero(value, scale_by_std):
    for rewards_G in ([value] * 8, torch.full((8,), value), [value + k * 1e-7 for k in range(8)]):
        assert grpo_advantages(rewards_G, scale_by_std=scale_by_std).tolist() == [0.0] * 8
        assert not has_signal(rewards_G)


@pytest.mark.parametrize("rewards_G", [[1.0], [1.0, None], [None, 0.3, math.nan]])
def test_a_group_with_one_scored_episode_has_advantage_exactly_zero(rewards_G):
    assert grpo_advantages(rewards_G).tolist() == [0.0] * len(rewards_G)
    assert not has_signal(rewards_G)


def test_a_group_without_any_score_has_advantage_exactly_zero():
    assert grpo_advantages([None, math.nan]).tolist() == [0.0, 0.0]
    assert not has_signal([])


@pytest.mark.parametrize("unscored", [None, math.nan])
def test_unscored_episodes_are_left_out_of_the_statistics(unscored):
    actual = grpo_advantages([1.0, unscored, 0.0, 0.5, 0.0])
    close(actual, [1.305580, 0.0, -0.783348, 0.261116, -0.783348])
    assert has_signal([1.0, unscored, 0.0])


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
def test_a_group_has_signal_exactly_when_some_advantage_is_not_zero(rewards_G):
    assert has_signal(rewards_G) == bool(grpo_advantages(rewards_G).any())
