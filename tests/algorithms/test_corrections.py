"""Weights for tokens that another policy sampled, and how far it is from the trainer's."""

import math

import pytest
import torch
from algorithm_fixtures import ADVANTAGES, MASK, PROX, SAMPLING, TRAINER, close

from agent_rl.algorithms.aggregation import aggregate_loss
from agent_rl.algorithms.corrections import CORRECTIONS, importance_weights, mismatch_metrics
from agent_rl.algorithms.policy_losses import policy_loss
from agent_rl.algorithms.ratios import masked_log_ratio, sequence_log_ratios
from agent_rl.errors import ConfigError


def weights(kind: str, **bounds: float) -> torch.Tensor:
    return importance_weights(PROX, SAMPLING, MASK, kind=kind, **bounds)


@pytest.mark.parametrize(
    ("kind", "bounds", "published"),
    [
        ("none", {}, [[1, 1, 0, 1], [1, 1, 1, 0], [1, 0, 0, 0]]),
        ("token_tis", {}, [[1.648721, 1, 0, 1], [1, 0.818731, 2.718282, 0], [1, 0, 0, 0]]),
        ("token_tis", {"high": 2.0}, [[1.648721, 1, 0, 1], [1, 0.818731, 2, 0], [1, 0, 0, 0]]),
        ("token_tis", {"low": 0.9, "high": 2.0}, [[1.648721, 1, 0, 1], [1, 0.818731, 2, 0], [1, 0, 0, 0]]),
        ("token_mask", {"low": 0.5, "high": 2.0}, [[1.648721, 1, 0, 1], [1, 0.818731, 0, 0], [1, 0, 0, 0]]),
        ("token_mask", {"low": 0.9, "high": 2.0}, [[1.648721, 1, 0, 1], [1, 0, 0, 0], [1, 0, 0, 0]]),
        ("sequence_tis", {}, [[1.648721, 1.648721, 0, 1.648721], [2.225541, 2.225541, 2.225541, 0], [1, 0, 0, 0]]),
        ("sequence_tis", {"high": 2.0}, [[1.648721, 1.648721, 0, 1.648721], [2, 2, 2, 0], [1, 0, 0, 0]]),
        ("sequence_mask", {"low": 0.5, "high": 2.0}, [[1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]]),
        ("sequence_mask", {"low": 1.1}, [[1, 1, 0, 1], [1, 1, 1, 0], [0, 0, 0, 0]]),
        ("geometric_mask", {"low": 0.5, "high": 1.2}, [[1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]]),
        ("geometric_mask", {"low": 1.181361, "high": 1.305606}, [[0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]]),
    ],
)
def test_weights_match_the_published_ratios(kind, bounds, published):
    close(weights(kind, **bounds), published)


def test_products_and_geometric_means_match_the_published_values():
    log_ratio = masked_log_ratio(PROX, SAMPLING, MASK.bool())
    close(sequence_log_ratios(log_ratio, MASK, mean=False).exp()[:, 0], [1.648721, 2.225541, 1.0])
    close(sequence_log_ratios(log_ratio, MASK, mean=True).exp()[:, 0], [1.181360, 1.305605, 1.0])


def test_the_mean_drift_of_a_sample_matches_the_published_values():
    log_ratio = masked_log_ratio(SAMPLING, TRAINER, MASK.bool())
    close(sequence_log_ratios(log_ratio, MASK, mean=True)[:, 0], [0.133333, -0.5, 0.0])


