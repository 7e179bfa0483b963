"""The curriculum: which levels a step may sample from, when the next one opens, and its exact resume."""

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.config import CurriculumConfig
from agent_rl.data.curriculum import Curriculum, make_curriculum
from agent_rl.data.sampler import TaskSampler
from agent_rl.errors import CheckpointError, ConfigError

LEVELS = [1, 1, 1, 2, 2, 2, 2, 4, 4]
STAGES = {"mode": "stages", "stages": [{"until_step": 2, "max_level": 1}, {"until_step": 3, "max_level": 2}]}
SUCCESS = {"mode": "success", "threshold": 0.5, "window": 3, "review": 0.25}


def make(config: dict[str, Any], levels: Sequence[int] = LEVELS, *, seed: int = 0) -> Curriculum:
    tasks = [{"task_id": f"t{i}", "level": level} for i, level in enumerate(levels)]
    return make_curriculum(tasks, CurriculumConfig.model_validate(config), seed=seed)


def levels_of(sampled: Sequence[int]) -> list[int]:
    return sorted(LEVELS[task] for task in sampled)


def run_step(curriculum: Curriculum, step: int, n: int, rate: float | None) -> tuple[list[int], dict[str, float]]:
    """Sample `n` tasks that all end with one success rate."""
    sampled = curriculum.next(n, step=step)
    return sampled, curriculum.observe(sampled, [rate] * n)


# Off


def test_without_a_curriculum_samples_and_state_are_the_samplers_own() -> None:
    curriculum, sampler = make({}), TaskSampler(9, seed=0)
    for step in (1, 2, 3):
        sampled, metrics = run_step(curriculum, step, 4, 1.0)
        assert sampled == sampler.next(4)
        assert metrics == {}
    assert curriculum.state_dict() == sampler.state_dict()
    assert curriculum.observe([0], [math.nan]) == {}


def test_without_a_curriculum_rows_need_no_level() -> None:
    curriculum = make_curriculum([{"task_id": "a"}, {"task_id": "b"}], CurriculumConfig(), seed=0)
    assert sorted(curriculum.next(2, step=1)) == [0, 1]


# Stages


def test_stages_sample_up_to_their_level_through_their_last_step_and_then_from_all() -> None:
    curriculum = make(STAGES)
    sampled = [levels_of(curriculum.next(n, step=step)) for step, n in ((1, 3), (2, 3), (3, 7), (4, 9))]
    assert sampled == [[1, 1, 1], [1, 1, 1], [1, 1, 1, 2, 2, 2, 2], LEVELS]


def test_a_stage_whose_level_no_task_has_goes_up_to_the_level_below() -> None:
    curriculum = make({"mode": "stages", "stages": [{"until_step": 5, "max_level": 3}]})
    sampled, metrics = run_step(curriculum, 1, 7, 1.0)
    assert levels_of(sampled) == [1, 1, 1, 2, 2, 2, 2]
    assert metrics["curriculum/max_level"] == 2


def test_the_metrics_of_a_stage_are_of_the_steps_groups_at_its_highest_level() -> None:
    curriculum = make(STAGES)
    curriculum.next(7, step=3)
    tasks, rates = [0, 3, 4, 5], [1.0, 0.5, 0.0, None]
    assert curriculum.observe(tasks, rates) == {"curriculum/max_level": 2, "curriculum/success_at_max_level": 0.25}
    assert curriculum.observe([0], [1.0]) == {"curriculum/max_level": 2}
    assert curriculum.observe(tasks, [math.nan] * len(tasks)) == {"curriculum/max_level": 2}


def test_a_first_stage_that_opens_no_task_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_level 0 opens no task, the lowest level in the training tasks is 1"):
        make({"mode": "stages", "stages": [{"until_step": 5, "max_level": 0}]})


# Success


def test_success_starts_at_the_lowest_level_and_opens_the_next_there_is() -> None:
    curriculum = make(SUCCESS | {"review": 0.0})
    seen = []
    for step in range(1, 5):
        sampled, metrics = run_step(curriculum, step, 3, 1.0)
        seen.append((set(levels_of(sampled)), metrics["curriculum/max_level"]))
    assert seen == [({1}, 1), ({2}, 2), ({4}, 4), ({4}, 4)]


@pytest.mark.parametrize(
    ("rates", "opens"),
    [
        ([0.5, 0.5, 0.5], True),  # the threshold itself is enough
        ([0.5, 0.5, 0.4], False),
        ([1.0, 1.0], False),  # the window is not full
        ([0.0, 0.0, 0.5, 0.5, 0.5], True),  # only the newest three count
        ([1.0, 1.0, None], False),  # a group that could not be scored does not fill the window
        ([1.0, 1.0, None, 0.0], True),
    ],
)
def test_a_level_opens_when_the_mean_over_a_full_window_reaches_the_threshold(rates: list, opens: bool) -> None:
    curriculum = make(SUCCESS)
    curriculum.observe([0] * len(rates), rates)
    assert curriculum.observe([], [])["curriculum/max_level"] == (2 if opens else 1)


