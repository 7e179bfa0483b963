"""The kernels behind `logit_kernels.py`, one program a row of logits or a block of it; importing needs Triton."""

import triton
import triton.language as tl


@triton.jit
def scores(logits, targets, logprobs, entropies, log_sums, num_columns: tl.constexpr, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * num_columns
    # Of the columns so far: the largest, and with it taken off the sum of exponentials and of numbers times those.
    largest = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    weighted = tl.full((), 0.0, tl.float32)
    for first in range(0, num_columns, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        z = tl.load(logits + columns, mask=columns < num_columns, other=float("-inf")).to(tl.float32) * scale
        new = tl.maximum(largest, tl.max(z, axis=0))
        # All minus infinity so far: a difference of two of them would be no number.
        shift = tl.where(new == float("-inf"), 0.0, new)
        moved = tl.where(largest == float("-inf"), 0.0, largest - shift)
        shrunk = tl.where(largest == float("-inf"), 0.0, tl.exp(moved))
        exponentials = tl.exp(z - shift)
        products = tl.where(exponentials == 0.0, 0.0, exponentials * (z - shift))
        weighted = shrunk * (weighted + moved * total) + tl.sum(products, axis=0)
        total = shrunk * total + tl.sum(exponentials, axis=0)
        largest = new
    log_total = tl.log(total)
    chosen = tl.load(logits + tl.load(targets + row)).to(tl.float32) * scale
    tl.store(logprobs + row, chosen - largest - log_total)
    tl.store(entropies + row, log_total - weighted / total)
    tl.store(log_sums + row, largest + log_total)


@triton.jit
def gradient(
    logits,
    targets,
    entropies,
    log_sums,
    grad_logprobs,
    grad_entropies,
    num_columns: tl.constexpr,
    scale,
    HAS_ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * num_columns
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < num_columns
    z = tl.load(logits + columns, mask=inside, other=float("-inf")).to(tl.float32) * scale
    log_p = z - tl.load(log_sums + row)
    p = tl.exp(log_p)
    grad = tl.load(grad_logprobs + row)
    found = tl.where(columns == tl.load(targets + row), grad, 0.0) - grad * p
    if HAS_ENTROPY:
        excess = tl.where(p == 0.0, 0.0, p * (log_p + tl.load(entropies + row)))
        found -= tl.load(grad_entropies + row) * excess
    tl.store(logits + columns, (found * scale).to(logits.dtype.element_ty), mask=inside)
