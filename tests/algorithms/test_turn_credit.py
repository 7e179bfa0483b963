"""Credit by turn: what a turn earned reaches the tokens of this turn and of those before it."""

import math

import pytest
import torch
from algorithm_fixtures import close, step_of
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.algorithms.estimators import Credit, StepRewards, advantage_estimator, estimate
from agent_rl.config.functions import turn_credit_of
from agent_rl.errors import ConfigError
from agent_rl.registry import ADVANTAGE_ESTIMATORS

NAN = math.nan
BY_GROUP = ["grpo", "rloo", "opo", "reinforce_plus_plus_baseline"]
"""Estimators whose advantages add up to 0 in a group, each with weights of its own."""
quick = settings(max_examples=60, deadline=None)


def turns_of(rewards: list[list[float]], num_tokens: int = 1, group_E: list[int] | None = None) -> StepRewards:
    """A step of episodes whose turns earned this and have so many tokens each."""
    most = max(map(len, rewards))
    numbers = [[turn for turn in range(most) for _ in range(num_tokens)] for _ in rewards]
    mask = [[float(turn < len(row)) for turn in range(most) for _ in range(num_tokens)] for row in rewards]
    padded = [[*row, *[NAN] * (most - len(row))] for row in rewards]
    return step_of(
        [sum(row) for row in rewards],
        torch.tensor(mask),
        group_E,
        turn_EN=torch.tensor(numbers),
        turn_rewards_EK=torch.tensor(padded, dtype=torch.float64),
    )


def of_episodes(step: StepRewards) -> StepRewards:
    return StepRewards(
        group_E=step.group_E,
        rewards_E=step.rewards_E,
        mask_EN=step.mask_EN,
        token_penalties_EN=step.token_penalties_EN,
    )


def test_two_turns_are_mt_grpo():
    # First turns earned 1 and 0, last ones 0 and 1: two rewards one apart have advantages of 0.7071.
    credit = estimate("grpo", turns_of([[1.0, 0.0], [0.0, 1.0]], num_tokens=2))
    out, turn = 1 / math.sqrt(2), 1 / math.sqrt(2)
    close(credit.advantages_EN, [[turn - out] * 2 + [-out] * 2, [out - turn] * 2 + [out] * 2], atol=1e-5)


def test_the_weight_is_that_of_turns_beside_the_outcome():
    credit = estimate("grpo", turns_of([[1.0, 0.0], [0.0, 1.0]]), turn_weight=0.5)
    close(credit.advantages_EN, [[-0.353553, -0.707107], [0.353553, 0.707107]], atol=1e-5)
    without = estimate("grpo", turns_of([[1.0, 0.0], [0.0, 1.0]]), turn_weight=0.0)
    close(without.advantages_EN, [[-0.707107, -0.707107], [0.707107, 0.707107]], atol=1e-5)


def test_a_turn_is_compared_with_the_turns_of_its_number_that_others_have_and_go_on_after():
    # By rloo. Outcomes 4, 0, 2 -> 3, -3, 0. First turns of the two that go on: 3 and 1 -> 2 and -2. The second turn
    # that goes on is the only one of its number -> 0.
    step = turns_of([[3.0, 5.0, 4.0], [1.0, 0.0], [2.0]])
    assert estimate("rloo", step).advantages_EN.tolist() == [[5.0, 3.0, 3.0], [-5.0, -3.0, 0.0], [0.0, 0.0, 0.0]]


