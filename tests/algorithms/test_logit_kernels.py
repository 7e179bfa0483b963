"""The head's Triton kernels, by Triton's interpreter on the CPU, against the definition in float64.

In a process of its own: Triton decides when it is imported whether it interprets, and needs no GPU then.
"""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agent_rl.algorithms import logit_kernels
from agent_rl.algorithms.logit_kernels import has_kernels, what_kernels_lack

PROGRAM = """
import torch
from agent_rl.algorithms.logit_kernels import logits_to_gradient, row_scores

def largest(found, wanted):
    return float((found - wanted).abs().max())

for dtype, most in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
    for num_columns in (5, 4096, 9000):
        for temperature in (1.0, 0.7):
            generator = torch.Generator().manual_seed(num_columns)
            logits = (torch.randn(5, num_columns, generator=generator) * 5).to(dtype)
            logits[0, :3], logits[1], logits[2, 4] = -torch.inf, 30.0, 60.0
            targets = torch.tensor([3, 0, 4, 1, num_columns - 1])
            grads = list(torch.randn(2, 5, generator=generator))
            z = logits.double() / temperature
            log_p = z.log_softmax(-1).clamp(min=-1e300)
            p = log_p.exp()
            entropies = -(p * log_p).sum(-1)
            found = row_scores(logits, targets, temperature)
            assert all(column.dtype == torch.float32 for column in found)
            assert largest(found[0], log_p[range(5), targets]) < 1e-5
            assert largest(found[1], entropies) < 1e-5 and largest(found[2], z.logsumexp(-1)) < 1e-5
            to_logprobs = (torch.nn.functional.one_hot(targets, num_columns) - p) * grads[0][:, None]
            to_both = to_logprobs - grads[1][:, None] * p * (log_p + entropies[:, None])
            for wanted, given in ((to_logprobs, grads[:1]), (to_both, grads)):
                taken = logits.clone()
                logits_to_gradient(taken, targets, *found[1:], *given, temperature=temperature)
                assert taken.dtype == dtype and largest(taken, wanted / temperature) < most
rows = torch.tensor([[0.0, torch.nan], [0.0, 1.0]])
assert [column.isnan().tolist() for column in row_scores(rows, torch.tensor([0, 0]), 1.0)] == [[True, False]] * 3
none = torch.empty(0, 4)
logits_to_gradient(none, torch.empty(0, dtype=torch.long), *torch.empty(3, 0), temperature=1.0)
assert [len(column) for column in row_scores(none, torch.empty(0, dtype=torch.long), 1.0)] == [0, 0, 0]
torch.library.opcheck(row_scores, (torch.randn(2, 9), torch.tensor([1, 2]), 1.0), test_utils="test_faketensor")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="pip install -r requirements-triton.txt")
def test_the_kernels_give_what_the_definition_gives() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.fixture
def asked_again() -> Iterator[None]:
    what_kernels_lack.cache_clear()
    yield
    what_kernels_lack.cache_clear()


@pytest.mark.usefixtures("asked_again")
@pytest.mark.parametrize("missing", ["Triton", "a C compiler", "Python's headers", ""])
def test_a_gpu_without_what_compiles_the_kernels_does_without_them_and_says_so(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "Python.h").write_text("")
    found = None if missing == "Triton" else object()
    monkeypatch.setattr(logit_kernels.importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(logit_kernels.shutil, "which", lambda name: None if "compiler" in missing else name)
    monkeypatch.delenv("CC", raising=False)
    paths = {"include": str(tmp_path / "none" if "headers" in missing else tmp_path)}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    assert has_kernels(torch.device("cpu")) is False
    if missing:
        with pytest.warns(UserWarning, match=missing):
            assert has_kernels(torch.device("cuda")) is False
    else:
        assert has_kernels(torch.device("cuda")) is True
