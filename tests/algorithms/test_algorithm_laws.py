"""The laws of the algorithms, for every estimator, loss, correction, KL and aggregation.

1. Masked tokens, whatever stands there, change nothing of a trained one. 2. Neither loss nor gradient depends on how a
step is cut. 3. A zero-variance group has advantage exactly 0. 4. The outcome belongs to the last trained token, and who
has none does not count.
"""

import itertools
import math

import pytest
import torch
from algorithm_fixtures import ESTIMATORS, PROX, REF, SAMPLING, TRAINER, close, step_of
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.algorithms.aggregation import AGGREGATIONS, aggregate_loss
from agent_rl.algorithms.corrections import CORRECTIONS, importance_weights, mismatch_metrics
from agent_rl.algorithms.estimators import StepRewards, estimate
from agent_rl.algorithms.kl import kl_penalty
from agent_rl.algorithms.policy_losses import ratio_metrics, token_policy_loss, value_loss

GROUP_RELATIVE = sorted(set(ESTIMATORS) - {"remax", "reinforce_plus_plus", "gae"})
OPTIONS = {"part_weights": {"right": 1.0, "short": 0.5}, "gamma": 0.9, "lam": 0.8}
NO_PENALTY = {"gdpo", "maxrl"}
"""These refuse what a penalty in the reward does: one has no place for it, the other takes no reward below 0."""
LOSSES = {
    "ppo_clip": ("ppo_clip", {}),
    "dual_clip": ("ppo_clip", {"dual_clip": 3.0}),
    "gspo": ("ppo_clip", {"ratio_level": "sequence"}),
    "cispo": ("cispo", {}),
}
CLIP = {"clip_low": 0.2, "clip_high": 0.28}
BOUNDS = {"low": 0.7, "high": 1.5}
TOKEN_KLS = ["k1", "abs", "k2", "k3"]
laws = settings(max_examples=25, deadline=None)

junk = st.sampled_from([0.0, -3.5, 1e30, math.inf, -math.inf, math.nan])
rewards = st.integers(0, 8).map(lambda k: k / 8)
advantage_table = st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=12, max_size=12)


def masks(num_rows, num_columns):
    digits = st.lists(st.integers(0, 1), min_size=num_rows * num_columns, max_size=num_rows * num_columns)
    return digits.map(lambda row: torch.tensor(row).view(num_rows, num_columns))


@st.composite
def steps(draw, *, with_penalties=True, min_episodes=1):
    """A step of a few episodes in up to three groups; some may be unscored or have nothing trained."""
    num = draw(st.integers(min_episodes, 6))
    numbers = st.lists(rewards, min_size=num, max_size=num)
    table = torch.tensor(draw(st.lists(rewards, min_size=num * 4, max_size=num * 4)), dtype=torch.float64).view(num, 4)
    outcome = draw(st.lists(rewards | st.just(math.nan), min_size=num, max_size=num))
    return step_of(
        outcome,
        draw(masks(num, 4)),
        draw(st.lists(st.integers(0, 2), min_size=num, max_size=num)),
        token_penalties_EN=table / 8 * with_penalties,
        values_EN=table.flip(1),
        greedy_rewards_E=torch.tensor(draw(numbers), dtype=torch.float64),
        parts_E={name: torch.tensor(draw(numbers), dtype=torch.float64) for name in ("right", "short")},
    )


def with_tables(step: StepRewards, change) -> StepRewards:
    """The step with `change(table, is_mask)` made to its mask, penalties and values."""
    return StepRewards(
        group_E=step.group_E,
        rewards_E=step.rewards_E,
        mask_EN=change(step.mask_EN, True),
        token_penalties_EN=change(step.token_penalties_EN, False),
        values_EN=change(step.values_EN, False),
        greedy_rewards_E=step.greedy_rewards_E,
        parts_E=step.parts_E,
    )


