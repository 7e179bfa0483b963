"""Policy losses per token, the critic's loss, and one number from all tokens."""

import math

import pytest
import torch
from algorithm_fixtures import ADVANTAGES, MASK, PROX, SAMPLING, TRAINER, close
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.algorithms.advantages import overlong_penalty
from agent_rl.algorithms.aggregation import AGGREGATIONS, aggregate_loss
from agent_rl.algorithms.policy_losses import (
    policy_loss,
    policy_loss_function,
    ratio_metrics,
    token_policy_loss,
    value_loss,
)
from agent_rl.errors import ConfigError
from agent_rl.registry import POLICY_LOSSES

CLIP = {"clip_low": 0.2, "clip_high": 0.28}
STEP = {"num_loss_tokens": 7, "num_samples": 3}
quick = settings(max_examples=40, deadline=None)


def test_token_losses_match_the_published_values():
    expected = [[-1.221403, -0.904837, 0, -0.367879], [3.0, 1.491825, 0.8, 0], [-0.5, 0, 0, 0]]
    close(policy_loss(TRAINER, PROX, ADVANTAGES, MASK, **CLIP, dual_clip=3.0), expected)
    expected[1][0] = math.exp(1.9)
    close(policy_loss(TRAINER, PROX, ADVANTAGES, MASK, **CLIP), expected)


@pytest.mark.parametrize(
    ("mode", "max_length", "published"),
    [
        ("token_mean", None, 0.328244),
        ("seq_mean_token_mean", None, 0.144189),
        ("seq_mean_token_sum", None, 0.765902),
        ("seq_mean_token_sum_norm", 4, 0.191475),
    ],
)
def test_aggregated_losses_match_the_published_values(mode, max_length, published):
    token_loss = policy_loss(TRAINER, PROX, ADVANTAGES, MASK, **CLIP, dual_clip=3.0)
    close(aggregate_loss(token_loss, MASK, mode, **STEP, max_length=max_length), published)


@pytest.mark.parametrize("clip", [{"clip_low": 3e-4, "clip_high": 4e-4}, CLIP])
def test_the_loss_of_sequence_ratios_matches_the_published_value(clip):
    token_loss = policy_loss(TRAINER, PROX, ADVANTAGES, MASK, **clip, ratio_level="sequence")
    close(aggregate_loss(token_loss, MASK, "seq_mean_token_mean", **STEP), 0.007328)


def test_every_token_of_a_sample_has_the_published_sequence_ratio():
    token_loss = policy_loss(
        TRAINER, PROX, torch.ones(3, 4).double(), MASK, clip_low=0.9, clip_high=9.0, ratio_level="sequence"
    )
    ratios_B = torch.tensor([0.740818, 1.262802, 1.0])
    close(token_loss, (-ratios_B.unsqueeze(1) * MASK).double())


def test_the_gradient_of_sequence_ratios_is_that_of_whole_sequences():
    trainer = TRAINER.clone().requires_grad_()
    token_loss = policy_loss(trainer, PROX, ADVANTAGES, MASK, clip_low=0.9, clip_high=9.0, ratio_level="sequence")
    aggregate_loss(token_loss, MASK, "seq_mean_token_mean", **STEP).backward()

    whole = TRAINER.clone().requires_grad_()
    mean_log_ratio_B = ((whole - PROX) * MASK).sum(dim=1) / MASK.sum(dim=1)
    (-(mean_log_ratio_B.exp() * ADVANTAGES[:, 0]).sum() / 3).backward()
    close(trainer.grad, whole.grad, atol=1e-12)


@pytest.mark.parametrize(("clip_low", "published"), [(0.2, 0.063077), (1.0, 0.195944)])
def test_cispo_matches_the_published_values_with_both_clips_and_with_the_upper_alone(clip_low, published):
    token_loss = token_policy_loss("cispo", TRAINER, PROX, ADVANTAGES, MASK, clip_low=clip_low, clip_high=0.28)
    close(aggregate_loss(token_loss, MASK, "token_mean", **STEP), published)


