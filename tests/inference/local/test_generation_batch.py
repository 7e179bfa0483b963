"""What is computed, and what is not: groups, turns, pieces of long prompts, rows that end."""

from collections.abc import Iterator
from threading import Event

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import tiny_model

from agent_rl.inference.local import batch as batch_module
from agent_rl.inference.local.batch import ActiveBatch, Request, sample_uniforms
from agent_rl.inference.local.decoder import LlamaDecoder, make_decoder
from agent_rl.inference.local.hf_decoder import HFDecoder
from agent_rl.inference.local.kv_cache import CachePass
from agent_rl.records import SamplingParams


class Counting:
    """A decoder that notes rows, new tokens and longest sequence of every pass."""

    def __init__(self) -> None:
        self._decoder = make_decoder(tiny_model(), 64)
        self.vocab_size, self.device = self._decoder.vocab_size, self._decoder.device
        self.passes: list[tuple[int, int, int]] = []

    def hidden_states(self, token_ids_RT: torch.Tensor, work: CachePass) -> torch.Tensor:
        self.passes.append((*token_ids_RT.shape, work.length))
        return self._decoder.hidden_states(token_ids_RT, work)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._decoder.logits(hidden)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    """As in the engine's thread."""
    with torch.inference_mode():
        yield


def make_request(
    prompt: list[int], max_new_tokens: int = 5, seed: int = 0, temperature: float = 1.0, cancel: Event | None = None
) -> Request:
    return Request(
        prompt=np.array(prompt, dtype=np.int32),
        sampling=SamplingParams(max_new_tokens=max_new_tokens, seed=seed, temperature=temperature),
        cancel=cancel,
        max_new_tokens=max_new_tokens,
        uniforms=sample_uniforms(seed, max_new_tokens),
    )


def make_batch(decoder: Counting, *, max_rows: int = 8, num_slots: int = 8, share: bool = True) -> ActiveBatch:
    return ActiveBatch(decoder, max_rows=max_rows, num_slots=num_slots, width=64, share_contexts=share)


PROMPT = list(range(20, 40))


def finish(batch: ActiveBatch) -> None:
    while batch.requests:
        batch.step()


@pytest.mark.parametrize(
    ("kind", "decoder"),
    [("minimind", LlamaDecoder), ("llama", LlamaDecoder), ("mistral_window", HFDecoder), ("lora", HFDecoder)],
)
def test_models_of_llamas_shape_get_our_own_pass_and_the_others_theirs(kind: str, decoder: type) -> None:
    assert type(make_decoder(tiny_model(kind), 64)) is decoder


def test_a_groups_prompt_is_computed_once_and_later_only_its_last_token() -> None:
    decoder = Counting()
    batch = make_batch(decoder)
    batch.start([make_request(PROMPT, seed=seed) for seed in range(3)])
    assert decoder.passes == [(1, 20, 20)]
    batch.step()
    batch.start([make_request(PROMPT, seed=3)])
    assert decoder.passes[2:] == [(1, 1, 20)]


def test_without_sharing_a_group_has_rows_of_its_own_that_copy_the_prompt() -> None:
    decoder = Counting()
    batch = make_batch(decoder, share=False)
    batch.start([make_request(PROMPT, seed=seed) for seed in range(3)])
    assert decoder.passes == [(1, 20, 20), (2, 1, 20)]
    batch.step()
    assert (batch.num_sampled, batch.num_decoded) == (3, 3)


def test_requests_are_one_row_until_their_samples_differ() -> None:
    decoder = Counting()
    batch = make_batch(decoder)
    same, other = [make_request(PROMPT, seed=1) for _ in range(2)], make_request(PROMPT, seed=2)
    batch.start([same[0], other, same[1]])
    finish(batch)
    assert same[0].token_ids == same[1].token_ids
    assert same[0].token_ids[0] != other.token_ids[0]
    assert [rows for rows, _, _ in decoder.passes] == [1, 2, 2, 2, 2]
    assert (batch.num_sampled, batch.num_decoded) == (15, 8)


def test_requests_of_another_temperature_have_a_row_of_their_own() -> None:
    batch = make_batch(Counting())
    batch.start([make_request(PROMPT, temperature=temperature) for temperature in (1.0, 0.0, 1.0)])
    assert [len(row.members) for row in batch.rows] == [2, 1]


