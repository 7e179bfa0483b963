"""Layers that store less for the backward pass: numbers and gradients of the plain formulas, and less memory."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tiny_models import config_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, PreTrainedModel

from agent_rl.modeling.hf_layers import exchange_layers
from agent_rl.modeling.minimind import DecoderLayer, MiniMindConfig
from agent_rl.modeling.recompute import computed_again, rms_norm, swiglu


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def gradients(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    out = function(*inputs)
    weights = torch.linspace(-1, 1, out.numel()).view_as(out)
    return out, *torch.autograd.grad((out * weights).sum(), inputs)


def num_stored(run: Callable[[], Tensor]) -> float:
    """Float32 numbers that are allocated while `run` runs and not freed at its end: the output, and what is stored."""
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


def test_gradients_are_those_of_small_differences() -> None:
    x, weight, up = (random(*shape).detach().double().requires_grad_() for shape in ((3, 4), (4,), (3, 4)))
    assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, w, 1e-5), (x, weight))
    assert torch.autograd.gradcheck(lambda x, u: swiglu(x, torch.sin, lambda _: u, torch.cos), (x, up))


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
    assert num_stored(lambda: swiglu(x, *linears)) == num_tokens * (size + 2 * inner)
    assert num_stored(lambda: down(F.silu(gate(x)) * up(x))) == num_tokens * (size + 4 * inner)

    def normed_and_gated() -> Tensor:
        normed = layer.input_layernorm(x)
        with computed_again(normed):
            return layer.mlp(normed)

    # The norm keeps its input, which is there anyway, and one number a token.
    assert num_stored(normed_and_gated) == num_tokens * (size + 2 * inner + 1)


def test_only_recomputed_activations_are_not_saved() -> None:
    x, weight, other = random(8, 4), random(4, seed=1), random(4, 8, seed=2)
    y = rms_norm(x, weight, 1e-5)

    def product_with(read: Callable[[], Tensor]) -> tuple[float, Tensor]:
        out = []

        def run() -> Tensor:
            with computed_again(y):
                out.append(read())
            return out[0]

        stored = num_stored(run)
        return stored - out[0].numel(), torch.autograd.grad(out[0].sum(), other, retain_graph=True)[0]

    y_value = F.rms_norm(x, (4,), weight, 1e-5).detach()
    stored, gradient = product_with(lambda: F.linear(y.view(2, 4, 4), other.view(8, 4)))
    assert stored == 0
    torch.testing.assert_close(gradient.view(8, 4), y_value.sum(dim=0).expand(8, 4))
    # Turned, its numbers stand in another order; a part of it, and another tensor, are not it.
    _, gradient = product_with(lambda: other.view(4, 8) @ y)
    torch.testing.assert_close(gradient, y_value.sum(dim=1).expand(4, 8))
    _, gradient = product_with(lambda: F.linear(y.t(), other))
    torch.testing.assert_close(gradient, y_value.sum(dim=1).expand(4, 8))
    _, gradient = product_with(lambda: F.linear(y[:4], other.view(8, 4)))
    torch.testing.assert_close(gradient.view(8, 4), y_value[:4].sum(dim=0).expand(8, 4))
    _, gradient = product_with(lambda: F.linear(x, other.view(8, 4)))
    torch.testing.assert_close(gradient.view(8, 4), x.detach().sum(dim=0).expand(8, 4))


def test_what_is_saved_inside_is_left_to_gradient_checkpointing() -> None:
    x, gate, up = random(64, 32), random(96, 32, seed=1), random(96, 32, seed=2)
    down = random(32, 96, seed=3).detach().double().requires_grad_()

    def down_in_another_format(opened: Tensor) -> Tensor:
        return F.linear(opened.double(), down).float()  # as adapters in float32 on a model in bfloat16

    def layer(x: Tensor) -> Tensor:
        return swiglu(x, lambda y: F.linear(y, gate), lambda y: F.linear(y, up), down_in_another_format)

    def again(x: Tensor) -> Tensor:
        return checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False)

    assert num_stored(lambda: again(x)) == 64 * 32  # the output alone
    for got, wanted in zip(*(gradients(run, x) for run in (again, layer)), strict=True):
        torch.testing.assert_close(got, wanted)


def test_without_a_gradient_nothing_is_prepared() -> None:
    with torch.no_grad():
        normed = rms_norm(random(2, 4), random(4), 1e-5)
    weight = random(3, 4)
    with computed_again(normed):
        F.linear(normed, weight).sum().backward()
    torch.testing.assert_close(weight.grad, normed.sum(dim=0).expand(3, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_norm_computes_in_float32_at_least(dtype: torch.dtype) -> None:
    x, weight = (random(*shape).detach().to(dtype).requires_grad_() for shape in ((3, 64), (64,)))
    exact = F.rms_norm(x.double(), (64,), weight.double(), 1e-5)
    found = rms_norm(x, weight, 1e-5)
    assert found.dtype == dtype
    close = {"atol": 1e-12, "rtol": 1e-12} if dtype == torch.float64 else {"atol": 0.0, "rtol": 2**-7}
    torch.testing.assert_close(found.double(), exact, **close)
    found.sum().backward()
    assert (x.grad.dtype, weight.grad.dtype) == (dtype, dtype)


def test_frozen_inputs_get_no_gradient() -> None:
    x, weight = random(3, 4), random(4, seed=1).detach()
    assert torch.autograd.grad(rms_norm(x, weight, 1e-5).sum(), x)[0].shape == (3, 4)
    x, weight = random(3, 4).detach(), random(4, seed=1)
    assert torch.autograd.grad(rms_norm(x, weight, 1e-5).sum(), weight)[0].shape == (4,)


# Layers of Hugging Face models


def hf_model(kind: str) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config_of(kind, 64)).eval()


def exchanged(model: nn.Module) -> set[str]:
    return {type(module).__name__ for module in model.modules() if "forward" in vars(module)}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("llama", {"LlamaMLP", "LlamaRMSNorm"}),
        ("qwen2", {"Qwen2MLP", "Qwen2RMSNorm"}),
        ("qwen3", {"Qwen3MLP", "Qwen3RMSNorm"}),
        ("mistral", {"MistralMLP", "MistralRMSNorm"}),
        ("gemma2", set()),
        ("gpt2", set()),
    ],
)
def test_layers_are_exchanged_only_where_they_compute_the_same(kind: str, expected: set[str]) -> None:
    plain = hf_model(kind)
    first = copy.deepcopy(plain)
    exchange_layers(first)
    exchange_layers(first)
    ours = copy.deepcopy(first)
    assert exchanged(ours) == expected
    assert all(module.forward.args[0] is module for module in ours.modules() if "forward" in vars(module))
    assert list(ours.state_dict()) == list(plain.state_dict())
    ids = torch.tensor([[1, 5, 9, 2, 7]])
    logits = {model: model(input_ids=ids, use_cache=False).logits for model in (plain, ours)}
    torch.testing.assert_close(logits[ours], logits[plain], atol=1e-5, rtol=1e-5)
    for out in logits.values():
        out.logsumexp(dim=-1).sum().backward()
    for got, wanted in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad, atol=1e-4, rtol=1e-4)


def test_a_gate_with_another_function_is_left_alone() -> None:
    config = config_of("llama", 64)
    config.hidden_act = "gelu"
    model = AutoModelForCausalLM.from_config(config)
    exchange_layers(model)
    assert exchanged(model) == {"LlamaRMSNorm"}


def test_a_norm_whose_weights_have_another_format_keeps_its_own_rounding() -> None:
    model = hf_model("llama")
    plain = copy.deepcopy(model.model.norm)
    exchange_layers(model)
    x = random(3, 32).to(torch.bfloat16)
    found, expected = model.model.norm(x), plain(x)
    assert found.dtype == expected.dtype == torch.float32
    assert torch.equal(found, expected)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activations_that_are_computed_again_as_a_whole_are_not_held_for_the_gates(reentrant: bool) -> None:
    plain = hf_model("llama")
    ours = copy.deepcopy(plain)
    exchange_layers(ours)
    stored = {}
    for model in (plain, ours):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.train()
        embeddings = random(1, 40, 32)
        stored[model] = num_stored(lambda: model(inputs_embeds=embeddings, use_cache=False).logits)  # noqa: B023
        model(inputs_embeds=embeddings, use_cache=False).logits.logsumexp(dim=-1).sum().backward()
    assert stored[ours] <= stored[plain]
    for got, wanted in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad, atol=1e-4, rtol=1e-4)