def test_cispo_weighs_the_gradient_of_clipped_tokens_and_keeps_it():
    old = torch.full((1, 3), -2.0)
    logprobs = (old + torch.log(torch.tensor([[1.5, 0.5, 1.0]]))).requires_grad_()
    token_policy_loss("cispo", logprobs, old, torch.ones(1, 3), torch.ones(1, 3), **CLIP).sum().backward()
    close(logprobs.grad, [[-1.28, -0.8, -1.0]])


@policy_loss_function("test_sapo")
def sapo(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT, *, tau_above=1.0, tau_below=1.05):
    """-(4 / tau) * sigmoid(tau * (ratio - 1)) * A."""
    tau_BT = torch.where(advantages_BT > 0, tau_above, tau_below)
    ratio_BT = (logprobs_BT - old_logprobs_BT).exp()
    return -4 / tau_BT * torch.sigmoid(tau_BT * (ratio_BT - 1)) * advantages_BT


@policy_loss_function("test_tv_mask")
def tv_mask(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT, *, limit=0.2):
    """Leaves out tokens whose probability has moved too far in the direction of the advantage already."""
    moved_BT = logprobs_BT.exp() - old_logprobs_BT.exp()
    too_far_BT = torch.where(advantages_BT > 0, moved_BT > limit, moved_BT < -limit)
    return (-(logprobs_BT - old_logprobs_BT).exp() * advantages_BT).masked_fill(too_far_BT, 0.0)


def test_a_loss_of_ones_own_is_one_function():
    token_loss = token_policy_loss("test_sapo", TRAINER, PROX, ADVANTAGES, MASK, **CLIP)
    close(aggregate_loss(token_loss, MASK, "token_mean", **STEP), 0.117504)
    token_loss = token_policy_loss("test_tv_mask", TRAINER, SAMPLING, ADVANTAGES, MASK, **CLIP)
    assert (token_loss.eq(0) & MASK.bool()).nonzero().tolist() == [[0, 0]]
    assert POLICY_LOSSES.options_of("test_tv_mask") == {"limit"}
    assert POLICY_LOSSES.options_of("ppo_clip") == {"clip_low", "clip_high", "dual_clip", "ratio_level"}


def test_a_loss_of_ones_own_never_sees_what_is_masked():
    junk = TRAINER.masked_fill(MASK == 0, math.nan).requires_grad_()
    expected = token_policy_loss("test_sapo", TRAINER, PROX, ADVANTAGES, MASK)
    actual = token_policy_loss("test_sapo", junk, PROX, ADVANTAGES.masked_fill(MASK == 0, math.inf), MASK)
    close(actual, expected, atol=0)
    actual.sum().backward()
    assert junk.grad[MASK == 0].eq(0).all()
    assert junk.grad[MASK == 1].ne(0).all()


@policy_loss_function("test_wrong_loss")
def wrong_loss(logprobs_BT, old_logprobs_BT, advantages_BT, mask_BT, *, gives=None):
    return gives


def test_a_loss_of_another_shape_or_without_a_gradient_is_refused_with_its_line():
    logprobs_BT = torch.zeros(2, 3, requires_grad=True)
    columns = (logprobs_BT, torch.zeros(2, 3), torch.ones(2, 3), torch.ones(2, 3))
    for gives in (None, 1.0, logprobs_BT.sum(), logprobs_BT[0], torch.zeros(2, 3)):
        with pytest.raises(ConfigError) as caught:
            token_policy_loss("test_wrong_loss", *columns, gives=gives)
        assert f"({__file__}:{wrong_loss.__code__.co_firstlineno})" in str(caught.value)
    assert token_policy_loss("test_wrong_loss", *columns, gives=logprobs_BT * 2).requires_grad


