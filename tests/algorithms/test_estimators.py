"""From the rewards of a step to the advantage of every token."""

import math

import pytest
import torch
from algorithm_fixtures import ESTIMATORS, GROUP_MASK, GROUP_REWARDS, close, step_of
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.algorithms.estimators import (
    ADVANTAGE_ESTIMATORS,
    Credit,
    StepRewards,
    advantage_estimator,
    estimate,
    group_advantages,
)
from agent_rl.errors import ConfigError

GREEDY = torch.full((4,), 0.25).double()
quick = settings(max_examples=40, deadline=None)


def test_the_names_are_these():
    assert set(ESTIMATORS) == {
        "grpo", "rloo", "maxrl", "pass_at_k", "opo", "remax", "reinforce_plus_plus", "reinforce_plus_plus_baseline",
        "gae", "gdpo",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("grpo", [1.305580, -0.783348, 0.261116, -0.783348]),
        ("rloo", [0.833333, -0.5, 0.166667, -0.5]),
        ("maxrl", [1.666662, -0.999997, 0.333332, -0.999997]),
        ("opo", [0.588235, -0.411765, 0.088235, -0.411765]),
        ("pass_at_k", [1.044464, 0, 0, 0]),
        ("remax", [0.75, -0.25, 0.25, -0.25]),
        ("reinforce_plus_plus", [1.454305, -1.018014, 0.218146, -1.018014]),
    ],
)
def test_every_trained_token_gets_the_published_advantage_of_its_episode(name, published):
    credit = estimate(name, step_of(GROUP_REWARDS, GROUP_MASK, greedy_rewards_E=GREEDY))
    close(credit.advantages_EN, torch.tensor(published).double().unsqueeze(1) * GROUP_MASK)
    assert credit.returns_EN is None


def test_options_reach_the_estimator_that_uses_them():
    step = step_of(GROUP_REWARDS, GROUP_MASK)
    options = {"scale_by_std": False, "gamma": 0.9, "lam": 0.8}
    close(estimate("grpo", step, **options).advantages_EN[:, 0], [0.625, -0.375, 0.125, -0.375])
    close(estimate("reinforce_plus_plus", step, **options).advantages_EN[0, 4:6], [1.593494, 1.878100])
    assert ADVANTAGE_ESTIMATORS.options_of("grpo") == {"scale_by_std", "min_std", "eps"}
    assert ADVANTAGE_ESTIMATORS.options_of("reinforce_plus_plus") == {"gamma"}
    assert ADVANTAGE_ESTIMATORS.options_of("gae") == {"gamma", "lam", "whiten"}
    assert ADVANTAGE_ESTIMATORS.options_of("gdpo") == {"part_weights"}
    assert ADVANTAGE_ESTIMATORS.options_of("rloo") == set()


def test_unknown_names_and_options_are_refused():
    step = step_of(GROUP_REWARDS, GROUP_MASK)
    with pytest.raises(ConfigError, match=r"'gpro' in algorithm\.advantage; did you mean 'grpo'"):
        estimate("gpro", step)
    with pytest.raises(ConfigError, match="no advantage estimator has an option 'gama'; did you mean 'gamma'"):
        estimate("grpo", step, gama=0.9)


def test_a_critic_gets_its_targets():
    mask = torch.tensor([[1, 1, 0, 0, 1, 1]])
    values = torch.tensor([[0.1, 0.2, 0.9, -0.9, 0.3, 0.4]]).double()
    credit = estimate("gae", step_of([1.0], mask, values_EN=values), gamma=0.9, lam=0.8, whiten=False)
    close(credit.advantages_EN, [[0.385453, 0.424240, 0, 0, 0.492, 0.6]])
    close(credit.returns_EN, [[0.485453, 0.624240, 0, 0, 0.792, 1.0]])


def test_estimators_name_the_missing_input():
    step = step_of(GROUP_REWARDS, GROUP_MASK)
    with pytest.raises(ConfigError, match="'gae' needs values_EN"):
        estimate("gae", step)
    with pytest.raises(ConfigError, match="'remax' needs greedy_rewards_E"):
        estimate("remax", step)
    penalised = step_of([1.0, 0.0], torch.ones(2, 2), token_penalties_EN=torch.ones(2, 2).double())
    with pytest.raises(ConfigError, match="'gdpo' has no place for a KL penalty in the reward"):
        estimate("gdpo", penalised, part_weights={"right": 1.0})


