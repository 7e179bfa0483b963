import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.algorithms.losses import aggregate_loss, chunked_logprobs, policy_loss, ratio_metrics

CLIP = {"clip_low": 0.2, "clip_high": 0.28}
MODES = ["token_mean", "seq_mean_token_mean"]
MASK = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 0], [1, 0, 0, 0]])
TRAINER = torch.tensor([[-0.5, -1.0, -0.2, -2.0], [-0.7, -0.1, -3.0, -0.4], [-1.5, -0.6, -0.9, -0.3]]).double()
PROX = torch.tensor([[-0.7, -0.9, -0.2, -1.0], [-2.6, -0.5, -1.4, -0.4], [-1.5, -0.2, -1.9, -0.3]]).double()
SAMPLING = torch.tensor([[-1.2, -0.9, -0.5, -1.0], [-2.6, -0.3, -2.4, -0.4], [-1.5, -0.2, -0.9, -1.9]]).double()
ADVANTAGES = torch.tensor([[1.0], [-1.0], [0.5]]).double().expand(3, 4)
quick = settings(max_examples=40, deadline=None)


def close(actual, expected, atol=1e-6):
    torch.testing.assert_close(actual, torch.as_tensor(expected).to(actual.dtype), atol=atol, rtol=0)


# The published values cap the first token of row 1 at 3.0 (dual clip); without it the loss is the ratio exp(1.9).
def test_token_losses_match_the_published_values():
    expected = [[-1.221403, -0.904837, 0, -0.367879], [math.exp(1.9), 1.491825, 0.8, 0], [-0.5, 0, 0, 0]]
    close(policy_loss(TRAINER, PROX, ADVANTAGES, MASK, **CLIP), expected)


@pytest.mark.parametrize(("mode", "published"), [("token_mean", 0.328244), ("seq_mean_token_mean", 0.144189)])
def test_aggregated_losses_match_the_published_values(mode, published):
    token_loss = policy_loss(TRAINER, PROX, ADVANTAGES, MASK, **CLIP).clamp(max=3.0)  # dual clip at 3
    close(aggregate_loss(token_loss, MASK, mode, num_loss_tokens=7, num_samples=3), published)


def test_the_clip_ranges_are_separate():
    logprobs = torch.log(torch.tensor([[1.2, 1.5, 0.9, 0.5]])).requires_grad_()
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    loss = policy_loss(logprobs, torch.zeros(1, 4), advantages, torch.ones(1, 4), clip_low=0.2, clip_high=0.28)
    close(loss, [[-1.2, -1.28, 0.9, 0.8]])
    loss.sum().backward()
    close(logprobs.grad, [[-1.2, 0.0, 0.9, 0.0]])


def test_on_policy_the_gradient_is_the_advantage():
    logprobs = PROX.clone().requires_grad_()
    policy_loss(logprobs, PROX, ADVANTAGES, MASK, **CLIP).sum().backward()
    close(logprobs.grad, -ADVANTAGES * MASK)


def test_an_absurd_log_ratio_stays_finite():
    loss = policy_loss(
        torch.tensor([[0.0]]), torch.tensor([[-5000.0]]), torch.tensor([[-1.0]]), torch.ones(1, 1), **CLIP
    )
    close(loss, [[math.exp(20.0)]], atol=100.0)


def step_loss_and_gradient(trainer, sampling, advantages, mask, mode):
    trainer = trainer.clone().requires_grad_()
    token_loss = policy_loss(trainer, sampling, advantages, mask, **CLIP)
    loss = aggregate_loss(token_loss, mask, mode, num_loss_tokens=int(mask.sum()), num_samples=len(mask))
    loss.backward()
    return token_loss.detach(), loss.detach(), trainer.grad


