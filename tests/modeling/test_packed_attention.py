"""Attention over segments, against one mask over all tokens."""

from collections.abc import Callable

import pytest
import torch
from tiny_models import tiny_model
from torch import Tensor

from agent_rl.modeling import packed_attention as packed
from agent_rl.modeling.packed_attention import PackedLayout, packed_attention
from agent_rl.records import Segment

pytestmark = pytest.mark.usefixtures("on_test_device")


def dense_attention(q: Tensor, k: Tensor, v: Tensor, segments: tuple[Segment, ...], window: int | None) -> Tensor:
    """With one mask over all tokens, by definition."""
    position, owner, paths = [], [], []
    for index, segment in enumerate(segments):
        paths.append([*(() if segment.prefix is None else paths[segment.prefix]), index])
        before = sum(segments[part].length for part in paths[index][:-1])
        position += range(before, before + segment.length)
        owner += [index] * segment.length
    num = len(owner)
    seen = torch.zeros(num, num, dtype=torch.bool)
    for query in range(num):
        for key in range(num):
            is_related = owner[key] in paths[owner[query]]
            distance = position[query] - position[key]
            seen[query, key] = is_related and distance >= 0 and (window is None or distance < window)
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[2] ** -0.5
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)


FLAT = (Segment(0, 5), Segment(5, 3, 0), Segment(8, 4), Segment(12, 6, 0), Segment(18, 1, 2))
CHAINS = (Segment(0, 5), Segment(5, 3, 0), Segment(8, 4, 1), Segment(12, 6, 0), Segment(18, 1, 2))


@pytest.mark.parametrize("segments", [FLAT, CHAINS])
@pytest.mark.parametrize("window", [None, 1, 4, 100])
def test_attention_over_segments_is_that_of_one_mask_over_all_tokens(
    window: int | None, segments: tuple[Segment, ...]
) -> None:
    generator = torch.Generator(torch.get_default_device()).manual_seed(0)
    q, k, v = (torch.randn(19, heads, 8, generator=generator, requires_grad=True) for heads in (4, 2, 2))
    weights = torch.randn(19, 4, 8, generator=generator)
    found = packed_attention(q, k, v, PackedLayout(segments), window=window)
    expected = dense_attention(q, k, v, segments, window)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    pairs = zip(*(torch.autograd.grad((out * weights).sum(), (q, k, v)) for out in (found, expected)), strict=True)
    for got, wanted in pairs:
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)


def older_varlen(q, k, v, query_ends, key_ends, max_q, max_k, *, scale, window_size):
    """What the signature of PyTorch's kernel promises: causal from the lower right corner of every segment."""
    assert (query_ends.dtype, key_ends.dtype) == (torch.int32, torch.int32)
    left, right = window_size
    assert right == 0
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    outputs = []
    for i in range(len(query_ends) - 1):
        queries, keys = slice(*query_ends[i : i + 2].tolist()), slice(*key_ends[i : i + 2].tolist())
        num_q, num_k = queries.stop - queries.start, keys.stop - keys.start
        assert num_q <= max_q and num_k <= max_k
        distance = torch.arange(num_k - num_q, num_k)[:, None] - torch.arange(num_k)
        hidden = (distance < 0) | ((distance > left) if left >= 0 else False)
        scores = torch.einsum("qhd,khd->hqk", q[queries], k[keys]) * scale
        outputs.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v[keys]))
    return torch.cat(outputs)


def varlen(q, k, *others, enable_gqa, **settings):
    assert enable_gqa == (q.shape[1] != k.shape[1])
    return older_varlen(q, k, *others, **settings)


@pytest.mark.parametrize("kernel", [varlen, older_varlen])
@pytest.mark.parametrize("segments", [FLAT, CHAINS])
@pytest.mark.parametrize("window", [None, 1, 4, 100])
def test_all_segments_in_one_call_attend_as_one_by_one(
    window: int | None, segments: tuple[Segment, ...], kernel: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    generator = torch.Generator(torch.get_default_device()).manual_seed(0)
    q, k, v = (torch.randn(19, heads, 8, generator=generator, requires_grad=True) for heads in (4, 2, 2))
    layout = PackedLayout(segments)
    split = [x.split(layout.lengths) for x in (k, v)]
    found = packed.attend_in_one_call(q, *split, layout, 8**-0.5, window)
    expected = dense_attention(q, k, v, segments, window)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    pairs = zip(*(torch.autograd.grad(out.sin().sum(), (q, k, v)) for out in (found, expected)), strict=True)
    for got, wanted in pairs:
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("segments", [FLAT, CHAINS])
@pytest.mark.parametrize("window", [None, 1, 4, 100])
def test_on_a_gpu_half_precision_attends_in_one_call_near_the_definition(
    window: int | None, segments: tuple[Segment, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(19, heads, 64, generator=generator) for heads in (4, 2, 2))
    found = packed_attention(*(x.bfloat16().cuda() for x in (q, k, v)), PackedLayout(segments), window=window)
    expected = dense_attention(q, k, v, segments, window)
    torch.testing.assert_close(found.float().cpu(), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(
    ("dtype", "widths", "fits"),
    [
        (torch.bfloat16, (128, 128), True),
        (torch.float16, (256, 256), True),
        (torch.float32, (128, 128), False),
        (torch.bfloat16, (192, 128), False),  # DeepSeek's latent attention
        (torch.bfloat16, (512, 512), False),  # Gemma 4's full layers
        (torch.bfloat16, (36, 36), False),
    ],
)
def test_one_call_takes_equal_widths_of_whole_vectors_alone(
    dtype: torch.dtype, widths: tuple[int, int], fits: bool
) -> None:
    assert packed.fits_one_call(dtype, *widths) == fits


def test_padded_rows_repeat_the_prefix_and_every_token_knows_its_place() -> None:
    layout = PackedLayout((Segment(0, 2), Segment(2, 1, 0), Segment(3, 2, 0), Segment(5, 1)))
    tokens, places = layout.padded(torch.get_default_device())
    assert tokens.tolist() == [[0, 1, 2, 0], [0, 1, 3, 4], [5, 0, 0, 0]]
    assert places.tolist() == [0, 1, 2, 6, 7, 8]
    chain = PackedLayout((Segment(0, 2), Segment(2, 1, 0), Segment(3, 2, 1), Segment(5, 1, 1)))
    assert chain.padded(torch.get_default_device())[0].tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 5, 0]]


@pytest.mark.parametrize(
    ("segments", "complaint"),
    [
        ((Segment(0, 2), Segment(3, 1)), "segment 1 has 1 tokens from 3 on"),
        ((Segment(0, 2), Segment(2, 0)), "segment 1 has 0 tokens from 2 on"),
        ((Segment(0, 2), Segment(2, 1, 1)), "segment 1 continues 1"),
    ],
)
def test_segments_with_gaps_or_that_continue_themselves_are_refused(
    segments: tuple[Segment, ...], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        PackedLayout(segments)


def test_minimind_takes_a_layout() -> None:
    model = tiny_model()
    ids, layout = torch.tensor([[5, 9, 2, 5, 9, 7]]), PackedLayout((Segment(0, 3), Segment(3, 3)))
    flat = model.hidden_states(ids, torch.tensor([[0, 1, 2, 0, 1, 2]]), layout=layout)[0]
    rows = model.hidden_states(ids.view(2, 3))
    torch.testing.assert_close(flat, rows.flatten(0, 1), atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="give position_ids with a layout"):
        model.hidden_states(ids, layout=layout)