def test_unknown_losses_levels_and_dual_clips_are_refused():
    columns = (TRAINER, PROX, ADVANTAGES, MASK)
    with pytest.raises(ConfigError, match=r"'ppo_clp' in algorithm\.loss; did you mean 'ppo_clip'"):
        token_policy_loss("ppo_clp", *columns)
    with pytest.raises(ConfigError, match="no policy loss has an option 'clip_hihg'; did you mean 'clip_high'"):
        token_policy_loss("ppo_clip", *columns, **CLIP, clip_hihg=0.3)
    with pytest.raises(ConfigError, match="unknown ratio level 'sample'; known: token, sequence"):
        policy_loss(*columns, **CLIP, ratio_level="sample")
    for dual_clip in (1.0, 0.5, math.nan):
        with pytest.raises(ConfigError, match=r"dual_clip is .* expected a number above 1"):
            policy_loss(*columns, **CLIP, dual_clip=dual_clip)


def test_the_clip_ranges_are_separate():
    logprobs = torch.log(torch.tensor([[1.2, 1.5, 0.9, 0.5]])).requires_grad_()
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    loss = policy_loss(logprobs, torch.zeros(1, 4), advantages, torch.ones(1, 4), clip_low=0.2, clip_high=0.28)
    close(loss, [[-1.2, -1.28, 0.9, 0.8]])
    loss.sum().backward()
    close(logprobs.grad, [[-1.2, 0.0, 0.9, 0.0]])


@pytest.mark.parametrize("ratio_level", ["token", "sequence"])
def test_on_policy_the_gradient_is_the_advantage(ratio_level):
    logprobs = PROX.clone().requires_grad_()
    policy_loss(logprobs, PROX, ADVANTAGES, MASK, **CLIP, ratio_level=ratio_level).sum().backward()
    close(logprobs.grad, -ADVANTAGES * MASK)


@pytest.mark.parametrize(("ratio_level", "largest"), [("token", math.exp(20.0)), ("sequence", math.exp(10.0))])
def test_an_absurd_log_ratio_stays_finite(ratio_level, largest):
    columns = (torch.tensor([[0.0]]), torch.tensor([[-5000.0]]), torch.tensor([[-1.0]]), torch.ones(1, 1))
    assert float(policy_loss(*columns, **CLIP, ratio_level=ratio_level)) == pytest.approx(largest)


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_aggregation_ignores_masked_losses_that_are_not_numbers(mode):
    loss = torch.tensor([[1.0, math.nan], [3.0, math.inf]])
    mask = torch.tensor([[1, 0], [1, 0]])
    max_length = 1 if mode.endswith("norm") else None
    close(aggregate_loss(loss, mask, mode, num_loss_tokens=2, num_samples=2, max_length=max_length), 2.0)


def test_a_row_without_trained_tokens_adds_nothing_but_counts_as_a_sample():
    loss, mask = torch.tensor([[4.0, 4.0], [9.0, 9.0]]), torch.tensor([[1, 1], [0, 0]])
    expected = {
        "token_mean": 4.0,
        "seq_mean_token_mean": 2.0,
        "seq_mean_token_sum": 4.0,
        "seq_mean_token_sum_norm": 0.5,
    }
    for mode, value in expected.items():
        max_length = 8 if mode.endswith("norm") else None
        close(aggregate_loss(loss, mask, mode, num_loss_tokens=2, num_samples=2, max_length=max_length), value)


def test_an_unknown_aggregation_and_an_empty_step_are_refused():
    one = torch.ones(1, 1)
    with pytest.raises(ConfigError, match="unknown aggregation 'mean'; known: token_mean"):
        aggregate_loss(one, one, "mean", num_loss_tokens=1, num_samples=1)
    with pytest.raises(ValueError, match="0 trained tokens"):
        aggregate_loss(one, torch.zeros(1, 1), "token_mean", num_loss_tokens=0, num_samples=1)


