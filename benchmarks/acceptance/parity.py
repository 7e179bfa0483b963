"""The same numbers from every path: attention over segments, models packed, padded and plain, the head, the norms.

Differences are the largest: of log-probs as they are, of layers' outputs above 1 as a share of them, of gradients as a
share of the tensor's largest number. Attention is compared with float64 by definition, models with Transformers' own
pass in the same number format. Not here: sampled against trained log-probs (`generating.py`), speed (`fused.py`).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from unittest.mock import patch

import torch
from acceptance.figures import Recorder, Setting
from acceptance.models import (
    a_call_a_segment,
    kernel_seconds,
    largest_gap,
    largest_gradient_gap,
    make_model,
    varlen_problem,
)
from torch import Tensor, nn
from transformers import AutoConfig

from agent_rl.algorithms.logprobs import head_scores, token_scores
from agent_rl.learning.logprob_model import LogprobModel
from agent_rl.learning.packing import move_batch, plan_micro_batches
from agent_rl.modeling import hf_layers, packed_attention
from agent_rl.modeling.packed_attention import PackedLayout
from agent_rl.records import Segment, TrainingSample

FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
HEADS, KV_HEADS, WIDTH = 8, 2, 64
MODELS = {"Qwen2": {"model_type": "qwen2"}, "Qwen3": {"model_type": "qwen3", "head_dim": 64}}
MODELS["Mistral, window"] = {"model_type": "mistral", "sliding_window": 24}
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}


def compare(setting: Setting, out: Recorder) -> None:
    """All comparisons; each is a figure of its own."""
    out.figure("varlen_call", varlen_problem() or 1)
    _compare_attention(setting, out)
    _compare_models(setting, out)
    _compare_heads(setting, out)
    _compare_norms(setting, out)
    if setting.is_gpu:
        _find_kernels(setting, out)


def segments_of(scale: int) -> tuple[Segment, ...]:
    """A prompt that two continue, one of which another continues; a prompt of its own with one; one alone."""
    lengths = ((5, None), (3, 0), (4, 1), (6, 0), (7, None), (2, 4), (9, None))
    found: list[Segment] = []
    for length, prefix in lengths:
        start = found[-1].start + found[-1].length if found else 0
        found.append(Segment(start, length * scale + len(found), prefix))
    return tuple(found)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, segments: Sequence[Segment], window: int | None) -> Tensor:
    """By definition, with one mask over all tokens."""
    layout = PackedLayout(segments)
    owner = torch.cat([torch.full((length,), index) for index, length in enumerate(layout.lengths)])
    place = torch.cat(
        [torch.arange(read - length, read) for read, length in zip(layout.num_read, layout.lengths, strict=True)]
    )
    related = torch.zeros(len(segments), len(segments), dtype=torch.bool)
    for index, path in enumerate(layout.paths):
        related[index, path] = True
    distance = place[:, None] - place[None, :]
    seen = related[owner][:, owner] & (distance >= 0)
    if window is not None:
        seen &= distance < window
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[2] ** -0.5
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen.to(q.device), -torch.inf).softmax(-1), v)


def _compare_attention(setting: Setting, out: Recorder) -> None:
    """Largest and mean difference over windows: by calls, and in one where this device and format have that."""
    segments = segments_of(setting.pick(40, 3))
    for name, dtype in FORMATS.items():
        ways: dict[str, Callable] = {"segments": a_call_a_segment}
        is_one_call = setting.is_gpu and dtype in packed_attention._VARLEN_FORMATS
        if is_one_call:
            ways["one_call"] = nullcontext
        for way, context in ways.items():
            gaps = [_attention_gaps(segments, window, dtype, setting, context) for window in (None, 1, 16)]
            _record_gaps(out, f"{name}_{way}", gaps)
        if setting.is_gpu and dtype == torch.bfloat16 and varlen_problem() == "varlen_attn has no enable_gqa":
            gaps = [_attention_gaps(segments, window, dtype, setting, _without_flag) for window in (None, 1, 16)]
            _record_gaps(out, f"{name}_one_call_without_enable_gqa", gaps)


def _record_gaps(out: Recorder, name: str, gaps: Sequence[tuple[float, float, float]]) -> None:
    largest, mean, gradient = (list(column) for column in zip(*gaps, strict=True))
    out.figure(f"{name}_max", _worst(largest))
    out.figure(f"{name}_mean", _worst(mean))
    out.figure(f"{name}_gradient", _worst(gradient))


def _worst(values: Sequence[float]) -> float:
    return max(values, key=lambda value: (math.isnan(value), value))


@contextmanager
def _without_flag() -> Iterator[None]:
    """One call on a PyTorch whose `varlen_attn` has everything but `enable_gqa`."""
    from torch.nn.attention import varlen

    original = varlen.varlen_attn

    def call(*args: object, enable_gqa: bool = False, **kwargs: object) -> object:
        return original(*args, **kwargs)

    with (
        patch.object(packed_attention, "_VARLEN_FORMATS", (torch.bfloat16,)),
        patch.object(varlen, "varlen_attn", call),
    ):
        yield


def _attention_gaps(
    segments: Sequence[Segment], window: int | None, dtype: torch.dtype, setting: Setting, context: Callable
) -> tuple[float, float, float]:
    """(largest, mean) difference of the outputs, largest of the gradients."""
    generator = torch.Generator().manual_seed(0)
    layout = PackedLayout(segments)
    exact = [
        torch.randn(layout.num_tokens, heads, WIDTH, generator=generator).to(setting.device, dtype).double()
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    ]
    weights = torch.randn(layout.num_tokens, HEADS, WIDTH, generator=generator).to(setting.device)
    found = [x.to(dtype).requires_grad_() for x in exact]
    wanted = [x.clone().requires_grad_() for x in exact]
    with context():
        output = packed_attention.packed_attention(*found, layout, window=window)
        (output * weights.to(dtype)).sum().backward()
    expected = dense_attention(*wanted, segments, window)
    (expected * weights.to(dtype).double()).sum().backward()
    mean = float((output.detach().double() - expected.detach()).abs().mean())
    gradients = [x.grad for x in found], [x.grad for x in wanted]
    if window == 1:  # a token that sees itself alone: the gradients of queries and keys are zero
        gradients = tuple(column[2:] for column in gradients)
    return largest_gap(output, expected), mean, largest_gradient_gap(*gradients)


def made_up_samples(vocab_size: int, length: int) -> list[TrainingSample]:
    """A group of three, of which two have more than the prompt in common, and one with a prompt of its own."""
    generator = torch.Generator().manual_seed(1)

    def ids(count: int) -> list[int]:
        return torch.randint(3, vocab_size, (count,), generator=generator).tolist()

    prompt, common = ids(2 * length), ids(length)
    rows = [[*prompt, *common, *ids(length)], [*prompt, *common, *ids(2 * length)], [*prompt, *ids(length)]]
    prompts = [len(prompt)] * 3 + [length]
    rows.append(ids(3 * length))
    return [
        TrainingSample(
            token_ids=tuple(row),
            loss_mask=tuple(int(place >= num_prompt) for place in range(len(row))),
            sampling_logprobs=(0.0,) * len(row),
            advantages=tuple(float(place >= num_prompt) for place in range(len(row))),
        )
        for row, num_prompt in zip(rows, prompts, strict=True)
    ]


def _compare_models(setting: Setting, out: Recorder) -> None:
    """Log-probs of trained ids and gradients of all weights against plain passes, by the worst model."""
    samples = made_up_samples(SIZES["vocab_size"], setting.pick(48, 12))
    for name, dtype in FORMATS.items():
        gaps: dict[str, list[float]] = {way: [] for way in ("packed", "flat", "padded")}
        slopes: dict[str, list[float]] = {way: [] for way in gaps}
        for kind in MODELS.values():
            config = AutoConfig.for_model(**kind, **SIZES)
            logprobs, wanted = _plain_pass(make_model(config, setting.device, dtype), samples, setting.device)
            for way, of_way in gaps.items():
                model = make_model(config, setting.device, dtype)
                found, gradients = _our_pass(model, samples, way, setting.device)
                of_way.append(float((found - logprobs).detach().abs().max()))
                slopes[way].append(largest_gradient_gap(gradients, wanted))
        for way, of_way in gaps.items():
            out.figure(f"{name}_{way}_logprob_max", _worst(of_way))
            out.figure(f"{name}_{way}_logprob_gradient", _worst(slopes[way]))
    out.note(f"models: {', '.join(MODELS)}; 2 layers, width 256, 4 heads on 2, random weights")


def _plain_pass(model: nn.Module, samples: Sequence[TrainingSample], device: str) -> tuple[Tensor, list[Tensor]]:
    parts = []
    for sample in samples:
        ids = torch.tensor(sample.token_ids, device=device)
        rows = torch.log_softmax(model(input_ids=ids[None], use_cache=False).logits[0, :-1].float(), dim=-1)
        trained = torch.tensor(sample.loss_mask[1:], device=device).bool()
        parts.append(rows.gather(1, ids[1:, None])[:, 0][trained])
    return _with_gradients(model, torch.cat(parts))


def _our_pass(
    model: nn.Module, samples: Sequence[TrainingSample], way: str, device: str
) -> tuple[Tensor, list[Tensor]]:
    scorer = LogprobModel(model, temperature=1.0, packed=False if way == "padded" else None)
    ((batch,),) = plan_micro_batches(samples, max_tokens=100_000, share_prefixes=way == "packed")
    parts = scorer(move_batch(batch, torch.device(device))).logprobs.split(batch.num_trained)
    in_order = [part for _, part in sorted(zip(batch.samples, parts, strict=True), key=lambda pair: pair[0])]
    return _with_gradients(model, torch.cat(in_order))


def _with_gradients(model: nn.Module, logprobs: Tensor) -> tuple[Tensor, list[Tensor]]:
    (logprobs * torch.linspace(-1, 1, len(logprobs), device=logprobs.device)).sum().backward()
    return logprobs, [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def _compare_heads(setting: Setting, out: Recorder) -> None:
    """The head in one call and chunk by chunk against all logits at once, gradients of rows and weights too."""
    rows, width, vocab = setting.pick((4096, 1536, 32_000), (40, 32, 500))
    for name, dtype in FORMATS.items():
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(rows, width, generator=generator).to(setting.device, dtype).requires_grad_()
        weight = (torch.randn(vocab, width, generator=generator) * width**-0.5).to(setting.device, dtype)
        weight.requires_grad_()
        targets = torch.randint(vocab, (rows,), generator=generator).to(setting.device)
        options = {"temperature": 1.0, "chunk_size": -(-rows // 4)}
        head = partial(torch.nn.functional.linear, weight=weight)
        ways = {
            "one_call": partial(head_scores, hidden, weight, None, targets, **options),
            "chunks": partial(token_scores, hidden, head, targets, **options),
            "full": partial(_all_logits, hidden, head, targets),
        }
        found = {}
        for way, run in ways.items():
            logprobs = run()[0]
            found[way] = logprobs, torch.autograd.grad(logprobs.sum(), (hidden, weight))
        for way in ("one_call", "chunks"):
            gap = (found[way][0] - found["full"][0]).detach().abs().max()
            out.figure(f"{name}_head_{way}_max", float(gap))
            out.figure(f"{name}_head_{way}_gradient", largest_gradient_gap(found[way][1], found["full"][1]))


def _all_logits(hidden: Tensor, head: Callable[[Tensor], Tensor], targets: Tensor) -> tuple[Tensor]:
    return (torch.log_softmax(head(hidden).float(), -1).gather(1, targets[:, None])[:, 0],)


def _compare_norms(setting: Setting, out: Recorder) -> None:
    """The norm that replaces the model's own against it."""
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

    rows, width = setting.pick((4096, 1536), (40, 64))
    for name, dtype in FORMATS.items():
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(rows, width, generator=generator).to(setting.device, dtype).requires_grad_()
        norm = Qwen2RMSNorm(width).to(setting.device, dtype)
        with torch.no_grad():
            norm.weight.copy_(1 + 0.1 * torch.randn(width, generator=generator))
        found = {}
        for way, run in {"ours": partial(hf_layers._norm, norm), "own": norm.forward}.items():
            output = run(x)
            weights = torch.linspace(-1, 1, width, device=setting.device, dtype=dtype)
            found[way] = output, torch.autograd.grad((output * weights).sum(), (x, norm.weight))
        out.figure(f"{name}_norm_max", largest_gap(found["ours"][0], found["own"][0]))
        out.figure(f"{name}_norm_gradient", largest_gradient_gap(found["ours"][1], found["own"][1]))


def _find_kernels(setting: Setting, out: Recorder) -> None:
    """Whether attention is flash attention in half precision: by the kernels' names, and with every other forbidden."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    layout = PackedLayout(segments_of(40))
    q, k, v = (
        torch.randn(layout.num_tokens, heads, WIDTH, device=setting.device, dtype=torch.bfloat16, requires_grad=True)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )

    def run() -> None:
        packed_attention.packed_attention(q, k, v, layout).sum().backward()

    names = {"segments": a_call_a_segment}
    if packed_attention._VARLEN_FORMATS:
        names["one_call"] = nullcontext
    for way, context in names.items():
        with context():
            kernels = sorted(name for name in kernel_seconds(run) if "flash" in name.lower() or "fmha" in name.lower())
        out.figure(f"flash_{way}", int(any("flash" in name.lower() for name in kernels)))
        out.note(f"attention's kernels, {way}: {'; '.join(name[:80] for name in kernels) or 'none of that name'}")
    try:
        with a_call_a_segment(), sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            run()
        out.figure("flash_alone", 1)
    except RuntimeError as error:
        out.figure("flash_alone", 0)
        out.note(f"with flash attention alone: {str(error).partition(chr(10))[0]}")
