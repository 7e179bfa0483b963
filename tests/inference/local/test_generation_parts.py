"""The parts of a forward pass of generation: attention, linear layers, masks and positions, OpenMP threads."""

import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from agent_rl.inference.local.kernels import add_linear, attend, gated, linear
from agent_rl.inference.local.kv_cache import CachePass, KeyValueCache

INF = math.inf


def naive_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, softcap: float | None
) -> torch.Tensor:
    """One head at a time, as the formula is written."""
    out = torch.zeros(*queries.shape[:3], values.shape[3])
    heads_per_key = queries.shape[1] // keys.shape[1]
    for row in range(queries.shape[0]):
        for head in range(queries.shape[1]):
            scores = 0.5 * queries[row, head] @ keys[row, head // heads_per_key].T
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            out[row, head] = (scores + mask[row, 0]).softmax(-1) @ values[row, head // heads_per_key]
    return out


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("num_new", [1, 3])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_attention_is_the_formula_for_any_grouping(num_kv_heads: int, num_new: int, softcap: float | None) -> None:
    torch.manual_seed(0)
    queries = torch.randn(2, num_new, 4, 8).transpose(1, 2)
    keys, values = torch.randn(2, num_kv_heads, 5, 8), torch.randn(2, num_kv_heads, 5, 8)
    mask = torch.zeros(2, 1, num_new, 5)
    mask[1, :, :, 3:] = -INF
    got = attend(queries, keys, values, mask, scale=0.5, softcap=softcap)
    torch.testing.assert_close(got, naive_attention(queries, keys, values, mask, softcap), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [1, 6])
def test_linear_layers_are_those_of_pytorch(num_rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    with torch.inference_mode():
        first, second = nn.Linear(32, 24).to(dtype), nn.Linear(32, 24, bias=False).to(dtype)
        x, residual = torch.randn(num_rows, 32, dtype=dtype), torch.randn(num_rows, 24, dtype=dtype)
        tolerance = {"atol": 1e-5 if dtype == torch.float32 else 0.05, "rtol": 0}
        torch.testing.assert_close(linear(x, first.weight, first.bias), first(x), **tolerance)
        torch.testing.assert_close(add_linear(x, first, residual=residual), residual + first(x), **tolerance)
        expected = nn.functional.silu(first(x)) * second(x)
        torch.testing.assert_close(gated(x, first, second), expected, **tolerance)


def a_pass(starts: list[int], num_new: list[int], width: int = 8) -> CachePass:
    """A pass over the first slots of a fresh cache."""
    length = max(map(sum, zip(starts, num_new, strict=True)))
    cache = KeyValueCache(2, width, torch.device("cpu"))
    return CachePass(cache, 0, torch.tensor(starts), torch.tensor(num_new), num_new=max(num_new), length=length)


def test_padding_goes_to_the_last_position_and_sees_something() -> None:
    work = a_pass([2, 0], [1, 3])
    assert work.positions_RT.tolist() == [[2, 7, 7], [0, 1, 2]]
    visible = (work.mask(torch.float32) == 0).sum(-1)[:, 0]
    assert visible.tolist() == [[3, 3, 3], [1, 2, 3]]


def test_a_window_hides_what_lies_behind_it() -> None:
    mask = a_pass([3], [2]).mask(torch.float32, window=2)
    assert mask[0, 0].tolist() == [[-INF, -INF, 0.0, 0.0, -INF], [-INF, -INF, -INF, 0.0, 0.0]]


def test_keys_and_values_go_to_their_positions_and_nowhere_else() -> None:
    work = a_pass([2, 0], [1, 3])
    new = torch.arange(1.0, 7.0).view(2, 1, 3, 1)
    keys, values = work.update(0, new, 10 * new)
    assert keys[:, 0, :, 0].tolist() == [[0, 0, 1], [4, 5, 6]]
    assert values[:, 0, :, 0].tolist() == [[0, 0, 10], [40, 50, 60]]


COUNT_THREADS = """
import os, time, torch
from agent_rl.modeling.openmp import _openmp, release_openmp_threads

torch.set_num_threads(2)
counts = []
for _ in range(2):
    torch.randn(512, 512) @ torch.randn(512, 512)
    counts.append(len(os.listdir("/proc/self/task")))
    release_openmp_threads()
    end = time.monotonic() + 20  # a thread that was told to end is listed until the kernel ran it once more
    while len(os.listdir("/proc/self/task")) == counts[-1] and time.monotonic() < end:
        time.sleep(0.01)
    counts.append(len(os.listdir("/proc/self/task")))
print(_openmp() is not None, *counts)
"""


def test_openmp_threads_given_back_are_gone_and_come_again() -> None:
    # In a process of its own, where no other test starts or ends a thread.
    run = subprocess.run([sys.executable, "-c", COUNT_THREADS], capture_output=True, text=True, check=True)
    has_gnu_openmp, *counts = run.stdout.split()
    busy, idle, busy_again, idle_again = map(int, counts)
    if has_gnu_openmp == "False":
        pytest.skip("PyTorch computes here without GNU OpenMP")
    assert idle < busy == busy_again
    assert idle_again == idle
