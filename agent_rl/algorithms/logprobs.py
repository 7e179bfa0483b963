"""Log-probs, entropies and exact KLs of sampled ids, chunk by chunk, so that logits of all rows never exist together.

Not here: the model up to its hidden states, the shift between logits and ids, estimators of the KL (`kl.py`).
Shape suffixes: `_N` trained token, `_d` hidden width, `_V` vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

from agent_rl.algorithms.kl import kl_penalty

Head = Callable[[torch.Tensor], torch.Tensor]
"""A model's head: hidden rows [n, d] -> logits [n, V]."""


class TokenScores(NamedTuple):
    """What is known of each of N sampled ids; float32 [N]."""

    logprobs: torch.Tensor
    """Log-prob of the id."""
    entropies: torch.Tensor
    """Entropy in nats of the distribution it was sampled from."""
    full_kl: torch.Tensor | None
    """KL in nats of that distribution to the reference's, over the whole vocabulary; None without a reference."""


def token_scores(
    hidden_rows_Nd: torch.Tensor,
    logits_of: Head,
    targets_N: torch.Tensor,
    *,
    temperature: float,
    chunk_size: int,
    entropy_gradient: bool = False,
    ref: tuple[torch.Tensor, Head] | None = None,
) -> TokenScores:
    """Log-prob of each target, entropy of its distribution and, with `ref`, the KL to a reference, float32 [N].

    The distribution is `softmax(logits_of(hidden) / temperature)`, normalised in float32; the head's weights get their
    gradients too. Rows go through in chunks of `chunk_size`, so that a few times `chunk_size * V` numbers exist at a
    time instead of `N * V`; with more than one chunk the backward pass computes each chunk again, heads included.
    The entropy carries a gradient only with `entropy_gradient`. `ref` is the reference's hidden rows [N, d'] and head:
    it is read at the same temperature and gets no gradient; the KL carries the policy's.
    """
    recompute = torch.is_grad_enabled() and hidden_rows_Nd.shape[0] > chunk_size
    ref_rows, ref_head = ref if ref is not None else (None, None)
    hidden_chunks, targets = hidden_rows_Nd.split(chunk_size), targets_N.split(chunk_size)
    ref_chunks = [None] * len(targets) if ref_rows is None else ref_rows.split(chunk_size)
    chunks: list[TokenScores] = []
    for columns in zip(hidden_chunks, targets, ref_chunks, strict=True):
        inputs = (*columns, logits_of, ref_head, temperature, entropy_gradient)
        if recompute:
            chunk = checkpoint(_chunk_scores, *inputs, use_reentrant=False, preserve_rng_state=False)
        else:
            chunk = _chunk_scores(*inputs)
        chunks.append(chunk)
    logprobs, entropies, full_kl = zip(*chunks, strict=True)
    return TokenScores(torch.cat(logprobs), torch.cat(entropies), None if ref is None else torch.cat(full_kl))


def _chunk_scores(
    hidden: torch.Tensor,
    targets: torch.Tensor,
    ref_hidden: torch.Tensor | None,
    logits_of: Head,
    ref_head: Head | None,
    temperature: float,
    entropy_gradient: bool,
) -> TokenScores:
    log_softmax = _log_softmax(hidden, logits_of, temperature)
    logprobs = log_softmax.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    if entropy_gradient:
        # Not `entr`: its gradient at probability 0 is not a number.
        entropies = -(log_softmax.exp() * log_softmax.clamp(min=torch.finfo(log_softmax.dtype).min)).sum(dim=-1)
    else:
        with torch.no_grad():
            # In place and without `entr`, which takes the logarithm again. 0 times minus infinity counts nothing, but
            # a row that is not a number as a whole stays one.
            entropies = -log_softmax.exp().mul_(log_softmax).nansum(dim=-1)
            entropies.masked_fill_(log_softmax[:, 0].isnan(), torch.nan)
    full_kl = None
    if ref_head is not None:
        with torch.no_grad():
            ref_log_softmax = _log_softmax(ref_hidden, ref_head, temperature)
        full_kl = kl_penalty(log_softmax, ref_log_softmax, "full")
    return TokenScores(logprobs, entropies, full_kl)


def _log_softmax(hidden: torch.Tensor, logits_of: Head, temperature: float) -> torch.Tensor:
    # To float32 first: a division in bf16 would round again.
    logits = logits_of(hidden).float()
    return torch.log_softmax(logits if temperature == 1.0 else logits / temperature, dim=-1)
