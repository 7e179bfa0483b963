"""Log-probs, entropies and exact KLs of sampled ids, chunk by chunk, so that logits of all rows never exist together.

`token_scores` calls a head once a chunk, whatever the head is; `head_scores` computes all chunks of a linear head by
itself, so that a module around it is called once in each direction.

Not here: the model up to its hidden states, the shift between logits and ids, estimators of the KL (`kl.py`).
Shape suffixes: `_N` trained token, `_d` hidden width, `_V` vocabulary.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from agent_rl.algorithms.kl import kl_penalty
from agent_rl.algorithms.logit_kernels import has_kernels, logits_to_gradient, row_scores

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
    log_softmax = _log_softmax(logits_of(hidden), temperature)
    logprobs, entropies = _scores(log_softmax, targets, entropy_gradient)
    full_kl = None
    if ref_head is not None:
        with torch.no_grad():
            ref_log_softmax = _log_softmax(ref_head(ref_hidden), temperature)
        full_kl = kl_penalty(log_softmax, ref_log_softmax, "full")
    return TokenScores(logprobs, entropies, full_kl)


def head_scores(
    hidden_rows_Nd: torch.Tensor,
    weight_Vd: torch.Tensor,
    bias_V: torch.Tensor | None,
    targets_N: torch.Tensor,
    *,
    temperature: float,
    chunk_size: int,
    entropy_gradient: bool = False,
    dtype: torch.dtype | None = None,
) -> TokenScores:
    """As `token_scores` for the head `hidden @ weight.T + bias`, without a reference.

    The backward pass computes each chunk's logits again and adds the weight's gradient up in one tensor. Products are
    in `dtype`; None: in autocast's number format if on, else in the weight's.
    """
    device = hidden_rows_Nd.device.type
    if dtype is None:
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight_Vd.dtype
    how = (temperature, chunk_size, entropy_gradient, dtype)
    return TokenScores(*_HeadScores.apply(hidden_rows_Nd, weight_Vd, bias_V, targets_N, how), None)


class _HeadScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        how: tuple[float, int, bool, torch.dtype],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.how = how
        temperature, chunk_size, entropy_gradient, dtype = how
        cast = weight.to(dtype)

        def scores_of(rows: slice) -> tuple[torch.Tensor, ...]:
            return _row_scores(_logits(hidden[rows], cast, bias), targets[rows], temperature)

        parts = [scores_of(rows) for rows in _chunks(len(hidden), chunk_size)]
        logprobs, entropies, *log_sums = (torch.cat(column) for column in zip(*parts, strict=True))
        ctx.save_for_backward(hidden, weight, bias, targets, entropies, *log_sums)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, *columns = ctx.saved_tensors
        temperature, chunk_size, entropy_gradient, dtype = ctx.how
        needs_hidden, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight) if needs_weight else None
        grad_bias = torch.zeros_like(bias) if needs_bias else None
        cast = weight.to(dtype)

        def add_up(rows: slice) -> None:
            """In a function, so that nothing of a chunk is left when the next one begins."""
            grad_logits = _grad_of_logits(
                _logits(hidden[rows], cast, bias),
                *(column[rows] for column in columns),
                grads=[grad[rows] for grad in grads[: 2 if entropy_gradient else 1]],
                temperature=temperature,
            )
            if needs_hidden:
                grad_hidden[rows] = grad_logits @ cast
            if needs_weight and dtype == weight.dtype:
                grad_weight.addmm_(grad_logits.t(), hidden[rows].to(dtype))
            elif needs_weight:
                grad_weight.add_(grad_logits.t() @ hidden[rows].to(dtype))
            if needs_bias:
                grad_bias.add_(grad_logits.sum(dim=0))

        with torch.autocast(hidden.device.type, enabled=False):
            for rows in _chunks(len(hidden), chunk_size):
                add_up(rows)
        return grad_hidden, grad_weight, grad_bias, None, None


def _chunks(num_rows: int, chunk_size: int) -> list[slice]:
    return [slice(first, first + chunk_size) for first in range(0, num_rows, chunk_size)]


def _logits(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """In the weight's number format, whatever autocast is."""
    with torch.autocast(hidden.device.type, enabled=False):
        return F.linear(hidden.to(weight.dtype), weight, None if bias is None else bias.to(weight.dtype))


def _row_scores(logits: torch.Tensor, targets: torch.Tensor, temperature: float) -> tuple[torch.Tensor, ...]:
    """Log-prob of each target, entropy and, of the kernel, log of the sum of exponentials; without gradient."""
    if has_kernels(logits.device):
        return row_scores(logits, targets, temperature)
    return _scores(_log_softmax(logits, temperature), targets, entropy_gradient=False)


def _grad_of_logits(
    logits: torch.Tensor,
    targets: torch.Tensor,
    entropies: torch.Tensor,
    log_sums: torch.Tensor | None = None,
    *,
    grads: list[torch.Tensor],
    temperature: float,
) -> torch.Tensor:
    """From the gradients of log-probs and, if they have one, of entropies; with `log_sums` in place of the logits.

    d logprob / dz = onehot - p and dH / dz = -p (log p + H), where z = logits / temperature and p = softmax(z).
    """
    if log_sums is not None:
        logits_to_gradient(logits, targets, entropies, log_sums, *grads, temperature=temperature)
        return logits
    log_p = _log_softmax(logits, temperature)
    p = log_p.exp()
    found = p * -grads[0][:, None]
    found.scatter_add_(1, targets[:, None], grads[0][:, None])
    if len(grads) > 1:
        # Not minus infinity, of which a probability of 0 has none.
        log_p.clamp_(min=torch.finfo(log_p.dtype).min)
        found.sub_(p.mul_(log_p.add_(entropies[:, None])).mul_(grads[1][:, None]))
    return found.div_(temperature).to(logits.dtype)


def _scores(
    log_softmax: torch.Tensor, targets: torch.Tensor, entropy_gradient: bool
) -> tuple[torch.Tensor, torch.Tensor]:
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
    return logprobs, entropies


def _log_softmax(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    # To float32 first: a division in bf16 would round again.
    logits = logits.float()
    return torch.log_softmax(logits if temperature == 1.0 else logits / temperature, dim=-1)