@quick
@given(st.data(), st.sampled_from(MODES))
def test_masked_tokens_with_any_values_change_no_trained_token(data, mode):
    """Insert columns of masked tokens, infinities and NaN among them, anywhere between the trained ones."""
    any_value = st.sampled_from([0.0, -3.5, 1e30, math.inf, -math.inf, math.nan])
    columns = list(range(4))
    for _ in range(data.draw(st.integers(1, 4))):
        columns.insert(data.draw(st.integers(0, len(columns))), None)

    def stretch(tensor, masked=False):
        parts = []
        for column in columns:
            junk = [0.0 if masked else data.draw(any_value) for _ in range(3)]
            parts.append(torch.tensor(junk).double() if column is None else tensor[:, column].double())
        return torch.stack(parts, dim=1)

    long = [stretch(TRAINER), stretch(SAMPLING), stretch(ADVANTAGES), stretch(MASK, masked=True)]
    short = [TRAINER, SAMPLING, ADVANTAGES, MASK]
    kept = [index for index, column in enumerate(columns) if column is not None]

    token_loss, loss, gradient = step_loss_and_gradient(*long, mode)
    expected_token_loss, expected_loss, expected_gradient = step_loss_and_gradient(*short, mode)
    close(token_loss[:, kept], expected_token_loss, atol=1e-12)
    close(gradient[:, kept], expected_gradient, atol=1e-12)
    close(loss, expected_loss, atol=1e-12)
    assert gradient[long[3] == 0].eq(0).all()
    assert token_loss[long[3] == 0].eq(0).all()
    assert ratio_metrics(*long, **CLIP) == pytest.approx(ratio_metrics(*short, **CLIP))


@pytest.mark.parametrize("mode", MODES)
def test_aggregation_ignores_masked_losses_that_are_not_numbers(mode):
    loss = torch.tensor([[1.0, math.nan], [3.0, math.inf]])
    mask = torch.tensor([[1, 0], [1, 0]])
    close(aggregate_loss(loss, mask, mode, num_loss_tokens=2, num_samples=2), 2.0)


@quick
@given(st.lists(st.integers(0, 3), min_size=3, max_size=3), st.sampled_from(MODES))
def test_the_gradient_is_the_same_for_any_split_into_micro_batches(bin_of_row, mode):
    _, whole_loss, whole_gradient = step_loss_and_gradient(TRAINER, SAMPLING, ADVANTAGES, MASK, mode)
    trainer = TRAINER.clone().requires_grad_()
    total = 0.0
    for number in set(bin_of_row):
        rows = [row for row in range(3) if bin_of_row[row] == number]
        token_loss = policy_loss(trainer[rows], SAMPLING[rows], ADVANTAGES[rows], MASK[rows], **CLIP)
        loss = aggregate_loss(token_loss, MASK[rows], mode, num_loss_tokens=7, num_samples=3)
        loss.backward()
        total += loss.item()
    close(trainer.grad, whole_gradient, atol=1e-12)
    assert total == pytest.approx(whole_loss.item(), abs=1e-12)


def test_a_row_without_trained_tokens_adds_nothing_but_counts_as_a_sample():
    loss, mask = torch.tensor([[4.0, 4.0], [9.0, 9.0]]), torch.tensor([[1, 1], [0, 0]])
    close(aggregate_loss(loss, mask, "seq_mean_token_mean", num_loss_tokens=2, num_samples=2), 2.0)
    close(aggregate_loss(loss, mask, "token_mean", num_loss_tokens=2, num_samples=2), 4.0)


def test_an_unknown_aggregation_and_an_empty_step_are_refused():
    with pytest.raises(ValueError, match="unknown aggregation 'mean'; known: token_mean"):
        aggregate_loss(torch.zeros(1, 1), torch.ones(1, 1), "mean", num_loss_tokens=1, num_samples=1)
    with pytest.raises(ValueError, match="0 trained tokens"):
        aggregate_loss(torch.zeros(1, 1), torch.zeros(1, 1), "token_mean", num_loss_tokens=0, num_samples=1)


def test_kl_and_log_ratios_match_the_published_mismatch_values():
    metrics = ratio_metrics(PROX, SAMPLING, ADVANTAGES, MASK, **CLIP)
    assert metrics["loss/kl"] == pytest.approx(0.126533, abs=1e-6)
    assert metrics["loss/abs_log_ratio_mean"] == pytest.approx((0.5 + 0.2 + 1.0) / 7)
    assert metrics["loss/abs_log_ratio_max"] == pytest.approx(1.0)


