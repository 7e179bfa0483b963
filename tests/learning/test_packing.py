"""Plans: what a micro-batch holds, that it keeps to its budget, and that the gradient of a step knows nothing of it."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import tiny_model

from agent_rl.learning.logprob_model import LogprobModel
from agent_rl.learning.packing import plan_micro_batches
from agent_rl.records import Segment, TrainingSample


def sample(prompt, rest, *, mask=None, advantage=1.0):
    """Trained on the whole rest unless a mask excludes tokens."""
    mask = (0,) * len(prompt) + (tuple(mask) if mask is not None else (1,) * len(rest))
    return TrainingSample(
        token_ids=(*prompt, *rest),
        loss_mask=mask,
        sampling_logprobs=(0.0,) * len(mask),
        advantages=tuple(advantage * trained for trained in mask),
    )


def plan(*samples, **options):
    (batches,) = plan_micro_batches(samples, **({"max_tokens": 1000} | options))
    return batches


def num_tokens(batches):
    return [len(batch.token_ids) for batch in batches]


# What a micro-batch holds


def test_samples_lie_one_after_the_other_without_unused_tokens():
    # The last trained ids, 2 and 4, are predicted but never read, nor is the 6 after the 4.
    (batch,) = plan(sample([7, 8], [5, 2]), sample([9], [3, 4, 6], mask=[1, 1, 0]))
    assert batch.token_ids.tolist() == [7, 8, 5, 9, 3]
    assert batch.position_ids.tolist() == [0, 1, 2, 0, 1]
    assert batch.segments == (Segment(0, 3), Segment(3, 2))
    assert batch.sources.tolist() == [1, 2, 3, 4]
    assert batch.targets.tolist() == [5, 2, 3, 4]
    assert (batch.num_trained, batch.samples, batch.most_trained) == ((2, 2), (0, 1), 4)
    assert (batch.num_loss_tokens, batch.num_samples) == (4, 2)


def test_a_common_prompt_is_computed_once():
    (batch,) = plan(sample([7, 8], [5, 2]), sample([7, 8], [4]), sample([7, 8], [6, 9, 1], mask=[1, 0, 1]))
    assert batch.token_ids.tolist() == [7, 8, 5, 6, 9]
    assert batch.position_ids.tolist() == [0, 1, 2, 2, 3]
    assert batch.segments == (Segment(0, 2), Segment(2, 1, prefix=0), Segment(3, 2, prefix=0))
    assert batch.sources[batch.predictions].tolist() == [1, 2, 1, 1, 4]
    assert batch.targets[batch.predictions].tolist() == [5, 2, 4, 6, 1]
    assert batch.num_trained == (2, 1, 2)


def test_trained_ids_in_common_are_computed_and_predicted_once():
    (batch,) = plan(sample([7, 8], [5, 2, 1]), sample([7, 8], [5, 3, 1]), sample([7, 8], [5, 2, 1]))
    assert batch.token_ids.tolist() == [7, 8, 5, 2, 3]
    assert batch.segments == (Segment(0, 3), Segment(3, 1, prefix=0), Segment(4, 1, prefix=0))
    assert (batch.sources.tolist(), batch.targets.tolist()) == ([1, 2, 2, 3, 4], [5, 2, 3, 1, 1])
    assert batch.predictions.tolist() == [0, 1, 3, 0, 2, 4, 0, 1, 3]
    assert batch.num_trained == (3, 3, 3)


def test_what_different_prompts_have_in_common_is_shared_too():
    (batch,) = plan(sample([7, 8, 1], [5, 2]), sample([7, 8, 2], [5]), sample([7, 8, 1], [6]), sample([9], [7]))
    assert batch.token_ids.tolist() == [7, 8, 1, 5, 2, 9]
    assert [(each.length, each.prefix) for each in batch.segments] == [(2, None), (1, 0), (1, 1), (1, 0), (1, None)]
    assert batch.sources[batch.predictions].tolist() == [2, 3, 4, 2, 5]


def test_a_prompt_that_goes_on_in_another_is_shared():
    (batch,) = plan(sample([7], [8, 5]), sample([7, 8], [5, 2]))
    assert batch.token_ids.tolist() == [7, 8, 5]
    assert batch.sources[batch.predictions].tolist() == [0, 1, 1, 2]


def test_prefixes_are_repeated_when_sharing_is_off():
    (batch,) = plan(sample([7, 8], [5]), sample([7, 8], [4]), share_prefixes=False)
    assert batch.token_ids.tolist() == [7, 8, 7, 8]
    assert batch.segments == (Segment(0, 2), Segment(2, 2))


# Budget


def test_a_group_stays_together_and_counts_its_prompt_once():
    first = [sample([1, 1, 1, 1], [token, 2]) for token in (5, 6, 7)]  # 4 + 3 = 7 tokens
    second = [sample([2, 2, 2, 2], [token, 2]) for token in (5, 6)]  # 4 + 2 = 6
    batches = plan(first[0], second[0], first[1], second[1], first[2], max_tokens=7)
    assert [batch.samples for batch in batches] == [(0, 2, 4), (1, 3)]
    assert num_tokens(batches) == [7, 6]


def test_a_group_above_the_budget_is_split():
    batches = plan(*(sample([1, 1, 1], [token, 2, 3]) for token in range(5)), max_tokens=7)
    assert num_tokens(batches) == [7, 7, 5]


def test_a_sample_above_the_budget_gets_a_micro_batch_of_its_own():
    batches = plan(sample([1], [2] * 3), sample([2], [2] * 9), sample([3], [2] * 3), max_tokens=6)
    assert [batch.samples for batch in batches] == [(1,), (0, 2)]


def test_padded_every_sample_counts_as_the_longest():
    samples = [sample([1], [2] * length) for length in (4, 3, 2)]
    assert [batch.samples for batch in plan(*samples, max_tokens=8, padded=True)] == [(0, 1), (2,)]
    assert [batch.samples for batch in plan(*samples, max_tokens=12, padded=True)] == [(0, 1, 2)]
    assert num_tokens(plan(*samples, max_tokens=12, padded=True)) == [9]


# Who takes part


def test_samples_without_advantage_are_left_out_but_counted():
    samples = [sample([1], [2, 3]), sample([1], [4, 5, 6], advantage=0.0)]
    (batch,) = plan(*samples)
    assert (batch.samples, batch.num_loss_tokens, batch.num_samples) == ((0,), 5, 2)
    (batch,) = plan(*samples, skip_zero_advantage=False)
    assert batch.samples == (0, 1)


def test_samples_without_a_trained_token_are_left_out_and_not_counted():
    samples = [sample([1], [2, 3]), sample([1], [4, 5], mask=[0, 0])]
    (batch,) = plan(*samples, skip_zero_advantage=False)
    assert (batch.samples, batch.num_loss_tokens, batch.num_samples) == ((0,), 2, 1)


def test_chosen_samples_are_the_whole_step():
    samples = [sample([1], [2] * length) for length in (1, 2, 3)]
    ((batch,),) = plan_micro_batches(samples, [2, 0], max_tokens=100)
    assert (batch.samples, batch.num_loss_tokens, batch.num_samples) == ((0, 2), 4, 2)


def test_nothing_to_train_on_is_no_micro_batch_on_any_rank():
    assert plan_micro_batches([sample([1], [2], advantage=0.0)], max_tokens=9, num_ranks=3) == [[], [], []]
    assert plan_micro_batches([sample([1], [2])], [], max_tokens=9) == [[]]


def test_a_sample_that_begins_with_a_trained_id_is_refused():
    with pytest.raises(ValueError, match="sample 1 begins with a trained id"):
        plan(sample([1], [2]), sample([], [2, 3]))


# Ranks


def test_a_rank_without_samples_keeps_the_others_company():
    ((real,), (filler,)) = plan_micro_batches([sample([1], [2, 3])], max_tokens=9, num_ranks=2)
    assert real.samples == (0,)
    assert (filler.samples, filler.num_trained, filler.token_ids.tolist()) == ((), (), [0])
    assert filler.segments == (Segment(0, 1),)
    assert len(filler.sources) == len(filler.targets) == 0
    assert (filler.most_trained, filler.num_loss_tokens, filler.num_samples) == (2, 2, 1)


def test_one_group_is_spread_over_all_ranks():
    samples = [sample([1] * 10, [token, *[2] * 20]) for token in range(8)]
    ranks = plan_micro_batches(samples, max_tokens=1000, num_ranks=4)
    assert [num_tokens(batches) for batches in ranks] == [[50]] * 4


def test_several_heavy_ranks_all_give_to_those_without_work():
    samples = [sample([prompt] * 10, [token, *[2] * 20]) for prompt in (1, 2) for token in range(4)]
    ranks = plan_micro_batches(samples, max_tokens=100, num_ranks=4)
    assert [num_tokens(batches) for batches in ranks] == [[50]] * 4


def test_groups_stay_whole_where_ranks_are_in_balance():
    samples = [sample([prompt] * 10, [token, *[2] * 20]) for prompt in (1, 2) for token in range(4)]
    ranks = plan_micro_batches(samples, max_tokens=1000, num_ranks=2)
    assert sorted(batch.samples for (batch,) in ranks) == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_the_heaviest_goes_to_the_rank_that_had_least():
    samples = [sample([prompt], [2] * length) for prompt, length in enumerate((9, 8, 7, 5))]
    ranks = plan_micro_batches(samples, max_tokens=9, num_ranks=2)
    assert [num_tokens(batches) for batches in ranks] == [[9, 5], [8, 7]]


@st.composite
def steps(draw):
    """Groups whose samples share a prompt, and often more; some ids between the sampled ones are read."""
    samples = []
    for group in range(draw(st.integers(1, 3))):
        prompt = [group + 1] * draw(st.integers(1, 5))
        for _ in range(draw(st.integers(1, 4))):
            mask = draw(st.lists(st.integers(0, 1), max_size=5))
            ids = st.integers(0, draw(st.sampled_from([0, 1, 63])))
            rest = draw(st.lists(ids, min_size=len(mask) + 1, max_size=len(mask) + 1))
            advantage = draw(st.sampled_from([-1.0, 0.0, 0.5]))
            samples.append(sample(prompt, rest, mask=[1, *mask], advantage=advantage))
    return samples


options = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 60),
        "share_prefixes": st.booleans(),
        "num_ranks": st.integers(1, 3),
        "skip_zero_advantage": st.booleans(),
        "padded": st.booleans(),
        "attention_cost": st.sampled_from([0.0, 0.05, 1.0]),
    }
)


def sampled_ids(of_sample):
    return [token for token, mask in zip(of_sample.token_ids, of_sample.loss_mask, strict=True) if mask]


def read_ids(of_sample):
    last = max(place for place, trained in enumerate(of_sample.loss_mask) if trained)
    return of_sample.token_ids[:last]


def cost(batch, *, padded):
    if not padded:
        return len(batch.token_ids)
    return len(batch.segments) * max(segment.length for segment in batch.segments)


@settings(max_examples=150, deadline=None)
@given(steps(), options)
def test_every_plan_holds_every_sample_once_within_the_budget_and_alike_on_all_ranks(samples, options):
    ranks = plan_micro_batches(samples, **options)
    assert len(ranks) == options["num_ranks"]
    assert len({len(batches) for batches in ranks}) == 1
    every = [batch for batches in ranks for batch in batches]
    included = [i for i, s in enumerate(samples) if any(s.advantages) or not options["skip_zero_advantage"]]
    assert sorted(index for batch in every for index in batch.samples) == included
    for batch in every:
        assert cost(batch, padded=options["padded"]) <= options["max_tokens"] or len(batch.samples) <= 1
        trained = [
            [t for t, m in zip(samples[i].token_ids, samples[i].loss_mask, strict=True) if m] for i in batch.samples
        ]
        assert batch.targets[batch.predictions].tolist() == [token for tokens in trained for token in tokens]
        assert batch.num_trained == tuple(len(tokens) for tokens in trained)
        assert batch.num_loss_tokens == sum(sum(s.loss_mask) for s in samples)
        if options["share_prefixes"] and not options["padded"] and batch.samples:
            read = [read_ids(samples[i]) for i in batch.samples]
            assert len(batch.token_ids) == len({ids[:end] for ids in read for end in range(1, len(ids) + 1)})
            assert len(set(zip(batch.sources.tolist(), batch.targets.tolist(), strict=True))) == len(batch.sources)
    assert {batch.most_trained for batch in every} <= {max((len(batch.predictions) for batch in every), default=0)}
    for turn in zip(*ranks, strict=True):
        assert any(batch.samples for batch in turn)


# The law: loss and gradient of a step do not depend on its plan


@cache
def scorer(padded):
    return LogprobModel(tiny_model("minimind", dtype=torch.float64), temperature=0.8, packed=not padded)


def loss_and_gradient(samples, options):
    """Of a loss in which every sample and every token weighs otherwise."""
    scored = scorer(options["padded"])
    scored.zero_grad()
    total = 0.0
    for batches in plan_micro_batches(samples, **options):
        for batch in batches:
            logprobs = scored(batch).logprobs
            weights = [(1 + index) * samples[index].advantages[-1] for index in batch.samples]
            parts = zip(weights, logprobs.split(batch.num_trained), strict=True) if batch.samples else ()
            loss = logprobs.sum() * 0 + sum(w * (part * torch.arange(1, len(part) + 1)).sum() for w, part in parts)
            loss = loss / batch.num_loss_tokens
            loss.backward()
            total += float(loss.detach())
    return total, [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in scored.parameters()]


@settings(max_examples=60, deadline=None)
@given(steps(), options)
def test_loss_and_gradient_do_not_depend_on_the_plan(samples, options):
    alone = {"max_tokens": 1, "share_prefixes": False, "skip_zero_advantage": False, "num_ranks": 1, "padded": True}
    expected_loss, expected = loss_and_gradient(samples, alone)
    loss, gradient = loss_and_gradient(samples, options)
    assert loss == pytest.approx(expected_loss, abs=1e-5)
    for got, wanted in zip(gradient, expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


# Work


def test_ranks_that_work_at_the_same_time_are_alike_in_work_and_not_only_in_tokens():
    """One sample of 41 ids and twelve of 11: with equal tokens, the long one's rank would attend to most pairs."""
    long = sample([1], range(100, 140))
    short = [sample([2 + number], range(10)) for number in range(12)]
    options = {"max_tokens": 160, "num_ranks": 2, "share_prefixes": False}

    def work(batch, attention_cost):
        return sum(s.length * (1 + attention_cost * s.length / 2) for s in batch.segments)

    with_long = []
    for attention_cost in (0.0, 0.2):
        (one,), (other,) = plan_micro_batches([long, *short], attention_cost=attention_cost, **options)
        loads = [work(batch, attention_cost) for batch in (one, other)]
        assert max(loads) - min(loads) <= 0.1 * max(loads)
        with_long.append(next(len(batch.token_ids) for batch in (one, other) if 0 in batch.samples))
    assert with_long[1] < with_long[0]
