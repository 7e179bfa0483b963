"""Linear layers by oneDNN's kernels: the same numbers as PyTorch's, and only where they are meant for."""

import copy

import pytest
import torch
from torch import nn

from agent_rl.modeling.onednn import ROW_MULTIPLE, OneDNNLinear, exchange_linear_layers, has_onednn, num_spare_rows

CPU = torch.device("cpu")
needs_onednn = pytest.mark.skipif(not has_onednn(CPU, torch.float32), reason="this PyTorch has no oneDNN")


def exchanged(layer: nn.Module) -> nn.Module:
    layer = copy.deepcopy(layer)
    exchange_linear_layers(layer)
    return layer


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def is_by_onednn(out: torch.Tensor) -> bool:
    return type(out.grad_fn).__name__ == "_LinearBackward"


@needs_onednn
@pytest.mark.parametrize("shape", [(64, 24), (1, 128, 24), (2, 32, 24)])
@pytest.mark.parametrize("bias", [False, True])
def test_results_and_gradients_are_those_of_a_linear_layer(shape: tuple[int, ...], bias: bool) -> None:
    layer = nn.Linear(24, 40, bias=bias)
    ours, x, weights = exchanged(layer), rows(*shape), rows(*shape[:-1], 40)
    x_of = {layer: x.clone().requires_grad_(), ours: x.clone().requires_grad_()}
    outs = {which: which(x_of[which]) for which in (layer, ours)}
    assert is_by_onednn(outs[ours])
    for which, out in outs.items():
        (out * weights).sum().backward()
        assert x_of[which].grad.shape == shape
    torch.testing.assert_close(outs[ours], outs[layer], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(x_of[ours].grad, x_of[layer].grad, atol=1e-5, rtol=1e-5)
    for got, wanted in zip(ours.parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad, atol=1e-4, rtol=1e-4)
        assert got.grad.is_contiguous()


@needs_onednn
def test_a_frozen_weight_gets_no_gradient_and_hands_the_inputs_on() -> None:
    layer = exchanged(nn.Linear(8, 8)).requires_grad_(False)
    x = rows(64, 8).requires_grad_()
    out = layer(x)
    out.sum().backward()
    assert is_by_onednn(out)
    assert layer.weight.grad is None
    torch.testing.assert_close(x.grad, layer.weight.sum(dim=0).expand(64, 8))


@needs_onednn
def test_what_a_gradient_does_not_need_is_not_saved() -> None:
    def saved_shapes(layer: nn.Module, x: torch.Tensor) -> list[tuple[int, ...] | None]:
        return [None if tensor is None else tuple(tensor.shape) for tensor in layer(x).grad_fn.saved_tensors]

    layer = exchanged(nn.Linear(8, 16))
    assert saved_shapes(layer, rows(64, 8)) == [(64, 8), None]
    assert saved_shapes(layer, rows(64, 8).requires_grad_()) == [(64, 8), (16, 8)]
    assert saved_shapes(layer.requires_grad_(False), rows(64, 8).requires_grad_()) == [None, (16, 8)]


@needs_onednn
@pytest.mark.parametrize(("size", "is_small"), [(4096, True), (4104, False)])
def test_only_the_gradient_of_a_small_weight_has_to_be_copied(size: int, is_small: bool) -> None:
    layer = exchanged(nn.Linear(512, size, bias=False))
    x, weights = rows(64, 512), rows(64, size)
    (gradient,) = torch.autograd.grad((layer(x) * weights).sum(), layer.weight)
    torch.testing.assert_close(gradient, weights.t() @ x, atol=1e-3, rtol=1e-4)
    assert gradient.t().is_contiguous() == is_small
    assert gradient.is_contiguous() != is_small


def test_no_rows_are_no_error() -> None:
    assert exchanged(nn.Linear(8, 4))(torch.empty(0, 8)).shape == (0, 4)


def test_other_formats_other_numbers_of_rows_and_autocast_are_left_to_pytorch() -> None:
    layer = exchanged(nn.Linear(8, 8))
    assert not is_by_onednn(layer(rows(63, 8)))
    assert not is_by_onednn(layer.double()(rows(64, 8).double()))
    layer.float()
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(rows(64, 8))
    assert out.dtype == torch.bfloat16
    assert not is_by_onednn(out)


def test_only_plain_linear_layers_are_exchanged_and_their_names_stay() -> None:
    class Odd(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(4, 4), Odd(4, 4), nn.LayerNorm(4), nn.Sequential(nn.Linear(4, 4)))
    names = list(model.state_dict())
    exchange_linear_layers(model)
    exchange_linear_layers(model)
    assert [type(module) for module in (model[0], model[1], model[3][0])] == [OneDNNLinear, Odd, OneDNNLinear]
    assert list(model.state_dict()) == names
    assert type(copy.deepcopy(model)[0]) is OneDNNLinear


@needs_onednn
def test_rows_are_added_up_to_few_multiples() -> None:
    wanted = {1: 1, 3: 3, 4: 8, 57: 64, 64: 64, 65: 128, 256: 256, 257: 320, 2180: 2240, 4097: 4224, 8191: 8192}
    assert {rows: rows + num_spare_rows(rows, CPU, torch.float32) for rows in wanted} == wanted
    assert all(count % ROW_MULTIPLE == 0 for count in wanted.values() if count >= 64)
    assert num_spare_rows(257, CPU, torch.bfloat16) == 0