def test_one_of_a_row_may_be_cancelled_or_be_longer_than_the_others() -> None:
    batch, cancel = make_batch(Counting()), Event()
    requests = [
        make_request(PROMPT, length, cancel=cancelled) for length, cancelled in ((5, None), (5, cancel), (2, None))
    ]
    batch.start(list(requests))
    batch.step()
    cancel.set()
    assert batch.step() == [requests[1], requests[2]]
    finish(batch)
    assert [len(request.token_ids) for request in requests] == [5, 2, 2]
    assert requests[0].token_ids[:2] == requests[1].token_ids == requests[2].token_ids


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 12)), min_size=1, max_size=12),
    st.integers(2, 6),
    st.integers(0, 5),
)
def test_what_is_sampled_does_not_depend_on_sharing(
    wanted: list[tuple[int, int, int]], num_slots: int, num_waiting: int
) -> None:
    """Requests that begin alike, with few slots, some of them later than others."""
    found = []
    for share in (True, False):
        batch = make_batch(Counting(), num_slots=num_slots, share=share)
        requests = [make_request(PROMPT[: 18 + begin], length, seed) for begin, seed, length in wanted]
        pending, later = requests[num_waiting:], requests[:num_waiting]
        while pending or later or batch.requests:
            if not pending:
                pending, later = later, []
            batch.start(pending)
            batch.step()
        found.append(requests)
    for shared, alone in zip(*found, strict=True):
        assert shared.token_ids == alone.token_ids
        assert shared.logprobs == pytest.approx(alone.logprobs, abs=1e-5)


def test_the_next_turn_computes_only_what_is_new() -> None:
    decoder = Counting()
    batch = make_batch(decoder)
    first = make_request(PROMPT)
    batch.start([first])
    finish(batch)
    decoder.passes.clear()
    batch.start([make_request([*PROMPT, *first.token_ids, 7, 8, 9])])
    # The last token sampled was never run through the model: it is new too.
    assert decoder.passes == [(1, 4, 28)]


def test_rows_of_like_length_share_a_pass_and_a_much_longer_one_gets_its_own() -> None:
    decoder = Counting()
    batch = make_batch(decoder)
    batch.start([make_request([n] * length) for n, length in enumerate((30, 25, 28))])
    assert decoder.passes == [(3, 30, 30)]
    batch.start([make_request([n]) for n in range(4)] + [make_request([50] * 63)])
    assert decoder.passes[1:] == [(5, 63, 63)]  # little padding in all: one pass is faster than two
    many = make_batch(decoder, max_rows=16, num_slots=16)
    many.start([make_request([n]) for n in range(8)] + [make_request([50] * 63)])
    assert decoder.passes[2:] == [(8, 1, 1), (1, 63, 63)]


def test_long_prompts_are_computed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [list(range(1, 40)), list(range(40, 62))]
    sampled, passes = [], []
    for most in (1024, 16):
        monkeypatch.setattr(batch_module, "MAX_PREFILL_TOKENS", most)
        decoder = Counting()
        batch = make_batch(decoder)
        requests = [make_request(prompt) for prompt in prompts]
        pending = list(requests)
        while pending:
            batch.start(pending)
        finish(batch)
        sampled.append([request.token_ids for request in requests])
        passes.append(decoder.passes)
    assert sampled[0] == sampled[1]
    assert passes[0][0] == (2, 39, 39)
    assert max(rows * new for rows, new, _ in passes[1]) <= 16


def test_one_prefill_computes_no_more_than_its_bound_and_the_rest_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "MAX_PREFILL_TOKENS", 8)
    batch = make_batch(Counting(), max_rows=5)
    pending = [make_request([n] * length) for n, length in enumerate((4, 2, 4, 9, 1))]
    batch.start(pending)
    assert [len(request.prompt) for request in batch.requests] == [4, 2, 4]
    batch.start(pending)
    assert [len(request.prompt) for request in pending] == [1]
    pending += [make_request([40, n]) for n in range(3)]
    batch.start(pending)
    assert (len(batch.requests), len(pending)) == (5, 3)


def test_the_last_row_moves_into_the_place_of_one_that_ended() -> None:
    batch = make_batch(Counting())
    batch.start([make_request([row], max_new_tokens=length) for row, length in enumerate((2, 1, 3, 3))])
    assert [request.prompt.tolist() for request in batch.step()] == [[1]]
    assert [request.prompt.tolist() for request in batch.requests] == [[0], [3], [2]]


def test_a_prompt_is_copied_from_a_live_row_that_has_moved() -> None:
    batch = make_batch(Counting())
    early, late = make_request(PROMPT), make_request(PROMPT)
    batch.start([make_request([9], max_new_tokens=1), early])
    batch.step()
    batch.start([late])
    finish(batch)
    assert late.token_ids == early.token_ids
    assert late.logprobs == pytest.approx(early.logprobs, abs=1e-5)


def test_more_requests_than_slots_wait_for_one() -> None:
    batch = make_batch(Counting(), max_rows=8, num_slots=2)
    pending = [make_request([n], max_new_tokens=2) for n in range(5)]
    ended = []
    while pending or batch.requests:
        batch.start(pending)
        assert len(batch.requests) <= 2
        ended += batch.step()
    assert sorted(request.prompt.tolist() for request in ended) == [[0], [1], [2], [3], [4]]
