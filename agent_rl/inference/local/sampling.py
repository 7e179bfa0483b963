"""Sampling by inverse transform: a token depends on logits, temperature and one uniform number alone.

Pure functions on small tensors. Not here: top-k and top-p (training on them needs their nucleus replayed), penalties.
"""

import numpy as np
import torch
from torch import Tensor


def sample_uniforms(seed: int, count: int) -> np.ndarray:
    """Return `count` float32 numbers in [0, 1), the same for the same seed on every machine. Shape [count]."""
    return np.random.Generator(np.random.PCG64(seed)).random(count, dtype=np.float32)


def sample_tokens(
    logits_BV: Tensor, temperatures_B: Tensor, uniforms_B: Tensor, *, workspace_BV: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sample one token per row: the first id whose cumulative probability exceeds the row's uniform number.

    Returns (ids [B] int64, logprobs [B] float32), log-probs being `log_softmax(logits / temperature)` at the id.
    Temperature 0 takes the argmax and records its log-prob at temperature 1. NaN logits give NaN log-probs.
    float32 logits are overwritten; `workspace_BV` (float32) spares an allocation.
    """
    greedy_B = temperatures_B == 0
    # In place: faulting in one more array of this size costs more than the exponential.
    scaled_BV = logits_BV.float().div_(torch.where(greedy_B, 1.0, temperatures_B)[:, None])
    top_B, top_ids_B = scaled_BV.max(dim=-1)
    weights_BV = scaled_BV.sub_(top_B[:, None]).exp_()
    cumulative_BV = torch.cumsum(weights_BV, dim=-1, out=workspace_BV)
    totals_B = cumulative_BV[:, -1]
    # `right` never stops at probability 0; a number just below 1 must not round up to the total and lead past the end.
    thresholds_B = torch.minimum(uniforms_B * totals_B, torch.nextafter(totals_B, torch.zeros_like(totals_B)))
    sampled_B = torch.searchsorted(cumulative_BV, thresholds_B[:, None], right=True)[:, 0]
    # Only NaN still leads past the end; the clamp lets the caller see the NaN log-prob instead of an index error.
    sampled_B.clamp_(max=logits_BV.shape[-1] - 1)
    ids_B = torch.where(greedy_B, top_ids_B, sampled_B)
    return ids_B, weights_BV.gather(1, ids_B[:, None])[:, 0].log() - totals_B.log()