def rows_of(step: StepRewards, rows: list[int]) -> StepRewards:
    return StepRewards(
        group_E=step.group_E[rows],
        rewards_E=step.rewards_E[rows],
        mask_EN=step.mask_EN[rows],
        token_penalties_EN=step.token_penalties_EN[rows],
        values_EN=step.values_EN[rows],
        greedy_rewards_E=step.greedy_rewards_E[rows],
        parts_E={name: part[rows] for name, part in step.parts_E.items()},
    )


def some_masked_columns(data, num_columns):
    """Columns in order, None for a new one, and the places of the old ones."""
    columns = list(range(num_columns))
    for _ in range(data.draw(st.integers(1, 4))):
        columns.insert(data.draw(st.integers(0, len(columns))), None)
    return columns, [place for place, column in enumerate(columns) if column is not None]


def stretch(data, table, columns, *, is_mask=False):
    """The table with new columns of junk, or of zeros for a mask."""
    parts = []
    for column in columns:
        new = [0.0 if is_mask else data.draw(junk) for _ in range(len(table))]
        parts.append(torch.tensor(new).to(table.dtype) if column is None else table[:, column])
    return torch.stack(parts, dim=1)


@pytest.mark.parametrize("name", ESTIMATORS)
@laws
@given(st.data())
def test_law_1_masked_tokens_change_no_credit(name, data):
    step = data.draw(steps(with_penalties=name not in NO_PENALTY))
    columns, unmasked = some_masked_columns(data, 4)
    longer = with_tables(step, lambda table, is_mask: stretch(data, table, columns, is_mask=is_mask))
    expected, actual = estimate(name, step, **OPTIONS), estimate(name, longer, **OPTIONS)
    close(actual.advantages_EN[:, unmasked], expected.advantages_EN, atol=1e-9)
    assert actual.advantages_EN[~longer.mask_EN].eq(0).all()
    if expected.returns_EN is not None:
        close(actual.returns_EN[:, unmasked], expected.returns_EN, atol=1e-9)
        assert actual.returns_EN[~longer.mask_EN].eq(0).all()


@pytest.mark.parametrize("name", ESTIMATORS)
@laws
@given(st.data())
def test_credit_follows_the_episodes_in_whatever_order_they_come(name, data):
    step = data.draw(steps(with_penalties=name not in NO_PENALTY))
    order = data.draw(st.permutations(range(len(step.group_E))))
    expected = estimate(name, step, **OPTIONS).advantages_EN[list(order)]
    # Among equal best episodes there is none to prefer.
    close(estimate(name, rows_of(step, list(order)), **OPTIONS).advantages_EN, expected, atol=1e-9)


@pytest.mark.parametrize("name", ESTIMATORS)
@laws
@given(st.data())
def test_law_4_episodes_without_a_score_or_a_trained_token_change_nothing_for_the_others(name, data):
    step = data.draw(steps(with_penalties=name not in NO_PENALTY))
    counted = (~step.rewards_E.isnan() & step.mask_EN.any(dim=1)).nonzero().squeeze(1).tolist()
    advantages_EN = estimate(name, step, **OPTIONS).advantages_EN
    close(advantages_EN[counted], estimate(name, rows_of(step, counted), **OPTIONS).advantages_EN, atol=1e-9)
    others = [e for e in range(len(step.group_E)) if e not in counted]
    assert advantages_EN[others].eq(0).all()


@pytest.mark.parametrize("name", GROUP_RELATIVE)
@laws
@given(st.data())
def test_law_3_groups_without_signal_have_advantage_exactly_zero(name, data):
    step = data.draw(steps(with_penalties=False, min_episodes=3))
    flat = data.draw(st.sampled_from([0.9, 0.1, 0.7, 1.0]))  # group 0 is flat, whatever the others are
    outcome = torch.where((step.group_E == 0) & ~step.rewards_E.isnan(), flat, step.rewards_E)
    parts = {name: torch.where(step.group_E == 0, flat, part) for name, part in step.parts_E.items()}
    columns = {"group_E": step.group_E, "token_penalties_EN": step.token_penalties_EN, "mask_EN": step.mask_EN}
    credit = estimate(name, StepRewards(rewards_E=outcome, parts_E=parts, **columns), **OPTIONS)
    assert credit.advantages_EN[step.group_E == 0].eq(0).all()


