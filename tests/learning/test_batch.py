import math

import pytest
import torch
from builders import episode, turn

from agent_rl.config import AlgorithmConfig
from agent_rl.learning.objective import LossInputs, to_rows
from agent_rl.learning.packing import move_batch
from agent_rl.learning.samples import assign_credit, build_samples, collect_samples, step_rewards
from agent_rl.records import Batch, Segment, StopReason, TrajectoryGroup


def batch_of(samples, num_trained):
    none = torch.zeros(0, dtype=torch.long)
    return Batch(
        token_ids=torch.tensor([5]),
        position_ids=torch.tensor([0]),
        segments=(Segment(0, 1),),
        sources=none,
        targets=none,
        predictions=none,
        num_trained=num_trained,
        samples=samples,
        most_trained=sum(num_trained),
        num_loss_tokens=9,
        num_samples=4,
    )


def test_the_turns_of_an_episode_become_one_sample():
    (built,), num_untrained = build_samples(episode(1.0, turn([7, 8], [5, 2], [-0.1, -0.2]), turn([9], [4], [-0.3])))
    assert built.token_ids == (7, 8, 5, 2, 9, 4)
    assert built.loss_mask == (0, 0, 1, 1, 0, 1)
    assert built.sampling_logprobs == (0.0, 0.0, -0.1, -0.2, 0.0, -0.3)
    assert built.advantages == (0.0,) * 6
    assert num_untrained == 0


def test_a_new_context_starts_a_new_sample():
    samples, _ = build_samples(episode(1.0, turn([7], [5]), turn([9], [4]), turn([1, 3], [6], new_context=True)))
    assert [s.token_ids for s in samples] == [(7, 5, 9, 4), (1, 3, 6)]
    assert [s.loss_mask for s in samples] == [(0, 1, 0, 1), (0, 0, 1)]


def test_a_new_context_on_the_first_turn_makes_no_empty_sample():
    samples, num_untrained = build_samples(episode(1.0, turn([7], [5], new_context=True)))
    assert [s.token_ids for s in samples] == [(7, 5)]
    assert num_untrained == 0


@pytest.mark.parametrize(
    ("reward", "stop_reason"),
    [(None, StopReason.FINISHED), (math.nan, StopReason.FINISHED), (1.0, StopReason.ENV_ERROR)],
)
def test_an_episode_without_a_score_gives_no_sample(reward, stop_reason):
    assert build_samples(episode(reward, turn([1], [2]), stop_reason=stop_reason)) == ([], 0)


def test_a_reward_of_zero_is_a_score():
    samples, _ = build_samples(episode(0.0, turn([1], [2])))
    assert [s.token_ids for s in samples] == [(1, 2)]


def test_samples_without_a_trained_token_are_dropped_and_counted():
    assert build_samples(episode(1.0, turn([1], []))) == ([], 1)
    assert build_samples(episode(1.0)) == ([], 1)
    samples, num_untrained = build_samples(episode(1.0, turn([1], [2]), turn([3], [], new_context=True)))
    assert [s.token_ids for s in samples] == [(1, 2)]
    assert num_untrained == 1


def test_a_weighted_part_that_no_episode_of_the_step_reports_counts_0():
    algorithm = AlgorithmConfig(advantage="gdpo", part_weights={"tests": 1.0, "format": 0.5})
    episodes = tuple(episode(1.0, turn([1], [2]), reward_parts={"format": float(i)}) for i in range(2))
    step = collect_samples([TrajectoryGroup(task_id="t", trajectories=episodes)])
    assert step_rewards(step, algorithm, token_penalties=None, values=None).parts_E["tests"].tolist() == [0, 0]
    (low, high), _ = assign_credit(step, algorithm)
    assert low.advantages[1] < 0 < high.advantages[1]
    none = collect_samples([TrajectoryGroup(task_id="t", trajectories=(episode(1.0, turn([1], [2])),) * 2)])
    assert [sample.advantages for sample in assign_credit(none, algorithm)[0]] == [(0.0, 0.0)] * 2


def test_lengths_that_disagree_are_refused():
    with pytest.raises(ValueError, match="2 ids but 1 log-probs"):
        build_samples(episode(1.0, turn([1], [2, 3], [-0.1])))


def test_a_sample_that_starts_with_a_sampled_id_is_refused():
    with pytest.raises(ValueError, match="its first turn needs prompt ids"):
        build_samples(episode(1.0, turn([], [2])))


def test_a_column_becomes_one_row_a_sample_and_back():
    column = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    rows, mask = to_rows(column, (2, 1, 1))
    assert rows.tolist() == [[1, 2], [3, 0], [4, 0]]
    assert mask.tolist() == [[True, True], [True, False], [True, False]]
    assert rows[mask].tolist() == [1, 2, 3, 4]
    (rows * torch.tensor([[1.0, 10.0], [100.0, 1000.0], [7.0, 7.0]])).sum().backward()
    assert column.grad.tolist() == [1, 10, 100, 7]


def test_no_sample_is_one_row_without_entries():
    rows, mask = to_rows(torch.zeros(0), ())
    assert rows.shape == mask.shape == (1, 0)


def inputs_of(*advantages):
    return LossInputs(sampling_logprobs=-torch.tensor(advantages), advantages=torch.tensor(advantages))


def test_samples_are_stacked_as_rows_with_their_logprobs():
    stacked = LossInputs.stack([inputs_of(4.0), inputs_of(2.0, 3.0)], torch.tensor([-0.1, -0.2, -0.3]), (1, 2))
    assert stacked.advantages.tolist() == [[4, 0], [2, 3]]
    assert stacked.sampling_logprobs.tolist() == [[-4, 0], [-2, -3]]
    assert stacked.logprobs[stacked.mask].tolist() == pytest.approx([-0.1, -0.2, -0.3])
    assert stacked.old_logprobs is stacked.ref_logprobs is stacked.returns is None


def test_a_sample_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"\[1\] .*\[2\]"):
        LossInputs.stack([inputs_of(1.0)], torch.zeros(2), (2,))


def test_a_moved_batch_is_the_same_on_another_device():
    moved = move_batch(batch_of((0,), (0,)), torch.device("meta"))
    assert moved.token_ids.device.type == moved.sources.device.type == "meta"
    assert moved.segments == (Segment(0, 1),)
