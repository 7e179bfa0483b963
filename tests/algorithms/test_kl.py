"""The KL penalty: its estimators, their gradients, and the coefficient over the steps."""

import math

import pytest
import torch
from algorithm_fixtures import MASK, PROX, REF, TRAINER, close
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.algorithms.aggregation import aggregate_loss
from agent_rl.algorithms.kl import KLController, kl_penalty
from agent_rl.errors import ConfigError

STEP = {"num_loss_tokens": 7, "num_samples": 3}


@pytest.mark.parametrize(
    ("kind", "published"),
    [
        ("k1", -0.271429),
        ("kl", -0.271429),
        ("abs", 0.357143),
        ("k2", 0.113571),
        ("mse", 0.113571),
        ("k3", 0.151528),
        ("low_var_kl", 0.151528),
    ],
)
def test_penalties_match_the_published_values(kind, published):
    close(aggregate_loss(kl_penalty(TRAINER, REF, kind), MASK, "token_mean", **STEP), published)


def test_a_penalty_can_be_weighted_by_the_policy_ratio():
    weighted = (TRAINER - PROX).exp() * kl_penalty(TRAINER, REF, "k3")
    close(aggregate_loss(weighted, MASK, "token_mean", **STEP), 0.071280)


@pytest.mark.parametrize(
    ("kind", "published"),
    [
        ("k1", [1, 1, 0, 1]),
        ("abs", [1, -1, 0, -1]),
        ("k2", [0.1, -0.2, 0, -0.5]),
        ("k3", [0.095163, -0.221403, 0, -0.648721]),
    ],
)
def test_gradients_by_the_log_prob_match_the_published_values(kind, published):
    trainer = TRAINER.clone().requires_grad_()
    kl_penalty(trainer, REF, kind, mask=MASK).sum().backward()
    close(trainer.grad[0], published)


@pytest.mark.parametrize("kind", ["k1", "abs", "k2", "k3"])
def test_what_is_masked_reaches_neither_penalty_nor_gradient(kind):
    trainer = TRAINER.masked_fill(MASK == 0, math.nan).requires_grad_()
    penalty = kl_penalty(trainer, REF.masked_fill(MASK == 0, -math.inf), kind, mask=MASK)
    close(penalty, kl_penalty(TRAINER, REF, kind) * MASK, atol=0)
    penalty.sum().backward()
    assert trainer.grad[MASK == 0].eq(0).all()


def test_k3_of_an_absurd_token_is_bounded():
    close(kl_penalty(torch.tensor([-5000.0, 5000.0, -1.0]), torch.zeros(3), "k3"), [10.0, 10.0, math.e - 2.0])


def test_the_full_kl_matches_the_published_value():
    rows = torch.log_softmax(torch.tensor([[2.0, 1.0, 0.0, -1.0]], dtype=torch.float64), dim=-1)
    uniform = torch.full((1, 4), 0.25, dtype=torch.float64).log()
    close(kl_penalty(rows, uniform, "full"), [0.438757])
    close(kl_penalty(rows, rows, "full"), [0.0], atol=0)


def test_ids_that_are_ruled_out_add_nothing_to_the_full_kl():
    logits = torch.tensor([[1.0, 0.0, -math.inf], [1.0, 0.0, 2.0]], requires_grad=True)
    ref = torch.log_softmax(torch.tensor([[0.0, 0.0, -math.inf], [0.0, 0.0, 0.0]]), dim=-1)
    rows = torch.log_softmax(logits, dim=-1)
    full_kl = kl_penalty(rows, ref, "full", mask=torch.tensor([1, 0]))
    close(full_kl, [float(kl_penalty(rows[0, :2], ref[0, :2], "full").detach()), 0.0])
    full_kl.sum().backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[0, :2].ne(0).all()
    assert logits.grad[1].eq(0).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=2, max_size=5))
def test_k1_and_k3_are_the_full_kl_on_average_and_k2_has_its_gradient(logits):
    policy, ref = (torch.log_softmax(torch.tensor(x, dtype=torch.float64), dim=0) for x in zip(*logits, strict=True))
    full_kl = kl_penalty(policy, ref, "full")
    assert full_kl >= -1e-12
    close((policy.exp() * kl_penalty(policy, ref, "k1")).sum(), full_kl, atol=1e-9)
    unclamped = (policy - ref).abs().max() < 2
    if unclamped:
        close((policy.exp() * kl_penalty(policy, ref, "k3")).sum(), full_kl, atol=1e-9)

    raw = torch.tensor([x for x, _ in logits], dtype=torch.float64, requires_grad=True)
    rows = torch.log_softmax(raw, dim=0)
    exact = torch.autograd.grad(kl_penalty(rows, ref, "full"), raw, retain_graph=True)[0]
    sampled = torch.autograd.grad((rows.exp().detach() * kl_penalty(rows, ref, "k2")).sum(), raw)[0]
    close(sampled, exact, atol=1e-9)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="unknown KL kind 'k4'; known: k1, abs, k2, k3, full"):
        kl_penalty(TRAINER, REF, "k4")


def test_the_adaptive_coefficient_takes_the_published_steps():
    controller = KLController(0.1, target=6.0, horizon=10_000)
    controller.update(9.0, num_samples=256)
    assert controller.coefficient == pytest.approx(0.100512, abs=1e-6)
    controller.update(1.0, num_samples=256)
    assert controller.coefficient == pytest.approx(0.099997, abs=1e-6)
    controller.update(6.6, num_samples=1000)
    assert controller.coefficient == pytest.approx(0.0999974 * 1.01, abs=1e-6)


@pytest.mark.parametrize(("kl", "factor"), [(0.0, 0.8), (9.0, 1.2)])
def test_a_step_of_many_horizons_moves_the_coefficient_by_a_fifth(kl, factor):
    controller = KLController(0.1, target=0.1, horizon=100)
    controller.update(kl, num_samples=1024)
    assert controller.coefficient == pytest.approx(0.1 * factor)


def test_a_restored_controller_goes_on_where_it_stood():
    first, second = (KLController(0.1, target=6.0) for _ in range(2))
    first.update(9.0, num_samples=256)
    second.load_state_dict(first.state_dict())
    for controller in (first, second):
        controller.update(1.0, num_samples=64)
    assert first.coefficient == second.coefficient != 0.1


def test_a_fixed_coefficient_stays_that_of_the_configuration():
    controller = KLController(0.1)
    controller.update(9.0, num_samples=256)
    controller.load_state_dict({"coefficient": 0.7})
    assert controller.coefficient == 0.1


@pytest.mark.parametrize("kl", [math.nan, math.inf])
def test_the_controller_refuses_a_kl_that_is_not_finite(kl):
    controller = KLController(0.1, target=6.0)
    with pytest.raises(ValueError, match=f"the KL of the step is {kl}"):
        controller.update(kl, num_samples=8)
    assert controller.coefficient == 0.1