@pytest.mark.parametrize("name", GROUP_RELATIVE)
@laws
@given(st.data())
def test_law_3_a_group_of_one_has_advantage_exactly_zero(name, data):
    step = data.draw(steps(with_penalties=name not in NO_PENALTY))
    alone = [int(number) for number in step.group_E.unique() if (step.group_E == number).sum() == 1]
    advantages_EN = estimate(name, step, **OPTIONS).advantages_EN
    assert advantages_EN[torch.isin(step.group_E, torch.tensor(alone).long())].eq(0).all()


@laws
@given(masks(1, 6).filter(lambda mask: mask.any()), st.sampled_from([0.5, 0.9]))
def test_law_4_the_outcome_belongs_to_the_last_trained_token(mask, gamma):
    step = step_of([1.0], mask, values_EN=torch.zeros(1, 6))
    advantages = estimate("gae", step, gamma=gamma, lam=1.0, whiten=False).advantages_EN[0]
    trained = mask[0].nonzero().squeeze(1).tolist()
    close(advantages[trained], [gamma**steps_to_go for steps_to_go in reversed(range(len(trained)))], atol=1e-12)


def token_losses(columns, *, loss, correction, kl):
    """All that a step's loss is made of, added up per token."""
    trainer, old, sampling, ref, advantages, mask = columns
    name, options = LOSSES[loss]
    policy = token_policy_loss(name, trainer, old, advantages, mask, **CLIP, **options)
    weights = importance_weights(old, sampling, mask, kind=correction, **BOUNDS)
    critic = value_loss(trainer, old, sampling, mask, clip=0.2)
    return policy * weights + 0.1 * kl_penalty(trainer, ref, kl, mask=mask) + 0.5 * critic


def loss_and_gradient(columns, bins, *, mode, **kinds):
    """Loss, gradient by the trainer's log-probs and token losses of a step that is cut into bins of rows."""
    trainer, *others = columns
    trainer = trainer.clone().requires_grad_()
    mask = others[-1]
    total, all_losses = 0.0, torch.zeros(mask.shape).double()
    for number in set(bins):
        rows = [row for row, of in enumerate(bins) if of == number]
        losses = token_losses([trainer[rows], *(column[rows] for column in others)], **kinds)
        share = aggregate_loss(
            losses,
            mask[rows],
            mode,
            num_loss_tokens=max(1, int(mask.sum())),
            num_samples=len(mask),
            max_length=16 if mode.endswith("norm") else None,
        )
        share.backward()
        total += float(share.detach())
        all_losses[rows] = losses.detach()
    return total, trainer.grad, all_losses


def columns_of(advantages, mask):
    return [TRAINER, PROX, SAMPLING, REF, torch.tensor(advantages, dtype=torch.float64).view(3, 4), mask]


every_loss = pytest.mark.parametrize("loss", LOSSES)
kinds_of = st.fixed_dictionaries(
    {
        "correction": st.sampled_from(CORRECTIONS),
        "kl": st.sampled_from(TOKEN_KLS),
        "mode": st.sampled_from(AGGREGATIONS),
    }
)


