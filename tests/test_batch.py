import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.agent.messages import Message
from agent_rl.algorithms.losses import aggregate_loss, policy_loss
from agent_rl.core.batch import build_samples, make_micro_batches
from agent_rl.records import (
    Completion,
    FinishReason,
    StopReason,
    TrainingSample,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

PAD = 99


def turn(prompt, drawn, logprobs=None, new_context=False):
    return Turn(
        prompt_token_ids=tuple(prompt),
        completion=Completion(
            token_ids=tuple(drawn),
            logprobs=tuple(logprobs if logprobs is not None else [-0.5] * len(drawn)),
            finish_reason=FinishReason.STOP,
            weight_version=0,
        ),
        message=Message.assistant("reply"),
        env_messages=(),
        new_context=new_context,
    )


def episode(*turns, reward=1.0, stop_reason=StopReason.FINISHED):
    return Trajectory(task_id="t", group_id="g", turns=tuple(turns), stop_reason=stop_reason, reward=reward)


def group(*episodes):
    return TrajectoryGroup(task_id="t", trajectories=tuple(episodes))


def sample(length, advantage=1.0, num_read=1):
    mask = (0,) * num_read + (1,) * (length - num_read)
    return TrainingSample(
        token_ids=tuple(range(10, 10 + length)),
        loss_mask=mask,
        sampling_logprobs=tuple(-0.1 * m for m in mask),
        advantages=tuple(advantage * m for m in mask),
    )


def test_the_turns_of_an_episode_become_one_sample():
    played = episode(turn([7, 8], [5, 2], [-0.1, -0.2]), turn([9], [4], [-0.3]))
    (built,), num_untrained = build_samples(group(played), [0.5])
    assert built.token_ids == (7, 8, 5, 2, 9, 4)
    assert built.loss_mask == (0, 0, 1, 1, 0, 1)
    assert built.sampling_logprobs == (0.0, 0.0, -0.1, -0.2, 0.0, -0.3)
    assert built.advantages == (0.0, 0.0, 0.5, 0.5, 0.0, 0.5)
    assert num_untrained == 0


def test_a_new_context_starts_a_new_sample_with_the_same_advantage():
    played = episode(turn([7], [5]), turn([9], [4]), turn([1, 3], [6], new_context=True))
    samples, _ = build_samples(group(played), [-2.0])
    assert [s.token_ids for s in samples] == [(7, 5, 9, 4), (1, 3, 6)]
    assert [s.advantages for s in samples] == [(0.0, -2.0, 0.0, -2.0), (0.0, 0.0, -2.0)]


def test_a_new_context_on_the_first_turn_makes_no_empty_sample():
    samples, num_untrained = build_samples(group(episode(turn([7], [5], new_context=True))), [1.0])
    assert [s.token_ids for s in samples] == [(7, 5)]
    assert num_untrained == 0


def test_episodes_without_a_score_give_no_sample():
    played = group(
        episode(turn([1], [11])),
        episode(turn([1], [12]), reward=None),
        episode(turn([1], [13]), reward=float("nan")),
        episode(turn([1], [14]), stop_reason=StopReason.ENV_ERROR),
        episode(turn([1], [15]), reward=0.0),
    )
    samples, num_untrained = build_samples(played, torch.tensor([1.0, 0.0, 0.0, 0.0, -1.0]))
    assert [s.token_ids[-1] for s in samples] == [11, 15]
    assert [s.advantages[-1] for s in samples] == [1.0, -1.0]
    assert num_untrained == 0


def test_samples_without_a_trained_token_are_dropped_and_counted():
    played = group(episode(turn([1], [])), episode(), episode(turn([1], [2])))
    samples, num_untrained = build_samples(played, [1.0, 1.0, 1.0])
    assert [s.token_ids for s in samples] == [(1, 2)]
    assert num_untrained == 2


def test_lengths_that_disagree_are_refused():
    with pytest.raises(ValueError, match="2 advantages for 1 trajectories"):
        build_samples(group(episode(turn([1], [2]))), [1.0, 1.0])
    with pytest.raises(ValueError, match="2 ids but 1 log-probs"):
        build_samples(group(episode(turn([1], [2, 3], [-0.1]))), [1.0])


def test_a_sample_that_starts_with_a_drawn_id_is_refused():
    with pytest.raises(ValueError, match="starts with a drawn id"):
        build_samples(group(episode(turn([], [2]))), [1.0])


def test_a_batch_is_padded_on_the_right_and_aligned_with_its_ids():
    (batch,) = make_micro_batches([sample(2, 3.0), sample(4, -1.0)], max_tokens=8, pad_id=PAD)
    assert batch.token_ids.tolist() == [[10, 11, 12, 13], [10, 11, PAD, PAD]]
    assert batch.loss_mask.tolist() == [[False, True, True, True], [False, True, False, False]]
    assert batch.advantages.tolist() == [[0, -1, -1, -1], [0, 3, 0, 0]]
    torch.testing.assert_close(
        batch.sampling_logprobs, torch.tensor([[0, -0.1, -0.1, -0.1], [0, -0.1, 0, 0]]), atol=1e-7, rtol=0
    )
    assert (batch.num_loss_tokens, batch.num_samples) == (4, 2)


def test_a_sample_longer_than_the_budget_gets_a_batch_of_its_own():
    batches = make_micro_batches([sample(3), sample(9), sample(3)], max_tokens=6, pad_id=PAD)
    assert [tuple(b.token_ids.shape) for b in batches] == [(1, 9), (2, 3)]


def test_samples_without_advantage_are_skipped_but_counted_in_the_denominators():
    samples = [sample(3, 1.0), sample(5, 0.0)]
    (batch,) = make_micro_batches(samples, max_tokens=100, pad_id=PAD)
    assert tuple(batch.token_ids.shape) == (1, 3)
    assert (batch.num_loss_tokens, batch.num_samples) == (6, 2)
    (whole,) = make_micro_batches(samples, max_tokens=100, pad_id=PAD, skip_zero_advantage=False)
    assert tuple(whole.token_ids.shape) == (2, 5)
    assert make_micro_batches([sample(5, 0.0)], max_tokens=100, pad_id=PAD) == []


samples_of_a_step = st.lists(
    st.builds(sample, length=st.integers(2, 9), advantage=st.sampled_from([-1.0, 0.0, 0.5])), min_size=1, max_size=8
)


@settings(max_examples=40, deadline=None)
@given(samples_of_a_step, st.integers(1, 40))
def test_every_sample_is_in_exactly_one_batch_within_the_budget(samples, max_tokens):
    batches = make_micro_batches(samples, max_tokens=max_tokens, pad_id=PAD, skip_zero_advantage=False)
    pairs = [pair for b in batches for pair in zip(b.token_ids, b.advantages, strict=True)]
    rows = [(ids[ids != PAD].tolist(), float(advantages[1])) for ids, advantages in pairs]
    assert sorted(rows) == sorted((list(s.token_ids), s.advantages[1]) for s in samples)
    for batch in batches:
        assert batch.token_ids.numel() <= max_tokens or len(batch.token_ids) == 1
        assert batch.num_loss_tokens == sum(len(s.token_ids) - 1 for s in samples)
        assert batch.num_samples == len(samples)


@settings(max_examples=40, deadline=None)
@given(samples_of_a_step, st.integers(1, 40), st.booleans(), st.sampled_from(["token_mean", "seq_mean_token_mean"]))
def test_the_gradient_of_a_step_does_not_depend_on_its_batches(samples, max_tokens, skip, mode):
    def gradient(max_tokens, skip):
        """Of one parameter per id, used as the trainer's log-prob of that id."""
        logprob_of_id = torch.linspace(-0.3, 0.1, PAD + 1).double().requires_grad_()
        total = logprob_of_id.sum() * 0
        for b in make_micro_batches(samples, max_tokens=max_tokens, pad_id=PAD, skip_zero_advantage=skip):
            token_loss = policy_loss(
                logprob_of_id[b.token_ids], b.sampling_logprobs, b.advantages, b.loss_mask, clip_low=0.2, clip_high=0.28
            )
            counts = {"num_loss_tokens": b.num_loss_tokens, "num_samples": b.num_samples}
            total = total + aggregate_loss(token_loss, b.loss_mask, mode, **counts)
        return torch.autograd.grad(total, logprob_of_id)[0]

    torch.testing.assert_close(gradient(max_tokens, skip), gradient(10_000, False), atol=1e-9, rtol=0)
