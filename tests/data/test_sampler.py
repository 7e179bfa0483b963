import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.data.sampler import TaskSampler
from agent_rl.errors import CheckpointError

quick = settings(max_examples=60, deadline=None)
sizes = st.integers(1, 9)
batches = st.lists(st.integers(0, 9), min_size=1, max_size=8)


def test_without_shuffling_tasks_come_in_file_order_epoch_after_epoch():
    sampler = TaskSampler(3, seed=0, shuffle=False)
    assert [sampler.next(2), sampler.next(1), sampler.next(3)] == [[0, 1], [2], [0, 1, 2]]


def test_a_task_met_twice_in_one_batch_waits_for_the_next_batch():
    sampler = TaskSampler(3, seed=0, shuffle=False)
    assert sampler.next(2) == [0, 1]
    assert sampler.next(3) == [2, 0, 1]
    assert sampler.next(3) == [2, 0, 1]  # the second epoch's 2 was held back, and is still sampled


@pytest.mark.parametrize("num_tasks", [20, 21])
def test_epochs_and_seeds_give_different_orders(num_tasks):
    first, other_seed = TaskSampler(num_tasks, seed=1), TaskSampler(num_tasks, seed=2)
    orders = [first.next(num_tasks), first.next(num_tasks), other_seed.next(num_tasks)]
    assert len({tuple(order) for order in orders}) == 3
    assert TaskSampler(num_tasks, seed=1).next(num_tasks) == orders[0]


@quick
@given(sizes, batches, st.booleans())
def test_every_epoch_visits_every_task_once(num_tasks, batches, shuffle):
    sampler = TaskSampler(num_tasks, seed=3, shuffle=shuffle)
    sampled = [task for n in batches for task in sampler.next(n)]
    sampled += sampler.next(-len(sampled) % num_tasks)
    assert len(sampled) % num_tasks == 0
    assert all(sampled.count(task) == len(sampled) // num_tasks for task in range(num_tasks))


@quick
@given(sizes, batches)
def test_no_task_is_twice_in_a_batch_that_the_tasks_can_fill(num_tasks, batches):
    sampler = TaskSampler(num_tasks, seed=5)
    for n in batches:
        sampled = sampler.next(n)
        assert len(sampled) == n
        assert len(set(sampled)) == min(n, num_tasks)


@quick
@given(sizes, batches, batches)
def test_a_resumed_sampler_samples_the_same_as_an_uninterrupted_one(num_tasks, before, after):
    sampler = TaskSampler(num_tasks, seed=7)
    for n in before:
        sampler.next(n)
    resumed = TaskSampler(num_tasks, seed=7)
    saved = json.dumps(sampler.state_dict())
    state = json.loads(saved)
    resumed.load_state_dict(state)
    assert [resumed.next(n) for n in after] == [sampler.next(n) for n in after]
    assert json.dumps(state) == saved  # sampling must not have changed the state that was handed over


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (TaskSampler(5, seed=0), "num_tasks 4, this run has 5"),
        (TaskSampler(4, seed=1), "seed 0, this run has 1"),
        (TaskSampler(4, seed=0, shuffle=False), "shuffle True, this run has False"),
    ],
)
def test_the_state_of_another_run_is_refused(other, words):
    with pytest.raises(CheckpointError, match=words):
        other.load_state_dict(TaskSampler(4, seed=0).state_dict())


def test_a_sampler_without_tasks_is_refused():
    with pytest.raises(ValueError, match="at least one task"):
        TaskSampler(0, seed=0)
