"""Layers that keep less for the backward pass: the numbers and gradients of the plain formulas, and less kept."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tiny_models import config_of
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from model.hf_layers import exchange_layers
from model.model_minimind import DecoderLayer, MiniMindConfig
from model.recompute import computed_again, rms_norm, swiglu


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def gradients(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    out = function(*inputs)
    weights = torch.linspace(-1, 1, out.numel()).view_as(out)
    return out, *torch.autograd.grad((out * weights).sum(), inputs)


def kept_numbers(run: Callable[[], Tensor]) -> float:
    """Float32 numbers that are allocated while `run` runs and not freed at its end: the output, and what is kept."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        out = run()
    del out
    return sum(event.self_cpu_memory_usage for event in profiler.key_averages()) / 4


@pytest.mark.parametrize("shape", [(6,), (5, 6), (2, 3, 6)])
def test_the_norm_is_pytorchs_with_its_gradients(shape: tuple[int, ...]) -> None:
    x, weight = random(*shape), random(6, seed=1)
    ours = gradients(lambda x, w: rms_norm(x, w, 1e-5), x, weight)
    for got, wanted in zip(ours, gradients(lambda x, w: F.rms_norm(x, (6,), w, 1e-5), x, weight), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-5)


def test_the_gradient_of_the_norm_is_that_of_small_differences() -> None:
    x, weight = random(3, 4).double().detach().requires_grad_(), random(4, seed=1).double().detach().requires_grad_()
    # float64 is computed in float32 inside, so the differences are wide and the tolerance is too.
    assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, w, 1e-5), (x, weight), eps=1e-2, atol=1e-2, rtol=1e-2)


def test_a_gated_layer_is_its_formula_with_its_gradients() -> None:
    x, gate, up, down = random(4, 6), random(10, 6, seed=1), random(10, 6, seed=2), random(6, 10, seed=3)

    def ours(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return swiglu(x, *(lambda y, w=weight: F.linear(y, w) for weight in (gate, up, down)))

    def plain(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    for got, wanted in zip(gradients(ours, x, gate, up, down), gradients(plain, x, gate, up, down), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def test_a_layer_keeps_the_products_and_not_what_lies_between() -> None:
    num_tokens, size, inner = 64, 32, 96
    layer = DecoderLayer(MiniMindConfig(hidden_size=size, intermediate_size=inner, num_attention_heads=4))
    x = random(num_tokens, size)
    linears = gate, up, down = layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj
    assert kept_numbers(lambda: swiglu(x, *linears)) == num_tokens * (size + 2 * inner)
    assert kept_numbers(lambda: down(F.silu(gate(x)) * up(x))) == num_tokens * (size + 4 * inner)

    def normed_and_gated() -> Tensor:
        normed = layer.input_layernorm(x)
        with layer.input_layernorm.computing_again(normed, x):
            return layer.mlp(normed)

    # The norm keeps its input, which is there anyway, and one number a token.
    assert kept_numbers(normed_and_gated) == num_tokens * (size + 2 * inner + 1)


def test_what_is_computed_again_is_not_kept_and_asked_for_in_the_backward_pass_only() -> None:
    x, weight = random(8, 4), random(4, 4, seed=1)
    calls = []

    def again() -> Tensor:
        calls.append(1)
        return x.detach().exp()

    y = x.exp()
    address = y.data_ptr()
    with computed_again(y, again):
        out = F.linear(y.view(2, 4, 4), weight)
    assert calls == []
    (grad,) = torch.autograd.grad(out.sum(), [weight])
    assert calls == [1]
    torch.testing.assert_close(grad, x.detach().exp().sum(dim=0).expand(4, 4))
    with computed_again(y, again):
        other = F.linear(x, weight)  # reads another tensor, which is kept
    torch.autograd.grad(other.sum(), [weight])
    assert calls == [1]
    assert address == y.data_ptr()


def test_without_gradients_nothing_is_prepared() -> None:
    with torch.no_grad(), computed_again(random(2), lambda: pytest.fail("asked for")):
        pass
    with computed_again(torch.ones(2), lambda: pytest.fail("asked for")):
        assert (random(2) * torch.ones(2)).requires_grad


# Layers of Hugging Face models


def hf_model(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config_of(kind, 64)).eval()


def kinds_of(model: nn.Module) -> set[str]:
    return {type(module).__mro__[1].__name__ for module in model.modules()} & {"_SwiGLU", "_RMSNorm"}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("llama", {"_SwiGLU", "_RMSNorm"}),
        ("qwen2", {"_SwiGLU", "_RMSNorm"}),
        ("qwen3", {"_SwiGLU", "_RMSNorm"}),
        ("mistral", {"_SwiGLU", "_RMSNorm"}),
        ("gemma2", set()),
        ("gpt2", set()),
    ],
)
def test_layers_are_exchanged_only_where_they_compute_the_same(kind: str, expected: set[str]) -> None:
    plain = hf_model(kind)
    ours = copy.deepcopy(plain)
    exchange_layers(ours)
    exchange_layers(ours)
    assert kinds_of(ours) == expected
    assert list(ours.state_dict()) == list(plain.state_dict())
    ids = torch.tensor([[1, 5, 9, 2, 7]])
    logits = {model: model(input_ids=ids, use_cache=False).logits for model in (plain, ours)}
    torch.testing.assert_close(logits[ours], logits[plain], atol=1e-5, rtol=1e-5)
    for model, out in logits.items():
        out.logsumexp(dim=-1).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
    for got, wanted in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad, atol=1e-4, rtol=1e-4)


def test_a_gate_with_another_function_is_left_alone() -> None:
    config = config_of("llama", 64)
    config.hidden_act = "gelu"
    model = AutoModelForCausalLM.from_config(config)
    exchange_layers(model)
    assert kinds_of(model) == {"_RMSNorm"}


def test_trying_a_layer_draws_no_random_number() -> None:
    model = hf_model("llama")
    before = torch.get_rng_state()
    exchange_layers(model)
    assert torch.equal(torch.get_rng_state(), before)
