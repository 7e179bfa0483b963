"""Returns and advantages per token: tool outputs between sampled tokens are no steps of the episode."""

import math

import pytest
import torch
from algorithm_fixtures import GROUP_MASK, GROUP_REWARDS, close
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.algorithms.token_advantages import gae_advantages, reinforce_pp_advantages, whitened

MASK = torch.tensor([[1, 1, 0, 0, 1, 1]])
REWARDS = torch.tensor([[0.0, 0, 0, 0, 0, 1]]).double()
VALUES = torch.tensor([[0.1, 0.2, 0.9, -0.9, 0.3, 0.4]]).double()
quick = settings(max_examples=60, deadline=None)


def rewards_on_last_tokens():
    rewards_BT = torch.zeros(4, 8).double()
    for row, (mask, reward) in enumerate(zip(GROUP_MASK, GROUP_REWARDS, strict=True)):
        rewards_BT[row, mask.nonzero().max()] = reward
    return rewards_BT


def test_undiscounted_returns_give_every_token_of_an_episode_the_published_advantage():
    advantages_BT = reinforce_pp_advantages(rewards_on_last_tokens(), GROUP_MASK)
    expected = torch.tensor([1.454305, -1.018014, 0.218146, -1.018014]).double().unsqueeze(1) * GROUP_MASK
    close(advantages_BT, expected)


def test_discounted_returns_skip_tool_outputs_as_published():
    advantages_BT = reinforce_pp_advantages(rewards_on_last_tokens(), GROUP_MASK, gamma=0.9)
    close(advantages_BT[0], [1.106818, 1.337349, 0, 0, 1.593494, 1.878100, 0, 0])
    close(advantages_BT[2], [-0.127676, 0, 0, -0.034311, 0.069428, 0.184694, 0.312766, 0.455069])
    close(advantages_BT[1], -0.967962 * GROUP_MASK[1])
    close(advantages_BT[3], -0.967962 * GROUP_MASK[3])


def test_the_discount_counts_sampled_tokens_only():
    zeros = torch.zeros(4, 8)
    returns_BT, _ = gae_advantages(rewards_on_last_tokens(), zeros, GROUP_MASK, gamma=0.9, lam=1.0, whiten=False)
    close(returns_BT[0], [0.729, 0.81, 0, 0, 0.9, 1, 0, 0])


def test_generalised_advantages_are_the_published_ones():
    advantages_BT, returns_BT = gae_advantages(REWARDS, VALUES, MASK, gamma=0.9, lam=0.8, whiten=False)
    close(advantages_BT, [[0.385453, 0.424240, 0, 0, 0.492, 0.6]])
    close(returns_BT, [[0.485453, 0.624240, 0, 0, 0.792, 1.0]])


def test_generalised_advantages_equal_those_of_the_episode_without_its_tool_outputs():
    trained_N = MASK[0].bool()
    short, _ = gae_advantages(REWARDS[:, trained_N], VALUES[:, trained_N], MASK[:, trained_N], gamma=0.9, lam=0.8)
    close(gae_advantages(REWARDS, VALUES, MASK, gamma=0.9, lam=0.8)[0][:, trained_N], short, atol=1e-12)


def test_whitening_changes_the_advantages_and_not_the_targets():
    raw, targets = gae_advantages(REWARDS, VALUES, MASK, gamma=0.9, lam=0.8, whiten=False)
    white, same_targets = gae_advantages(REWARDS, VALUES, MASK, gamma=0.9, lam=0.8)
    close(white, whitened(raw, MASK), atol=1e-12)
    assert torch.equal(targets, same_targets)
    trained = white[MASK.bool()]
    assert abs(trained.mean()) < 1e-12
    assert trained.var() == pytest.approx(1.0, abs=1e-5)


def test_a_perfect_critic_leaves_nothing_to_learn():
    ones = torch.ones(1, 6)
    advantages_BT, returns_BT = gae_advantages(REWARDS, ones, MASK, gamma=1.0, lam=0.95)
    assert advantages_BT.eq(0).all()
    close(returns_BT, MASK.double())


@pytest.mark.parametrize("value", [0.9, 0.1, -3.7])
def test_values_that_are_all_the_same_whiten_to_exactly_zero(value):
    assert whitened(torch.full((3, 4), value), torch.ones(3, 4)).eq(0).all()
    assert whitened(torch.tensor([[value, 5.0]]), torch.tensor([[1, 0]])).eq(0).all()
    assert whitened(torch.zeros(2, 0), torch.zeros(2, 0)).shape == (2, 0)


def test_a_value_that_is_not_a_number_is_not_whitened_away():
    assert whitened(torch.tensor([1.0, math.nan, 2.0]), torch.ones(3)).isnan().all()


def naive_advantages(rewards, values, mask, gamma, lam):
    """The recursion on the sampled tokens alone, written out."""
    places = [t for t in range(len(mask)) if mask[t]]
    advantages, next_advantage, next_value = [0.0] * len(mask), 0.0, 0.0
    for t in reversed(places):
        next_advantage = rewards[t] + gamma * next_value - values[t] + gamma * lam * next_advantage
        next_value = values[t]
        advantages[t] = next_advantage
    return advantages


numbers = st.floats(-2, 2)
junk = st.sampled_from([0.0, 1e30, math.inf, -math.inf, math.nan])


@quick
@given(st.data(), st.sampled_from([0.5, 0.9, 1.0]), st.sampled_from([0.0, 0.8, 1.0]))
def test_advantages_depend_on_sampled_tokens_only(data, gamma, lam):
    mask = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=10))
    rewards, values = ([data.draw(numbers if trained else junk) for trained in mask] for _ in range(2))
    columns = [torch.tensor([column], dtype=torch.float64) for column in (rewards, values, mask)]
    advantages_BT, returns_BT = gae_advantages(*columns, gamma=gamma, lam=lam, whiten=False)
    expected = naive_advantages(rewards, values, mask, gamma, lam)
    close(advantages_BT[0], expected, atol=1e-9)
    close(
        returns_BT[0],
        [a + v if trained else 0.0 for a, v, trained in zip(expected, values, mask, strict=True)],
        atol=1e-9,
    )
    assert reinforce_pp_advantages(*columns[::2], gamma=gamma).isfinite().all()
