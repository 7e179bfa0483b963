"""Two Triton kernels for the head: what is needed of a row of logits in one pass, and their gradient in their place.

PyTorch's operators go over a chunk of logits again and again, which on a GPU takes longer than the products that make
them. Here they are read once in the forward pass, and read and written once in the backward pass. Sums are float32.
Not here: the products, chunks (`logprobs.py`). Imports Triton when a kernel is first called.
"""

import functools
import importlib.util
import os
import shutil
import sysconfig
import warnings
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

BLOCK = 4096
"""Columns at a time."""


@functools.cache
def what_kernels_lack() -> str:
    """What compiling them needs and this machine has not; empty where nothing is missing."""
    if importlib.util.find_spec("triton") is None:  # PyTorch's CUDA builds for Linux bring it
        return "Triton (pip install triton)"
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "a C compiler (gcc)"
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return "Python's headers (python3-dev)"
    return ""


def has_kernels(device: torch.device) -> bool:
    """Whether the kernels run there; warns once about a GPU where they cannot be compiled."""
    if device.type != "cuda":
        return False
    if lack := what_kernels_lack():
        warnings.warn(f"the head of the model runs without its kernels, slower: {lack} is missing", stacklevel=2)
    return not lack


@torch.library.custom_op("agent_rl::row_scores", mutates_args=())
def row_scores(logits_NV: Tensor, targets_N: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Log-prob of each target, entropy and log of the sum of exponentials of `logits / temperature`, float32 [N] each.

    Logits are contiguous, in any number format. A column of minus infinity counts nothing; a row with a number that is
    none has none.
    """
    num_rows, num_columns = logits_NV.shape
    found = tuple(torch.empty(num_rows, dtype=torch.float32, device=logits_NV.device) for _ in range(3))
    if num_rows:
        _kernels().scores[(num_rows,)](
            logits_NV, targets_N, *found, num_columns, 1.0 / temperature, BLOCK=BLOCK, num_warps=8
        )
    return found


@row_scores.register_fake
def _(logits_NV: Tensor, targets_N: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    one, two, three = (logits_NV.new_empty(len(logits_NV), dtype=torch.float32) for _ in range(3))
    return one, two, three


@torch.library.custom_op("agent_rl::logits_to_gradient", mutates_args=("logits_NV",))
def logits_to_gradient(
    logits_NV: Tensor,
    targets_N: Tensor,
    entropies_N: Tensor,
    log_sums_N: Tensor,
    grad_logprobs_N: Tensor,
    grad_entropies_N: Tensor | None = None,
    *,
    temperature: float,
) -> None:
    """Put the gradient of the logits in their place, from those of the log-probs and, if given, the entropies.

    With probabilities p and z = logits / temperature: d logprob / dz = onehot - p, dH / dz = -p (log p + H).
    """
    num_rows, num_columns = logits_NV.shape
    if not num_rows:
        return
    _kernels().gradient[(num_rows, -(-num_columns // BLOCK))](
        logits_NV,
        targets_N,
        entropies_N,
        log_sums_N,
        grad_logprobs_N.contiguous(),
        grad_logprobs_N if grad_entropies_N is None else grad_entropies_N.contiguous(),
        num_columns,
        1.0 / temperature,
        HAS_ENTROPY=grad_entropies_N is not None,
        BLOCK=BLOCK,
        num_warps=8,
    )


@functools.cache
def _kernels() -> SimpleNamespace:
    from agent_rl.algorithms import triton_rows

    return SimpleNamespace(scores=triton_rows.scores, gradient=triton_rows.gradient)