def test_only_the_highest_open_level_counts_and_a_new_level_starts_an_empty_window() -> None:
    curriculum = make(SUCCESS)
    assert curriculum.observe([0, 1, 2], [0.6, 0.6, 0.9]) == {
        "curriculum/max_level": 1,
        "curriculum/success_at_max_level": pytest.approx(0.7),
    }
    review = curriculum.observe([0, 1, 2, 0], [1.0] * 4)
    assert review == {"curriculum/max_level": 2}
    mixed = curriculum.observe([0, 3, 4], [1.0, 0.25, 0.75])
    assert mixed == {"curriculum/max_level": 2, "curriculum/success_at_max_level": 0.5}


@pytest.mark.parametrize(("n", "review", "expected"), [(4, 0.25, [1] * 8), (1, 0.25, None), (8, 0.5, [4] * 8)])
def test_review_gets_its_share_of_samples(n: int, review: float, expected: list[int] | None) -> None:
    curriculum = make(SUCCESS | {"review": review})
    run_step(curriculum, 1, 3, 1.0)
    from_review = [levels_of(curriculum.next(n, step=2)).count(1) for _ in range(8)]
    assert sum(from_review) == 8 * n * review
    assert expected is None or from_review == expected


def test_review_samples_from_all_earlier_levels() -> None:
    curriculum = make(SUCCESS | {"review": 0.5})
    for step in (1, 2):
        curriculum.next(3, step=step)
        curriculum.observe([{1: 0, 2: 3}[step]] * 3, [1.0] * 3)
    sampled = curriculum.next(14, step=3)
    assert levels_of(sampled) == [1, 1, 1, 2, 2, 2, 2] + [4] * 7


def test_an_environment_that_reports_no_success_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the environment reports no success; have it put 'success' \(0 or 1\)"):
        make(SUCCESS).observe([0], [math.nan])


# Rows, and going on from a checkpoint


@pytest.mark.parametrize("row", [{}, {"level": "2"}, {"level": True}, {"level": None}, {"level": 1.0}])
@pytest.mark.parametrize("config", [STAGES, SUCCESS])
def test_a_row_without_an_integer_level_is_refused_by_its_id(row: dict[str, Any], config: dict[str, Any]) -> None:
    tasks = [{"task_id": "a", "level": 1}, {"task_id": "b"} | row]
    with pytest.raises(ConfigError, match=r"training task 'b': level is .* needs an integer in every row"):
        make_curriculum(tasks, CurriculumConfig.model_validate(config), seed=0)


steps = st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0.0, 0.4, 1.0, None])), max_size=8)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([{}, STAGES, SUCCESS]), steps, steps)
def test_a_resumed_curriculum_goes_on_like_an_uninterrupted_one(config: dict, before: list, after: list) -> None:
    curriculum, resumed = make(config), make(config)
    for step, (n, rate) in enumerate(before, 1):
        run_step(curriculum, step, n, rate)
    saved = repr(state := curriculum.state_dict())
    resumed.load_state_dict(state)
    for step, (n, rate) in enumerate(after, len(before) + 1):
        assert run_step(resumed, step, n, rate) == run_step(curriculum, step, n, rate)
    assert resumed.state_dict() == curriculum.state_dict()
    assert repr(state) == saved  # what was saved does not change while the run goes on


def test_the_state_holds_the_open_level_and_the_recent_rates() -> None:
    curriculum = make(SUCCESS)
    run_step(curriculum, 1, 3, 1.0)
    sampled = curriculum.next(4, step=2)
    curriculum.observe(sampled, [0.4] * 4)
    state = curriculum.state_dict()
    assert (state["mode"], state["max_level"], state["window"], state["num_sampled"]) == ("success", 2, [0.4] * 3, 4)
    assert state["num_tasks_by_level"] == {1: 3, 2: 4, 4: 2}
    assert [pool["num_tasks"] for pool in state["pools"]] == [4, 3]
    json.dumps(state)


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        (make({}), r"made with data\.curriculum\.mode 'off', this run has 'success'"),
        (make(STAGES), r"mode 'stages', this run has 'success'"),
        (make(SUCCESS, [1, 1, 2]), r"tasks by level are \{1: 2, 2: 1\}, this run's are \{1: 3, 2: 4, 4: 2\}"),
        (make(SUCCESS, seed=1), "seed 1, this run has 0"),
    ],
)
def test_the_state_of_another_run_is_refused(saved: Curriculum, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        make(SUCCESS).load_state_dict(saved.state_dict())


def test_a_run_without_a_curriculum_does_not_go_on_from_one_with() -> None:
    with pytest.raises(CheckpointError, match="mode 'success', this run has 'off'"):
        make({}).load_state_dict(make(SUCCESS).state_dict())