def test_group_wise_estimators_subtract_the_penalties_from_the_outcome_first():
    mask = torch.ones(2, 2)
    penalties = torch.tensor([[0.25, 0.25], [0.0, 0.0]]).double()
    credit = estimate("rloo", step_of([1.0, 0.0], mask, token_penalties_EN=penalties))
    assert credit.advantages_EN.tolist() == [[0.5, 0.5], [-0.5, -0.5]]  # outcomes 0.5 and 0


def test_token_wise_estimators_subtract_each_penalty_where_it_arose():
    mask, penalties = torch.tensor([[1, 0, 1, 1]]), torch.tensor([[0.5, 9.0, 0.25, 0.0]]).double()
    step = step_of([1.0], mask, token_penalties_EN=penalties, greedy_rewards_E=torch.tensor([0.5]).double())
    assert estimate("remax", step).advantages_EN.tolist() == [[-0.25, 0.0, 0.25, 0.5]]
    values = torch.zeros(1, 4)
    step = step_of([1.0], mask, token_penalties_EN=penalties, values_EN=values)
    assert estimate("gae", step, whiten=False).advantages_EN.tolist() == [[0.25, 0.0, 0.75, 1.0]]


def test_remax_gives_nothing_where_the_greedy_episode_has_no_score():
    greedy = torch.tensor([math.nan, 0.0]).double()
    penalties = torch.full((2, 1), 0.25).double()
    step = step_of([1.0, 1.0], torch.ones(2, 1), greedy_rewards_E=greedy, token_penalties_EN=penalties)
    assert estimate("remax", step).advantages_EN.tolist() == [[0.0], [0.75]]


def test_groups_are_compared_with_themselves_only():
    step = step_of([1.0, 10.0, 0.0, 11.0], torch.ones(4, 1), [5, 2, 5, 2])
    assert estimate("rloo", step).advantages_EN[:, 0].tolist() == [1.0, -1.0, -1.0, 1.0]


def test_a_kl_in_the_reward_counts_among_equal_outcomes_where_no_standard_deviation_divides():
    penalties = torch.tensor([[0.10], [0.30], [0.02], [0.30]]).double()
    step = step_of([1.0] * 4, torch.ones(4, 1), token_penalties_EN=penalties)
    leave_one_out = torch.tensor([0.08, -0.12, 0.16, -0.12]) * 4 / 3  # (0.18 - penalty) * n / (n - 1), as verl's
    close(estimate("rloo", step).advantages_EN, leave_one_out.unsqueeze(1).tolist())
    for name, options in (("opo", {}), ("grpo", {"scale_by_std": False})):
        close(estimate(name, step, **options).advantages_EN, [[0.08], [-0.12], [0.16], [-0.12]])


def test_a_kl_in_the_reward_leaves_a_group_of_equal_outcomes_without_variance_where_one_divides():
    penalties = torch.tensor([[1e-3], [2e-3], [0.0], [1e-3], [3e-3], [0.0]]).double()
    step = step_of([0.9] * 3 + [1.0, 0.0, 0.0], torch.ones(6, 1), [0, 0, 0, 1, 1, 1], token_penalties_EN=penalties)
    for name in ("grpo", "pass_at_k", "reinforce_plus_plus_baseline"):
        advantages = estimate(name, step).advantages_EN[:, 0]
        assert advantages[:3].tolist() == [0.0, 0.0, 0.0], name
        assert advantages[3:].ne(0).any(), name


