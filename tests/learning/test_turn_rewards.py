"""From the turns of episodes to advantages by turn: which token is of which turn, and what each turn earned."""

import pytest
from builders import episode, turn

from agent_rl.config import AlgorithmConfig
from agent_rl.learning.samples import assign_credit, collect_samples
from agent_rl.records import TrajectoryGroup

BY_TURN = AlgorithmConfig(advantage="rloo", credit="turn")


def advantages_of(*episodes, algorithm: AlgorithmConfig = BY_TURN) -> list[list[float]]:
    step = collect_samples([TrajectoryGroup(task_id="t", trajectories=episodes)])
    samples, _ = assign_credit(step, algorithm)
    return [
        [value for value, mask in zip(sample.advantages, sample.loss_mask, strict=True) if mask] for sample in samples
    ]


def test_the_tokens_of_a_turn_get_what_it_and_later_ones_earned() -> None:
    # Outcomes 1 and 0 -> 1, -1; first turns 0 and 2 -> -2, 2.
    first = episode(1.0, turn(sampled=(5, 6), reward=0.0), turn(sampled=(7,), reward=1.0))
    second = episode(2.0, turn(sampled=(5,), reward=2.0), turn(sampled=(8, 9), reward=0.0))
    assert advantages_of(first, second) == [[-1.0, -1.0, 1.0], [1.0, -1.0, -1.0]]


def test_the_last_turn_has_what_is_left_of_the_reward() -> None:
    """As where an agent elsewhere is scored when it ended, and its turns were given nothing."""
    first = episode(1.0, turn(sampled=(5,)), turn(sampled=(7,)))
    second = episode(0.0, turn(sampled=(5,)), turn(sampled=(7,)))
    assert advantages_of(first, second) == [[1.0, 1.0], [-1.0, -1.0]]


def test_a_turn_without_tokens_hands_its_reward_on() -> None:
    first = episode(3.0, turn(sampled=(5,)), turn(sampled=(), reward=3.0), turn(sampled=(6,)), turn(sampled=(7,)))
    second = episode(0.0, turn(sampled=(5,)), turn(sampled=(6,)), turn(sampled=(7,)))
    assert advantages_of(first, second) == [[3.0, 3.0, 0.0], [-3.0, -3.0, 0.0]]


def test_a_new_context_begins_a_sample_and_no_new_count_of_turns() -> None:
    first = episode(2.0, turn(sampled=(5,), reward=2.0), turn(sampled=(6, 7), new_context=True))
    second = episode(0.0, turn(sampled=(5,)), turn(sampled=(6,)))
    assert advantages_of(first, second) == [[2.0], [0.0, 0.0], [-2.0, 0.0]]


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_the_weight_is_the_configurations(weight: float) -> None:
    algorithm = AlgorithmConfig(advantage="rloo", credit="turn", turn_weight=weight)
    first = episode(2.0, turn(sampled=(5,), reward=2.0), turn(sampled=(6,)))
    second = episode(0.0, turn(sampled=(5,)), turn(sampled=(6,)))
    assert advantages_of(first, second, algorithm=algorithm) == [[2.0 * weight, 0.0], [-2.0 * weight, 0.0]]


def test_by_episode_the_rewards_are_one_outcome() -> None:
    first = episode(2.0, turn(sampled=(5,), reward=2.0), turn(sampled=(6,)))
    second = episode(0.0, turn(sampled=(5,)), turn(sampled=(6,)))
    assert advantages_of(first, second, algorithm=AlgorithmConfig(advantage="rloo")) == [[2.0, 2.0], [-2.0, -2.0]]
