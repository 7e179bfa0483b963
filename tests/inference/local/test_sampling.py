"""Sampling by inverse transform: which token, which log-prob, and never one of probability zero."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.inference.local.batch import sample_tokens, sample_uniforms


def test_a_uniform_number_picks_the_token_whose_share_of_the_unit_interval_it_falls_into() -> None:
    logits = torch.tensor([0.5, 0.25, 0.25]).log().repeat(5, 1)
    ids, logprobs = sample_tokens(logits, torch.ones(5), torch.tensor([[0.0], [0.49], [0.51], [0.74], [0.76]]))
    assert ids[:, 0].tolist() == [0, 0, 1, 1, 2]
    assert logprobs[:, 0].exp().tolist() == pytest.approx([0.5, 0.5, 0.25, 0.25, 0.25])


def test_several_tokens_of_one_row_are_sampled_each_alone() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]]).log()
    ids, logprobs = sample_tokens(logits, torch.ones(2), torch.tensor([[0.9, 0.1, 0.6], [0.1, 0.9, 0.0]]))
    assert ids.tolist() == [[2, 0, 1], [2, 2, 2]]
    assert logprobs.exp().flatten().tolist() == pytest.approx([0.25, 0.5, 0.25, 1.0, 1.0, 1.0])


def test_temperature_two_takes_the_square_root_of_the_odds() -> None:
    logits = torch.tensor([[0.0, math.log(9.0)]])
    ids, logprobs = sample_tokens(logits, torch.tensor([2.0]), torch.tensor([[0.3]]))
    assert ids.tolist() == [[1]]
    assert logprobs.exp().item() == pytest.approx(3 / 4)


def test_temperature_zero_takes_the_largest_and_records_temperature_one() -> None:
    logits = torch.tensor([[math.log(1.0), math.log(3.0)]])
    ids, logprobs = sample_tokens(logits, torch.tensor([0.0]), torch.tensor([[0.0]]))
    assert ids.tolist() == [[1]]
    assert logprobs.exp().item() == pytest.approx(3 / 4)


@given(
    logits=st.lists(st.floats(-30, 30) | st.just(-math.inf), min_size=2, max_size=20).filter(
        lambda xs: max(xs) > -math.inf
    ),
    uniform=st.floats(0, 1 - 2**-24, width=32),
    temperature=st.sampled_from([0.5, 1.0, 3.0]),
)
@settings(max_examples=60, deadline=None)
def test_a_token_of_probability_zero_is_never_sampled(logits: list[float], uniform: float, temperature: float) -> None:
    ids, logprobs = sample_tokens(torch.tensor([logits]), torch.tensor([temperature]), torch.tensor([[uniform]]))
    assert logits[int(ids)] > -math.inf
    assert math.isfinite(logprobs.item())


def test_uniform_numbers_of_a_seed_never_change() -> None:
    assert sample_uniforms(7, 3) == pytest.approx([0.9449049, 0.6250955, 0.6841799], abs=1e-6)
    assert sample_uniforms(7, 2).tolist() == sample_uniforms(7, 3)[:2].tolist()
