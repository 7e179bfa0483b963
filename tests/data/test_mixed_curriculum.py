"""Tasks of several environments: their shares, an order of its own for each, levels of their own, exact resume."""

import json
import math
from collections import Counter
from typing import Any

import pytest

from agent_rl.config import CurriculumConfig
from agent_rl.data.curriculum import Curriculum, make_curriculum
from agent_rl.data.sampler import TaskSampler
from agent_rl.errors import CheckpointError, ConfigError

ENVS = ["a", "b", "a", "b", "a", "a", "c", "c"]
"""Of the tasks 0 to 7."""
SUCCESS = {"mode": "success", "threshold": 0.5, "window": 2, "review": 0.0}


def make(weights: dict[str, float], config: dict[str, Any] | None = None, *, seed: int = 0) -> Curriculum:
    tasks = [{"task_id": f"t{i}", "env": env, "level": 1 + i // 4} for i, env in enumerate(ENVS) if env in weights]
    return make_curriculum(tasks, CurriculumConfig.model_validate(config or {}), seed=seed, weights=weights)


def names_of(sampled: list[int]) -> str:
    return "".join(ENVS[task] for task in sampled)


def test_the_shares_follow_the_weights_in_every_step() -> None:
    assert names_of(make({"a": 2.0, "b": 1.0, "c": 1.0}).next(8, step=1)) == "abcaabca"
    mixed = make({"a": 3.0, "b": 1.5, "c": 1.5})
    for step in range(1, 9):
        assert Counter(names_of(mixed.next(4, step=step))) == {"a": 2, "b": 1, "c": 1}


def test_shares_of_less_than_one_task_a_step_add_up() -> None:
    mixed = make({"a": 9.0, "b": 1.0})
    counts = [names_of(mixed.next(2, step=step)).count("b") for step in range(1, 11)]
    assert sum(counts) == 2 and set(counts) == {0, 1}


def test_within_an_environment_the_order_is_that_of_a_run_in_it_alone() -> None:
    mixed, alone = make({"a": 1.0, "b": 1.0, "c": 1.0}, seed=5), TaskSampler(4, seed=5)
    sampled = [task for task in mixed.next(24, step=1) if ENVS[task] == "a"]
    assert sampled == [[0, 2, 4, 5][index] for index in alone.next(8)]


def test_a_loaded_state_continues_with_the_same_tasks() -> None:
    weights = {"a": 2.0, "b": 1.0, "c": 0.7}
    straight, stopped = make(weights), make(weights)
    assert straight.next(7, step=1) == stopped.next(7, step=1)
    resumed = make(weights)
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert [resumed.next(5, step=step) for step in (2, 3)] == [straight.next(5, step=step) for step in (2, 3)]


def test_with_other_weights_a_run_goes_on_by_these_and_makes_up_for_nothing() -> None:
    before = make({"a": 1.0, "b": 1.0, "c": 1.0})
    before.next(30, step=1)
    after = make({"a": 1.0, "b": 1.0, "c": 2.0})
    after.load_state_dict(before.state_dict())
    assert Counter(names_of(after.next(8, step=2))) == {"a": 2, "b": 2, "c": 4}


def test_a_state_of_other_environments_or_of_one_is_refused() -> None:
    both = make({"a": 1.0, "b": 1.0})
    with pytest.raises(CheckpointError, match="environments are a, b, this run's a, b, c"):
        make({"a": 1.0, "b": 1.0, "c": 1.0}).load_state_dict(both.state_dict())
    with pytest.raises(CheckpointError, match="none by name"):
        both.load_state_dict(TaskSampler(6, seed=0).state_dict())
    with pytest.raises(CheckpointError, match="environment 'a': the checkpoint's task order has seed 1"):
        both.load_state_dict(make({"a": 1.0, "b": 1.0}, seed=1).state_dict())


def test_an_environment_without_a_task_is_refused() -> None:
    with pytest.raises(ConfigError, match="no training task is of the environment 'd'"):
        make({"a": 1.0, "d": 1.0})


def test_every_environment_opens_its_own_levels() -> None:
    mixed = make({"a": 1.0, "b": 1.0}, SUCCESS)  # level 1: tasks 0 to 3; level 2: 4 and 5, of a
    sampled = mixed.next(4, step=1)
    assert sorted(sampled) == [0, 1, 2, 3]
    metrics = mixed.observe(sampled, [1.0 if ENVS[task] == "a" else 0.0 for task in sampled])
    assert metrics == {
        "env/a/curriculum/max_level": 1,
        "env/a/curriculum/success_at_max_level": 1.0,
        "env/b/curriculum/max_level": 1,
        "env/b/curriculum/success_at_max_level": 0.0,
    }
    assert sorted(mixed.next(4, step=2)) == [1, 3, 4, 5]
    assert mixed.observe([], [])["env/a/curriculum/max_level"] == 2


def test_the_environment_without_success_is_named_where_the_curriculum_needs_it() -> None:
    mixed = make({"a": 1.0, "b": 1.0}, SUCCESS)
    with pytest.raises(ConfigError, match=r"environment 'b': data.curriculum.mode = 'success'"):
        mixed.observe([0, 1], [1.0, math.nan])


def test_a_task_that_comes_twice_in_a_step_is_counted_twice() -> None:
    mixed = make({"a": 1.0, "b": 1.0}, SUCCESS)
    found = mixed.observe([0, 0], [1.0, 0.0])
    assert found["env/a/curriculum/success_at_max_level"] == 0.5
