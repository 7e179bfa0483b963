"""Drawing tokens by inverse transform, so that a draw depends on logits, temperature and one uniform number.

Pure functions on small tensors. Not here: top-k and top-p (training on them needs their nucleus replayed), penalties.
"""

import numpy as np
import torch
from torch import Tensor


def draw_uniforms(seed: int, count: int) -> np.ndarray:
    """Return `count` float32 numbers in [0, 1), the same for the same seed on every machine. Shape [count]."""
    return np.random.Generator(np.random.PCG64(seed)).random(count, dtype=np.float32)


def draw_tokens(logits_BV: Tensor, temperatures_B: Tensor, uniforms_B: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token per row: the first id whose cumulative probability exceeds the row's uniform number.

    Returns (ids [B] int64, logprobs [B] float32), log-probs being `log_softmax(logits / temperature)` at the id.
    Temperature 0 takes the argmax and records its log-prob at temperature 1. NaN logits give NaN log-probs.
    """
    greedy_B = temperatures_B == 0
    scale_B = torch.where(greedy_B, 1.0, temperatures_B)
    scaled_BV = logits_BV.float() / scale_B[:, None]
    logprobs_BV = torch.log_softmax(scaled_BV, dim=-1)
    # Into the memory of `scaled_BV`: faulting in a third array of this size costs more than the exponential.
    cumulative_BV = torch.exp(logprobs_BV, out=scaled_BV).cumsum_(dim=-1)
    # Scaled by the last entry, which rounding leaves near 1 and not at it. `right` never stops at probability 0.
    thresholds_B1 = uniforms_B[:, None] * cumulative_BV[:, -1:]
    sampled_B = torch.searchsorted(cumulative_BV, thresholds_B1, right=True)[:, 0]
    # Only NaN leads past the end; the clamp lets the caller see the NaN log-prob instead of an index error.
    sampled_B.clamp_(max=logits_BV.shape[-1] - 1)
    ids_B = torch.where(greedy_B, logits_BV.argmax(dim=-1), sampled_B)
    return ids_B, logprobs_BV.gather(1, ids_B[:, None])[:, 0]
