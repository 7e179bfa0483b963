"""Log-probs, entropies and exact KLs, chunk by chunk."""

import math

import pytest
import torch
from algorithm_fixtures import close
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import watched_products
from torch.utils._python_dispatch import TorchDispatchMode

from agent_rl.algorithms.logprobs import head_scores, token_scores

pytestmark = pytest.mark.usefixtures("on_test_device")
quick = settings(max_examples=40, deadline=None)


@pytest.mark.parametrize(("temperature", "entropy"), [(1.0, 0.947537), (0.7, 0.702028)])
def test_logprob_and_entropy_of_four_logits_match_the_published_values(temperature, entropy):
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    logprobs_N, entropy_N, _ = token_scores(
        logits, lambda hidden: hidden, torch.tensor([1]), temperature=temperature, chunk_size=8
    )
    close(entropy_N, [entropy])
    close(logprobs_N, torch.log_softmax(logits / temperature, dim=-1)[:, 1])


@quick
@given(st.integers(0, 9), st.integers(1, 12), st.sampled_from([0.5, 1.0, 1.3]))
def test_chunks_of_any_size_give_the_values_and_gradients_of_one_pass(num_rows, chunk_size, temperature):
    generator = torch.Generator(torch.get_default_device()).manual_seed(num_rows)
    hidden = torch.randn(num_rows, 5, generator=generator, requires_grad=True)
    weight = torch.randn(11, 5, generator=generator, requires_grad=True)
    targets = torch.randint(11, (num_rows,), generator=generator)
    logprobs_N, entropy_N, _ = token_scores(
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


@quick
@given(
    num_rows=st.integers(1, 9),
    chunk_size=st.integers(1, 12),
    temperature=st.sampled_from([1.0, 0.7]),
    has_bias=st.booleans(),
    entropy_gradient=st.booleans(),
)
def test_a_head_computed_in_one_call_has_the_values_and_gradients_of_calls_chunk_by_chunk(
    num_rows, chunk_size, temperature, has_bias, entropy_gradient
):
    generator = torch.Generator(torch.get_default_device()).manual_seed(num_rows)
    hidden, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in ((num_rows, 5), (11, 5), (11,))
    )
    bias = bias if has_bias else None
    inputs = [hidden, weight, bias] if has_bias else [hidden, weight]
    targets = torch.randint(11, (num_rows,), generator=generator)
    options = {"temperature": temperature, "chunk_size": chunk_size, "entropy_gradient": entropy_gradient}
    one = head_scores(hidden, weight, bias, targets, **options)
    many = token_scores(hidden, lambda rows: torch.nn.functional.linear(rows, weight, bias), targets, **options)
    coefficients = torch.arange(1.0, num_rows + 1)

    def gradients(scores):
        loss = (scores.logprobs * coefficients).sum()
        return torch.autograd.grad(loss + scores.entropies.sum() if entropy_gradient else loss, inputs)

    assert one.full_kl is None
    assert one.entropies.requires_grad is entropy_gradient
    for found, wanted in zip((*one[:2], *gradients(one)), (*many[:2], *gradients(many)), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("trained", ["hidden", "weight"])
def test_a_head_computed_in_one_call_gives_gradients_only_to_what_is_trained(trained):
    hidden, weight = torch.randn(3, 4), torch.randn(7, 4)
    part = {"hidden": hidden, "weight": weight}[trained].requires_grad_()
    head_scores(hidden, weight, None, torch.tensor([1, 2, 3]), temperature=1.0, chunk_size=2).logprobs.sum().backward()
    assert part.grad.shape == part.shape
    assert (hidden.grad is None) is (trained == "weight")
    assert (weight.grad is None) is (trained == "hidden")


def test_a_head_computed_in_one_call_multiplies_in_autocasts_format_and_keeps_float32_gradients():
    generator = torch.Generator(torch.get_default_device()).manual_seed(0)
    hidden = torch.randn(6, 8, generator=generator, requires_grad=True)
    weight = torch.randn(16, 8, generator=generator, requires_grad=True)
    targets, options = torch.arange(6), {"temperature": 1.0, "chunk_size": 4}
    with torch.autocast(torch.get_default_device().type, torch.bfloat16), watched_products() as formats:
        scores = head_scores(hidden, weight, None, targets, **options)
        scores.logprobs.sum().backward()
    assert formats == {torch.bfloat16}
    assert (hidden.grad.dtype, weight.grad.dtype) == (torch.float32, torch.float32)
    half = torch.log_softmax((hidden.bfloat16() @ weight.bfloat16().T).float(), dim=-1)
    close(scores.logprobs, half[torch.arange(6), targets])


def test_bfloat16_hidden_rows_are_normalised_in_float32():
    hidden = torch.randn(3, 8, generator=torch.Generator(torch.get_default_device()).manual_seed(0)).bfloat16()
    weight = torch.randn(16, 8, generator=torch.Generator(torch.get_default_device()).manual_seed(1)).bfloat16()
    targets = torch.tensor([0, 5, 15])
    logprobs_N, entropy_N, _ = token_scores(
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
            token_scores(
                hidden, lambda rows: rows @ weight.T, torch.zeros(64).long(), temperature=1.0, chunk_size=chunk_size
            )
        return sum(sizes)

    assert saved_elements(chunk_size=64) > 64 * 500
    assert saved_elements(chunk_size=8) < 64 * 500


def two_models(num_rows, dtype=torch.float64):
    """Hidden rows, head weights and targets of a policy; hidden rows and head of a narrower reference; 11 ids."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(num_rows)
    hidden, weight = (torch.randn(n, 5, generator=generator, dtype=dtype, requires_grad=True) for n in (num_rows, 11))
    ref_hidden, ref_weight = (torch.randn(n, 3, generator=generator, dtype=dtype) for n in (num_rows, 11))
    return hidden, weight, torch.randint(11, (num_rows,), generator=generator), ref_hidden, ref_weight


@quick
@given(st.integers(0, 9), st.integers(1, 12), st.sampled_from([0.5, 1.0, 1.3]))
def test_entropy_and_full_kl_have_the_values_and_gradients_of_one_pass(num_rows, chunk_size, temperature):
    hidden, weight, targets, ref_hidden, ref_weight = two_models(num_rows)
    scores = token_scores(
        hidden,
        lambda rows: rows @ weight.T,
        targets,
        temperature=temperature,
        chunk_size=chunk_size,
        entropy_gradient=True,
        ref=(ref_hidden, lambda rows: rows @ ref_weight.T),
    )
    rows = torch.log_softmax(hidden @ weight.T / temperature, dim=-1)
    ref_rows = torch.log_softmax(ref_hidden @ ref_weight.T / temperature, dim=-1)
    logprobs = rows[torch.arange(num_rows), targets]
    entropies, full_kl = -(rows.exp() * rows).sum(dim=-1), (rows.exp() * (rows - ref_rows)).sum(dim=-1)
    for actual, wanted in zip(scores, (logprobs, entropies, full_kl), strict=True):
        close(actual, wanted.float(), atol=1e-5)

    coefficients = torch.arange(1.0, num_rows + 1)
    for actual, wanted in zip(scores, (logprobs, entropies, full_kl), strict=True):
        gradients = torch.autograd.grad((actual * coefficients).sum(), (hidden, weight), retain_graph=True)
        expected = torch.autograd.grad((wanted * coefficients).sum(), (hidden, weight), retain_graph=True)
        for got, exact in zip(gradients, expected, strict=True):
            close(got, exact, atol=1e-4)


def test_full_kl_and_entropy_gradient_are_optional():
    hidden, weight, targets, *_ = two_models(4)
    scores = token_scores(hidden, lambda rows: rows @ weight.T, targets, temperature=1.0, chunk_size=2)
    assert scores.full_kl is None
    assert scores.logprobs.requires_grad
    assert not scores.entropies.requires_grad


def test_the_reference_gets_no_gradient():
    hidden, weight, targets, ref_hidden, ref_weight = two_models(4)
    ref_hidden.requires_grad_(), ref_weight.requires_grad_()
    ref = (ref_hidden, lambda rows: rows @ ref_weight.T)
    scores = token_scores(hidden, lambda rows: rows @ weight.T, targets, temperature=1.0, chunk_size=2, ref=ref)
    scores.full_kl.sum().backward()
    assert hidden.grad.ne(0).any()
    assert ref_hidden.grad is None
    assert ref_weight.grad is None


def test_the_policy_as_its_own_reference_has_no_kl_and_no_pull():
    hidden, weight, targets, *_ = two_models(4, torch.float32)
    head = lambda rows: rows @ weight.T  # noqa: E731
    scores = token_scores(hidden, head, targets, temperature=0.7, chunk_size=2, ref=(hidden, head))
    assert scores.full_kl.eq(0).all()
    scores.full_kl.sum().backward()
    close(hidden.grad, torch.zeros(4, 5))


def test_ids_that_are_ruled_out_leave_the_entropys_gradient_finite():
    logits = torch.tensor([[1.0, 0.0, -math.inf], [300.0, 0.0, 0.0]], requires_grad=True)
    scores = token_scores(
        logits, lambda rows: rows, torch.tensor([0, 0]), temperature=1.0, chunk_size=4, entropy_gradient=True
    )
    two = torch.log_softmax(torch.tensor([1.0, 0.0]), dim=0)
    close(scores.entropies, [float(-(two.exp() * two).sum()), 0.0])
    scores.entropies.sum().backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[0, 0] < 0


class LargestTensor(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that any operation makes."""

    def __init__(self):
        super().__init__()
        self.num_elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        made = result if isinstance(result, tuple | list) else [result]
        self.num_elements = max([self.num_elements, *(t.numel() for t in made if isinstance(t, torch.Tensor))])
        return result


@pytest.mark.parametrize("chunk_size", [8, 64])
def test_no_tensor_holds_more_logits_than_one_chunk(chunk_size):
    """64 rows, 500 ids, forward and backward with all three scores; weights are smaller than one chunk of logits."""
    hidden, weight = torch.randn(64, 4, requires_grad=True), torch.randn(500, 4, requires_grad=True)
    saved = []
    with (
        LargestTensor() as largest,
        torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t),
    ):
        scores = token_scores(
            hidden,
            lambda rows: rows @ weight.T,
            torch.zeros(64).long(),
            temperature=1.0,
            chunk_size=chunk_size,
            entropy_gradient=True,
            ref=(torch.randn(64, 4), lambda rows: rows @ torch.randn(4, 500)),
        )
        num_saved = sum(saved)
        (scores.logprobs + scores.entropies + scores.full_kl).sum().backward()
    assert largest.num_elements == chunk_size * 500
    assert (num_saved < 64 * 500) == (chunk_size == 8)


def test_logits_that_are_no_numbers_have_no_entropy_and_impossible_ids_add_none() -> None:
    logits = torch.tensor([[0.0, 0.0, -torch.inf], [0.0, 0.0, torch.nan], [0.0, 0.0, torch.inf]])
    scores = token_scores(torch.eye(3), lambda rows: logits, torch.tensor([0, 0, 0]), temperature=1.0, chunk_size=3)
    assert scores.entropies[0].item() == pytest.approx(math.log(2))
    assert scores.entropies[1:].isnan().all()
    assert scores.logprobs[1:].isnan().all()
