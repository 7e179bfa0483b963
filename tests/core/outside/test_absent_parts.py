"""Weights of reward parts that no episode reports: told at the start, and no end of a run."""

from pathlib import Path

import pytest
from builders import episode, make_trainer
from fakes import save_tiny_model, tiny_config

from agent_rl.core.run.absent_parts import AbsentParts
from agent_rl.records import StopReason, TrajectoryGroup


def absent_of(folder: Path, **weights: float) -> AbsentParts:
    return AbsentParts(tiny_config(folder, algorithm={"advantage": "gdpo", "part_weights": weights}))


def step_with(parts: dict[str, float], reason: StopReason = StopReason.FINISHED) -> list[TrajectoryGroup]:
    return [TrajectoryGroup(task_id="t", trajectories=(episode(1.0, stop_reason=reason, reward_parts=parts),))]


def test_a_misspelt_part_is_told_at_the_first_step_and_at_every_doubling(tmp_path: Path) -> None:
    absent = absent_of(tmp_path, tools=0.5, worflow=0.5)
    told = [absent.sentences(step, step_with({"tools": 1.0, "workflow": 0.0})) for step in range(1, 6)]
    first = "no episode has the reward part 'worflow' of algorithm.part_weights"
    assert told == [
        [f"step 1: {first}, which counts 0; did you mean 'workflow'?"],
        [f"step 2: {first} for 2 steps, which counts 0; did you mean 'workflow'?"],
        [],
        [f"step 4: {first} for 4 steps, which counts 0; did you mean 'workflow'?"],
        [],
    ]


def test_a_part_that_was_seen_once_is_told_no_more(tmp_path: Path) -> None:
    absent = absent_of(tmp_path, tests=1.0, format=0.0)
    (sentence,) = absent.sentences(1, step_with({"success": 1.0}))
    assert sentence.endswith("'tests' of algorithm.part_weights, which counts 0; known: success")
    assert absent.sentences(2, step_with({"tests": 0.0})) == []
    assert [absent.sentences(step, step_with({"success": 1.0})) for step in (3, 4)] == [[], []]


def test_episodes_that_were_cut_off_tell_nothing(tmp_path: Path) -> None:
    absent = absent_of(tmp_path, tests=1.0)
    assert absent.sentences(1, step_with({}, StopReason.MAX_TOKENS)) == []
    assert absent.sentences(2, step_with({})) == [
        "step 2: no episode has the reward part 'tests' of algorithm.part_weights, which counts 0; they report none"
    ]


def test_a_run_goes_on_and_tells_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny_model(tmp_path / "model")
    algorithm = {"advantage": "gdpo", "part_weights": {"success": 1.0, "sucess": 1.0}}
    with make_trainer(tmp_path, algorithm=algorithm, train={"steps": 2}) as trainer:
        assert trainer.train()["step"] == 2
    assert "the reward part 'sucess' of algorithm.part_weights" in capsys.readouterr().out.replace("\n", " ")