def test_a_step_whitened_as_a_whole_keeps_groups_without_signal_at_exactly_zero():
    rewards, groups = [1.0, 0.0, 0.0, 0.9, 0.9, 0.4], [0, 0, 0, 1, 1, 2]
    mask = torch.tensor([[1, 1], [1, 0], [1, 0], [1, 1], [1, 0], [1, 1]])
    parts = {"right": torch.tensor(rewards).double()}
    for name in ("reinforce_plus_plus_baseline", "gdpo"):
        credit = estimate(name, step_of(rewards, mask, groups, parts_E=parts), part_weights={"right": 1.0})
        assert credit.advantages_EN[3:].eq(0).all()
        assert credit.advantages_EN[:3][mask[:3].bool()].ne(0).all()
        alone = step_of(rewards[:3], mask[:3], groups[:3], parts_E={"right": parts["right"][:3]})
        close(estimate(name, alone, part_weights={"right": 1.0}).advantages_EN, credit.advantages_EN[:3], atol=1e-12)


def test_an_unscored_episode_of_a_group_with_signal_is_outside_the_statistics_of_the_step():
    for name in ("reinforce_plus_plus_baseline", "gdpo"):
        parts = {"right": torch.tensor([1.0, 0.0, 0.0, 1.0]).double()}
        with_it = step_of([1.0, 0.0, 0.0, math.nan], torch.ones(4, 1), parts_E=parts)
        without = step_of([1.0, 0.0, 0.0], torch.ones(3, 1), parts_E={"right": parts["right"][:3]})
        expected = estimate(name, without, part_weights={"right": 1.0}).advantages_EN
        actual = estimate(name, with_it, part_weights={"right": 1.0}).advantages_EN
        close(actual[:3], expected, atol=1e-12)
        assert actual[3] == 0.0


def test_the_baseline_variant_whitens_over_trained_tokens():
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    credit = estimate("reinforce_plus_plus_baseline", step_of([1.0, 0.0], mask))
    # Four tokens: 0.5, 0.5, 0.5, -0.5 have mean 0.25 and standard deviation 0.5.
    close(credit.advantages_EN, [[0.5, 0.5, 0.5], [-1.5, 0, 0]])


def test_parts_are_standardised_apart_and_whitened_over_episodes():
    parts = {
        "right": torch.tensor([1.0, 0.0, 0.0, 1.0]).double(),
        "short": torch.tensor([0.02, 0.04, 0.02, 0.04]).double(),
        "same": torch.full((4,), 0.9).double(),
    }
    step = step_of([9.0, 7.0, 7.0, 9.0], torch.tensor([[1, 1], [1, 0], [1, 0], [1, 0]]), parts_E=parts)
    credit = estimate("gdpo", step, part_weights={"right": 1.0, "short": 0.5, "same": 3.0})
    std = math.sqrt((0.25 + 0.25 + 2.25 + 2.25) / 3)  # of 0.5, -0.5, -1.5, 1.5 in units of one part
    close(credit.advantages_EN[:, 0], [0.5 / std, -0.5 / std, -1.5 / std, 1.5 / std], atol=1e-4)
    assert credit.advantages_EN[0, 1] == credit.advantages_EN[0, 0]
    with pytest.raises(ConfigError, match="unknown reward part 'rigth'; did you mean 'right'"):
        estimate("gdpo", step, part_weights={"rigth": 1.0})


def test_shapes_and_infinities_are_refused():
    with pytest.raises(ValueError, match=r"rewards_E has shape \[2\], but mask_EN has \[1\]"):
        step_of([1.0, 0.0], torch.ones(1, 2), [0])
    with pytest.raises(ValueError, match=r"values_EN has shape \[1, 3\], but mask_EN has \[1, 2\]"):
        step_of([1.0], torch.ones(1, 2), values_EN=torch.zeros(1, 3))
    with pytest.raises(ValueError, match="greedy_rewards_E holds an infinity"):
        step_of([1.0], torch.ones(1, 2), greedy_rewards_E=torch.tensor([math.inf]))


@group_advantages("test_best_of_group")
def best_of_group(rewards_G, *, bonus=0.0):
    return (rewards_G == rewards_G.max()).double() + bonus