def test_the_length_constant_belongs_to_one_aggregation_only():
    one, step = torch.ones(1, 1), {"num_loss_tokens": 1, "num_samples": 1}
    with pytest.raises(ConfigError, match="'seq_mean_token_sum_norm' got max_length None"):
        aggregate_loss(one, one, "seq_mean_token_sum_norm", **step)
    with pytest.raises(ConfigError, match=r"'token_mean' got max_length 8; .* all others none"):
        aggregate_loss(one, one, "token_mean", **step, max_length=8)


def test_kl_and_log_ratios_match_the_published_mismatch_values():
    metrics = ratio_metrics(PROX, SAMPLING, ADVANTAGES, MASK, **CLIP)
    assert metrics["policy/kl"] == pytest.approx(0.126533, abs=1e-6)
    assert metrics["loss/abs_log_ratio_mean"] == pytest.approx((0.5 + 0.2 + 1.0) / 7)
    assert metrics["loss/abs_log_ratio_max"] == pytest.approx(1.0)


ratios = st.sampled_from([0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 2.9, 3.1, 5.9])


@settings(quick, max_examples=100)
@given(
    st.lists(st.tuples(ratios, st.sampled_from([-1.0, 0.5, 0.0])), min_size=1, max_size=5),
    st.sampled_from([0.28, 4.0]),
    st.sampled_from([None, 3.0]),
    st.sampled_from(["token", "sequence"]),
)
def test_clip_fraction_counts_tokens_whose_gradient_is_clipped_away(tokens, clip_high, dual_clip, ratio_level):
    ratio, advantage = zip(*tokens, strict=True)
    old, mask = torch.zeros(1, len(tokens)).double(), torch.ones(1, len(tokens))
    trainer = torch.tensor([ratio], dtype=torch.float64).log().requires_grad_()
    columns = (trainer, old, torch.tensor([advantage], dtype=torch.float64), mask)
    options = {"clip_low": 0.2, "clip_high": clip_high, "dual_clip": dual_clip, "ratio_level": ratio_level}
    policy_loss(*columns, **options).sum().backward()
    is_clipped = (trainer.grad == 0) & (columns[2] != 0)
    assert ratio_metrics(*columns, **options)["loss/clip_frac"] == pytest.approx(float(is_clipped.double().mean()))


def test_tokens_without_advantage_are_never_clipped():
    metrics = ratio_metrics(torch.tensor([-3.0]), torch.tensor([0.0]), torch.zeros(1), torch.ones(1), **CLIP)
    assert metrics["loss/clip_frac"] == 0.0
    assert metrics["loss/abs_log_ratio_max"] == 3.0


def test_without_trained_tokens_there_are_no_ratio_metrics():
    assert ratio_metrics(TRAINER, PROX, ADVANTAGES, torch.zeros(3, 4), **CLIP) == {}


def test_the_critics_losses_match_the_published_values():
    values = torch.tensor([[0.5, 1.2, 0.1, 0.9]], dtype=torch.float64)
    before = torch.tensor([[0.4, 0.9, 0.1, 0.2]], dtype=torch.float64)
    returns = torch.tensor([[1.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    loss = value_loss(values, before, returns, torch.ones(1, 4), clip=0.2)
    close(loss, [[0.125, 0.02, 0.405, 0.405]])
    close(loss.mean(), 0.23875)
    plain = value_loss(values, before, returns, torch.ones(1, 4), clip=math.inf)
    close(plain, (values - returns) ** 2 / 2)


def test_completions_near_their_budget_pay_up_to_one():
    num_tokens_E = torch.tensor([0, 80, 81, 90, 100, 110, 999])
    expected = [0.0, 0.0, -0.05, -0.5, -1.0, -1.0, -1.0]
    close(overlong_penalty(num_tokens_E, max_tokens=100, buffer=20), torch.tensor(expected).double(), atol=1e-7)


@pytest.mark.parametrize("buffer", [0, 101])
def test_a_buffer_outside_the_budget_is_refused(buffer):
    with pytest.raises(ConfigError, match=rf"the overlong buffer is {buffer} tokens, expected from 1 to .* 100"):
        overlong_penalty(torch.tensor([50]), max_tokens=100, buffer=buffer)
