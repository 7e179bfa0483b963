"""Milliseconds of each fused path beside the plain one, forward and backward: attention, the head, norms.

The plain one of attention is a call a segment, of the head a call a chunk (computed again in the backward pass), of the
norm Transformers' own. Not here: whether they compute the same (`parity.py`).
"""

from collections.abc import Callable
from functools import partial

import torch
from acceptance.figures import Recorder, Setting
from acceptance.models import a_call_a_segment, forget, seconds_of
from torch import Tensor

from agent_rl.algorithms.logprobs import head_scores, token_scores
from agent_rl.learning.logprob_model import logits_at_a_time
from agent_rl.modeling import hf_layers, packed_attention
from agent_rl.modeling.packed_attention import PackedLayout
from agent_rl.records import Segment

HEADS, KV_HEADS, WIDTH = 12, 2, 128
"""Of the 1.5B shape, as are the sizes below."""


def time_fused(setting: Setting, out: Recorder) -> None:
    repeats = setting.pick(5, 1)
    _time_attention(setting, out, repeats)
    forget(setting.device)
    _time_head(setting, out, repeats)
    forget(setting.device)
    _time_norms(setting, out, repeats)


def _record(out: Recorder, name: str, fused_s: float, plain_s: float) -> None:
    out.figure(f"{name}_ms", 1000 * fused_s)
    out.figure(f"{name}_plain_ms", 1000 * plain_s)
    out.figure(f"{name}_ratio", plain_s / fused_s)


def _time_attention(setting: Setting, out: Recorder, repeats: int) -> None:
    """One layer over 16,384 tokens in so many segments of the same length."""
    tokens = setting.pick(16_384, 512)
    for count in (8, 64, 256):
        length = tokens // count
        layout = PackedLayout([Segment(index * length, length) for index in range(count)])
        q, k, v = (_numbers(setting, tokens, heads, WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS))
        run = partial(_there_and_back, partial(packed_attention.packed_attention, q, k, v, layout), (q, k, v))
        with a_call_a_segment():
            plain_s = seconds_of(run, setting.device, repeats)
        if setting.is_gpu and packed_attention._VARLEN_FORMATS:
            _record(out, f"varlen_{count}", seconds_of(run, setting.device, repeats), plain_s)
        else:
            out.figure(f"varlen_{count}_plain_ms", 1000 * plain_s)
    if not (setting.is_gpu and packed_attention._VARLEN_FORMATS):
        out.note("attention in one call was not timed: it needs a GPU, and a PyTorch that takes the call")


def _time_head(setting: Setting, out: Recorder, repeats: int) -> None:
    rows, width, vocab = setting.pick((16_384, 1536, 151_936), (64, 32, 500))
    hidden, weight = _numbers(setting, rows, width), _numbers(setting, vocab, width)
    targets = torch.randint(vocab, (rows,), device=setting.device)
    chunk_size = setting.pick(logits_at_a_time(setting.device, in_place=True) // vocab, 16)
    options = {"temperature": 1.0, "chunk_size": chunk_size}
    head = partial(torch.nn.functional.linear, weight=weight)

    def scores(compute: Callable) -> Tensor:
        return compute(targets, **options).logprobs

    one = partial(scores, partial(head_scores, hidden, weight, None))
    many = partial(scores, partial(token_scores, hidden, head))
    times = [
        seconds_of(partial(_there_and_back, run, (hidden, weight)), setting.device, repeats) for run in (one, many)
    ]
    _record(out, "head", *times)


def _time_norms(setting: Setting, out: Recorder, repeats: int) -> None:
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

    rows, width = setting.pick((16_384, 1536), (64, 32))
    norm = Qwen2RMSNorm(width).to(setting.device, torch.bfloat16)
    x = _numbers(setting, rows, width)
    inputs = (x, norm.weight)
    ours, own = partial(hf_layers._norm, norm, x), partial(norm.forward, x)
    times = [seconds_of(partial(_there_and_back, run, inputs), setting.device, 4 * repeats) for run in (ours, own)]
    _record(out, "norm", *times)


def _numbers(setting: Setting, *shape: int) -> Tensor:
    numbers = torch.randn(*shape, device=setting.device, dtype=torch.bfloat16)
    return numbers.mul_(shape[-1] ** -0.25).requires_grad_()


def _there_and_back(run: Callable[[], Tensor], inputs: tuple[Tensor, ...]) -> None:
    torch.autograd.grad(run().sum(), inputs)