def test_a_function_of_one_group_is_an_estimator_with_its_options():
    step = step_of([1.0, 0.0, math.nan, 0.5, 0.5], torch.ones(5, 1), [0, 0, 0, 1, 1])
    assert estimate("test_best_of_group", step).advantages_EN[:, 0].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert estimate("test_best_of_group", step, bonus=2.0, gamma=0.5).advantages_EN[0, 0] == 3.0
    assert ADVANTAGE_ESTIMATORS.options_of("test_best_of_group") == {"bonus"}
    assert best_of_group(torch.tensor([1.0, 2.0])).tolist() == [0.0, 1.0]


@group_advantages("test_mean_of_group")
def mean_of_group(rewards_G):
    return rewards_G.mean()


@advantage_estimator("test_no_credit")
def no_credit(step: StepRewards, *, gives=None):
    return gives


def test_an_answer_of_another_length_is_refused():
    step = step_of([1.0, 0.0], torch.ones(2, 1))
    rows = [("test_mean_of_group", {}, mean_of_group), ("test_no_credit", {}, no_credit)]
    rows += [("test_no_credit", {"gives": each}, no_credit) for each in (step, torch.ones(2, 1), [1.0, 0.0])]
    for wrong in (None, torch.ones(2), torch.ones(2, 2), [[1.0], [0.0]]):
        rows.append(("test_no_credit", {"gives": Credit(advantages_EN=wrong)}, no_credit))
    for name, options, function in rows:
        with pytest.raises(ConfigError) as caught:
            estimate(name, step, **options)
        text = str(caught.value)
        assert f"({__file__}:{function.__code__.co_firstlineno})" in text and "\n" not in text


def test_advantages_of_a_group_may_be_a_list():
    step = step_of([1.0, 0.0], torch.ones(2, 1))
    assert estimate("test_list_of_group", step).advantages_EN[:, 0].tolist() == [1.0, -1.0]


@group_advantages("test_list_of_group")
def list_of_group(rewards_G):
    return [1.0, -1.0]


@advantage_estimator("test_buggy")
def buggy(step: StepRewards) -> Credit:
    return Credit(
        advantages_EN=torch.full(step.mask_EN.shape, 2.0), returns_EN=torch.full(step.mask_EN.shape, math.nan)
    )


def test_a_buggy_estimator_of_ones_own_cannot_reach_what_is_not_trained():
    mask = torch.tensor([[1, 0], [1, 1], [0, 0]])
    credit = estimate("test_buggy", step_of([1.0, math.nan, 1.0], mask))
    assert credit.advantages_EN.tolist() == [[2.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    assert credit.returns_EN.isnan().tolist() == [[True, False], [False, False], [False, False]]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_step_with_nothing_to_train_gives_zeros(name):
    for num_tokens in (0, 2):
        step = step_of(
            [1.0, 0.0, math.nan],
            torch.zeros(3, num_tokens),
            values_EN=torch.ones(3, num_tokens),
            greedy_rewards_E=torch.zeros(3),
            parts_E={"right": torch.ones(3)},
        )
        advantages_EN = estimate(name, step, part_weights={"right": 1.0}).advantages_EN
        assert advantages_EN.tolist() == torch.zeros(3, num_tokens).tolist()


@quick
@given(st.lists(st.integers(0, 8).map(lambda k: k / 8), min_size=2, max_size=6), st.sampled_from(ESTIMATORS))
def test_float32_inputs_are_computed_in_float64(rewards, name):
    num = len(rewards)
    mask = torch.ones(num, 3)
    columns = {
        "group_E": torch.zeros(num, dtype=torch.long),
        "rewards_E": torch.tensor(rewards),
        "token_penalties_EN": torch.zeros(num, 3),
        "values_EN": torch.full((num, 3), 0.5),
        "greedy_rewards_E": torch.full((num,), 0.25),
    }
    weights = {"right": 1.0}
    parts = {"right": torch.tensor(rewards)}
    single = estimate(name, StepRewards(mask_EN=mask, parts_E=parts, **columns), part_weights=weights).advantages_EN
    columns |= {key: columns[key].double() for key in columns if key != "group_E"}
    parts = {"right": torch.tensor(rewards).double()}
    double = estimate(name, StepRewards(mask_EN=mask, parts_E=parts, **columns), part_weights=weights).advantages_EN
    assert single.dtype == double.dtype == torch.float64
    assert torch.equal(single, double)