def test_the_truncated_loss_matches_the_published_value():
    token_loss = policy_loss(TRAINER, PROX, ADVANTAGES, MASK, clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    weighted = token_loss * weights("token_tis", high=2.0)
    close(aggregate_loss(weighted, MASK, "token_mean", num_loss_tokens=7, num_samples=3), 0.290705)


@pytest.mark.parametrize("kind", CORRECTIONS)
def test_weights_carry_no_gradient_and_stay_finite(kind):
    old = torch.tensor([[0.0, -5000.0, 0.0]]).requires_grad_()
    sampling = torch.tensor([[-5000.0, 0.0, -1.0]])
    result = importance_weights(old, sampling, torch.ones(1, 3), kind=kind)
    assert not result.requires_grad
    assert result.isfinite().all()
    assert result.dtype == torch.float32


def test_an_unknown_kind_is_refused():
    for function in (importance_weights, mismatch_metrics):
        with pytest.raises(ConfigError, match="unknown sampler correction 'token_mis'; did you mean 'token_tis'"):
            function(PROX, SAMPLING, MASK, kind="token_mis")


def test_the_mismatch_matches_the_published_values():
    metrics = mismatch_metrics(PROX, SAMPLING, MASK, kind="token_tis", high=2.0)
    assert metrics == pytest.approx(
        {
            "mismatch/log_diff_mean": -0.185714,
            "mismatch/abs_log_diff_max": 1.0,
            "mismatch/k2": 0.092143,
            "mismatch/k3": 0.126533,
            "mismatch/chi_square": 1.111094,
            "mismatch/ess": 0.815688,
            "mismatch/ratio_max": 2.718282,
            "mismatch/sequence_ratio_max": 2.225541,
            "mismatch/geometric_ratio_max": 1.305605,
            "mismatch/cut_tokens": 1 / 7,
            "mismatch/cut_samples": 1 / 3,
        },
        abs=1e-6,
    )


@pytest.mark.parametrize(
    ("kind", "bounds", "tokens", "samples"),
    [
        ("none", {"low": 1.1, "high": 1.2}, 0, 0),
        ("token_tis", {"low": 0.9, "high": 1.5}, 2, 2),
        ("token_mask", {"low": 0.9, "high": 2.0}, 2, 1),
        ("sequence_tis", {"high": 2.0}, 3, 1),
        ("sequence_mask", {"low": 1.1, "high": 2.0}, 4, 2),
        ("geometric_mask", {"low": 0.5, "high": 1.1}, 6, 2),
    ],
)
def test_what_a_correction_cuts_is_counted_in_tokens_and_samples(kind, bounds, tokens, samples):
    padded = [torch.nn.functional.pad(column, (0, 2, 0, 1)) for column in (PROX, SAMPLING, MASK)]
    metrics = mismatch_metrics(*padded, kind=kind, **bounds)
    assert metrics["mismatch/cut_tokens"] == pytest.approx(tokens / 7)
    assert metrics["mismatch/cut_samples"] == pytest.approx(samples / 3)


def test_a_masked_token_is_never_counted_as_cut():
    old, mask = torch.log(torch.tensor([[1.5, 1.0]])), torch.tensor([[1, 0]])
    metrics = mismatch_metrics(old, torch.zeros(1, 2), mask, kind="token_mask", low=1.2, high=2.0)
    assert metrics["mismatch/cut_tokens"] == metrics["mismatch/cut_samples"] == 0.0


def test_raw_ratios_are_reported_whatever_is_cut():
    raw = mismatch_metrics(PROX, SAMPLING, MASK)
    cut = mismatch_metrics(PROX, SAMPLING, MASK, kind="sequence_mask", low=0.5, high=2.0)
    assert [key for key in raw if raw[key] != cut[key]] == ["mismatch/cut_tokens", "mismatch/cut_samples"]


def test_equal_policies_show_no_mismatch():
    metrics = mismatch_metrics(PROX, PROX, MASK, kind="token_mask", low=1.0, high=1.0)
    ones = {"mismatch/ess", "mismatch/ratio_max", "mismatch/sequence_ratio_max", "mismatch/geometric_ratio_max"}
    assert metrics == {key: float(key in ones) for key in metrics}


def test_without_trained_tokens_there_are_no_mismatch_metrics():
    assert mismatch_metrics(PROX, SAMPLING, torch.zeros(3, 4)) == {}
    assert importance_weights(PROX, SAMPLING, torch.zeros(3, 4), kind="geometric_mask").eq(0).all()


def test_masked_log_probs_that_are_not_numbers_change_nothing():
    junk = [column.masked_fill(MASK == 0, math.nan) for column in (PROX, SAMPLING)]
    assert mismatch_metrics(*junk, MASK) == mismatch_metrics(PROX, SAMPLING, MASK)