@every_loss
@settings(laws, max_examples=40)
@given(st.data(), advantage_table, masks(3, 4), kinds_of)
def test_law_1_masked_tokens_change_no_loss_and_no_gradient(loss, data, advantages, mask, kinds):
    short = columns_of(advantages, mask)
    places, unmasked = some_masked_columns(data, 4)
    long = [stretch(data, column, places, is_mask=column is mask) for column in short]
    # What stood under the mask of the short step is junk as well.
    long = [column if column is long[-1] else column.masked_fill(long[-1] == 0, data.draw(junk)) for column in long]
    one_bin = [0, 0, 0]
    expected_total, expected_gradient, expected_losses = loss_and_gradient(short, one_bin, loss=loss, **kinds)
    total, gradient, losses = loss_and_gradient(long, one_bin, loss=loss, **kinds)
    assert total == pytest.approx(expected_total, abs=1e-12)
    close(gradient[:, unmasked], expected_gradient, atol=1e-12)
    close(losses[:, unmasked], expected_losses, atol=1e-12)
    assert gradient[long[-1] == 0].eq(0).all()
    assert losses[long[-1] == 0].eq(0).all()

    trainer, old, sampling, _, advantages_BT, mask = long
    for level in ("token", "sequence"):
        options = {**CLIP, "dual_clip": 3.0, "ratio_level": level}
        expected = ratio_metrics(short[0], short[1], short[4], short[5], **options)
        assert ratio_metrics(trainer, old, advantages_BT, mask, **options) == pytest.approx(expected)
    options = {"kind": kinds["correction"], **BOUNDS}
    expected = mismatch_metrics(short[1], short[2], short[5], **options)
    assert mismatch_metrics(old, sampling, mask, **options) == pytest.approx(expected)


@every_loss
@settings(laws, max_examples=40)
@given(st.lists(st.integers(0, 3), min_size=3, max_size=3), advantage_table, masks(3, 4), kinds_of)
def test_law_2_no_cut_into_micro_batches_changes_loss_or_gradient(loss, bins, advantages, mask, kinds):
    columns = columns_of(advantages, mask)
    expected_total, expected_gradient, _ = loss_and_gradient(columns, [0, 0, 0], loss=loss, **kinds)
    total, gradient, _ = loss_and_gradient(columns, bins, loss=loss, **kinds)
    assert total == pytest.approx(expected_total, abs=1e-12)
    close(gradient, expected_gradient, atol=1e-12)


@pytest.mark.parametrize("correction", CORRECTIONS)
@every_loss
def test_every_combination_trains_what_is_trained_and_nothing_else(loss, correction):
    mask = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]])
    columns = [column.masked_fill(mask == 0, math.nan) for column in columns_of([1.0, -1.0, 0.5] * 4, mask)[:-1]]
    for kl, mode in itertools.product(TOKEN_KLS, AGGREGATIONS):
        kinds = {"loss": loss, "correction": correction, "kl": kl, "mode": mode}
        total, gradient, _ = loss_and_gradient([*columns, mask], [0, 1, 0], **kinds)
        assert math.isfinite(total)
        assert torch.equal(gradient != 0, mask.bool())


@laws
@given(st.data(), masks(3, 4), st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_laws_1_and_2_hold_for_the_full_kl(data, mask, bins):
    rows = torch.log_softmax(torch.stack([TRAINER, PROX, SAMPLING], dim=-1), dim=-1)
    ref_rows = torch.log_softmax(torch.stack([REF, TRAINER, PROX], dim=-1), dim=-1)

    def gradient_of(rows, ref_rows, bins):
        rows = rows.clone().requires_grad_()
        for number in set(bins):
            chosen = [row for row, of in enumerate(bins) if of == number]
            penalty = kl_penalty(rows[chosen], ref_rows[chosen], "full", mask=mask[chosen])
            assert penalty[mask[chosen] == 0].eq(0).all()
            penalty.sum().backward()
        return rows.grad

    masked = (mask == 0).unsqueeze(-1)
    actual = gradient_of(rows.masked_fill(masked, data.draw(junk)), ref_rows.masked_fill(masked, data.draw(junk)), bins)
    close(actual, gradient_of(rows, ref_rows, [0, 0, 0]), atol=1e-12)