def test_what_a_later_turn_earned_reaches_the_turns_before_it():
    # By rloo: outcomes 0, 0; first turns 0, 0; second turns 1, 0 -> 1, -1 for the first two turns.
    step = turns_of([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    assert estimate("rloo", step).advantages_EN.tolist() == [[1.0, 1.0, 0.0], [-1.0, -1.0, 0.0]]


def test_estimators_with_returns_have_each_reward_on_the_last_token_of_its_turn():
    step = turns_of([[1.0, 2.0]], num_tokens=2)
    values = torch.zeros(1, 4).double()
    step = StepRewards(**{name: getattr(step, name) for name in step.__slots__} | {"values_EN": values})
    credit = estimate("gae", step, gamma=0.5, lam=1.0, whiten=False)
    close(credit.advantages_EN, [[0.5 * (1 + 0.5 * 0.5 * 2), 1 + 0.5 * 0.5 * 2, 0.5 * 2, 2.0]])
    returns = estimate("reinforce_plus_plus", turns_of([[1.0, 0.0], [0.0, 0.0]])).advantages_EN  # 1, 0, 0, 0
    close(returns, [[1.5, -0.5], [-0.5, -0.5]], atol=1e-5)


@quick
@given(st.sampled_from(BY_GROUP), st.lists(st.integers(0, 8).map(lambda k: k / 8), min_size=1, max_size=6), st.data())
def test_with_one_turn_it_is_the_credit_of_episodes(name, outcomes, data):
    groups = data.draw(st.lists(st.integers(0, 1), min_size=len(outcomes), max_size=len(outcomes)))
    step = turns_of([[outcome] for outcome in outcomes], num_tokens=2, group_E=groups)
    assert estimate(name, step).advantages_EN.tolist() == estimate(name, of_episodes(step)).advantages_EN.tolist()


earned = st.lists(st.integers(-4, 4).map(lambda k: k / 4), min_size=1, max_size=4)


@quick
@given(st.sampled_from(["grpo", "rloo"]), st.lists(earned, min_size=1, max_size=5), st.floats(0.0, 2.0))
def test_advantages_of_a_turn_add_up_to_0_in_a_group(name, rewards, weight):
    """Those of the last tokens: the outcome's alone; by turn: what its rewards add to the turns before them."""
    step = turns_of(rewards)
    advantages = estimate(name, step, turn_weight=weight).advantages_EN
    last = torch.tensor([advantages[row, len(turns) - 1] for row, turns in enumerate(rewards)])
    close(last.sum(), 0.0, atol=1e-6)
    most = max(map(len, rewards))
    for number in range(most - 1):
        going_on = [row for row, turns in enumerate(rewards) if len(turns) > number + 1]
        added = sum(float(advantages[row, number] - advantages[row, number + 1]) for row in going_on)
        assert abs(added) < 1e-6


@quick
@given(st.lists(earned, min_size=2, max_size=5))
def test_without_rewards_before_the_last_turn_nothing_differs(rewards):
    late = [[*[0.0] * (len(turns) - 1), turns[-1]] for turns in rewards]
    step = turns_of(late)
    assert estimate("grpo", step).advantages_EN.tolist() == estimate("grpo", of_episodes(step)).advantages_EN.tolist()


@quick
@given(st.lists(earned, min_size=2, max_size=4), st.sampled_from(["grpo", "gae", "reinforce_plus_plus"]))
def test_masked_tokens_and_what_does_not_count_change_nothing(rewards, name):
    """Law 1, and an episode without a score beside the others."""
    plain = turns_of(rewards)
    values = {"values_EN": torch.zeros(plain.mask_EN.shape).double()} if name == "gae" else {}
    fields = {each: getattr(plain, each) for each in plain.__slots__} | values
    before = estimate(name, StepRewards(**fields)).advantages_EN

    def wide(table: torch.Tensor, filler: float) -> torch.Tensor:
        """A masked column after every column, and a row of an episode without a score."""
        columns = torch.stack([table, torch.full_like(table, filler)], dim=2).flatten(1)
        return torch.cat([columns, torch.full_like(columns[:1], filler)])

    mask = wide(plain.mask_EN.double(), 0.0).bool()
    mask[-1, 0] = True
    more = StepRewards(
        group_E=torch.cat([plain.group_E, torch.tensor([0])]),
        rewards_E=torch.cat([plain.rewards_E, torch.tensor([NAN])]),
        mask_EN=mask,
        token_penalties_EN=wide(plain.token_penalties_EN, NAN),
        values_EN=wide(values["values_EN"], math.inf) if values else None,
        turn_EN=wide(plain.turn_EN, 2),
        turn_rewards_EK=torch.cat([plain.turn_rewards_EK, torch.full_like(plain.turn_rewards_EK[:1], 7.0)]),
    )
    after = estimate(name, more).advantages_EN
    assert torch.equal(after[:-1, ::2], before)
    assert not after[-1].any() and not after[:, 1::2].any()


def test_a_group_whose_turns_earned_alike_has_advantage_exactly_0():
    assert not estimate("grpo", turns_of([[0.5, 1.0], [0.5, 1.0]])).advantages_EN.any()
    assert not estimate("grpo", turns_of([[0.5, 1.0]])).advantages_EN.any()


def test_estimators_without_credit_by_turn_are_refused():
    step = turns_of([[1.0, 0.0], [0.0, 1.0]])
    for name in ("gdpo", "remax"):
        with pytest.raises(ConfigError, match=f"advantage '{name}', which has no credit by turn"):
            estimate(name, step)
    if "flat_of_a_test" not in ADVANTAGE_ESTIMATORS:

        @advantage_estimator("flat_of_a_test", turn_credit="own")
        def flat(step: StepRewards) -> Credit:
            return Credit(advantages_EN=step.turn_rewards_EK[:, :1].expand(step.mask_EN.shape))

    assert turn_credit_of("flat_of_a_test") == "own"
    assert estimate("flat_of_a_test", step).advantages_EN.tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_the_turns_come_with_their_rewards_or_not_at_all():
    with pytest.raises(ValueError, match="come together"):
        step_of([1.0], torch.ones(1, 1), turn_EN=torch.zeros(1, 1).long())