def test_clip_fraction_counts_tokens_whose_gradient_is_clipped_away():
    trainer = TRAINER.clone().requires_grad_()
    policy_loss(trainer, PROX, ADVANTAGES, MASK, **CLIP).sum().backward()
    num_clipped = int((trainer.grad[MASK.bool()] == 0).sum())
    metrics = ratio_metrics(TRAINER, PROX, ADVANTAGES, MASK, **CLIP)
    assert num_clipped == 1  # row 1, third token: advantage -1 and ratio exp(-1.6)
    assert metrics["loss/clip_frac"] == pytest.approx(1 / 7)


def test_tokens_without_advantage_are_never_clipped():
    metrics = ratio_metrics(torch.tensor([-3.0]), torch.tensor([0.0]), torch.zeros(1), torch.ones(1), **CLIP)
    assert metrics["loss/clip_frac"] == 0.0
    assert metrics["loss/abs_log_ratio_max"] == 3.0


def test_without_trained_tokens_there_are_no_ratio_metrics():
    assert ratio_metrics(TRAINER, PROX, ADVANTAGES, torch.zeros(3, 4), **CLIP) == {}


@pytest.mark.parametrize(("temperature", "entropy"), [(1.0, 0.947537), (0.7, 0.702028)])
def test_logprob_and_entropy_of_four_logits_match_the_published_values(temperature, entropy):
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    logprobs_N, entropy_N = chunked_logprobs(
        logits, lambda hidden: hidden, torch.tensor([1]), temperature=temperature, chunk_size=8
    )
    close(entropy_N, [entropy])
    close(logprobs_N, torch.log_softmax(logits / temperature, dim=-1)[:, 1])


@quick
@given(st.integers(0, 9), st.integers(1, 12), st.sampled_from([0.5, 1.0, 1.3]))
def test_chunks_of_any_size_give_the_values_and_gradients_of_one_pass(num_rows, chunk_size, temperature):
    generator = torch.Generator().manual_seed(num_rows)
    hidden = torch.randn(num_rows, 5, generator=generator, requires_grad=True)
    weight = torch.randn(11, 5, generator=generator, requires_grad=True)
    targets = torch.randint(11, (num_rows,), generator=generator)
    logprobs_N, entropy_N = chunked_logprobs(
        hidden, lambda rows: rows @ weight.T, targets, temperature=temperature, chunk_size=chunk_size
    )
    coefficients = torch.arange(1.0, num_rows + 1)
    gradients = torch.autograd.grad((logprobs_N * coefficients).sum(), (hidden, weight))

    log_softmax = torch.log_softmax(hidden @ weight.T / temperature, dim=-1)
    expected = log_softmax[torch.arange(num_rows), targets]
    close(logprobs_N, expected, atol=1e-5)
    close(entropy_N, -(log_softmax.exp() * log_softmax).sum(dim=-1).detach(), atol=1e-5)
    for actual, wanted in zip(
        gradients, torch.autograd.grad((expected * coefficients).sum(), (hidden, weight)), strict=True
    ):
        close(actual, wanted, atol=1e-4)
    assert not entropy_N.requires_grad


def test_bfloat16_hidden_rows_are_normalised_in_float32():
    hidden = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    weight = torch.randn(16, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    targets = torch.tensor([0, 5, 15])
    logprobs_N, entropy_N = chunked_logprobs(
        hidden, lambda rows: rows @ weight.T, targets, temperature=0.7, chunk_size=2
    )
    expected = torch.log_softmax((hidden @ weight.T).float() / 0.7, dim=-1)
    assert logprobs_N.dtype == entropy_N.dtype == torch.float32
    close(logprobs_N, expected[torch.arange(3), targets])


def test_backward_keeps_the_logits_of_one_chunk_only():
    """Count the bytes autograd saves: with chunks they must not grow with rows times vocabulary."""

    def saved_elements(chunk_size):
        sizes = []
        hidden, weight = torch.randn(64, 4, requires_grad=True), torch.randn(500, 4, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            chunked_logprobs(
                hidden, lambda rows: rows @ weight.T, torch.zeros(64).long(), temperature=1.0, chunk_size=chunk_size
            )
        return sum(sizes)

    assert saved_elements(chunk_size=64) > 64 * 500
    assert saved_elements(chunk_size=8) < 64 * 500
