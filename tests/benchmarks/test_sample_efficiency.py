"""benchmarks/sample_efficiency.py: what was spent when a success is first reached."""

import json
from pathlib import Path

import pytest
from sample_efficiency import Spent, spent_by, table

from agent_rl.errors import DataError
from agent_rl.reports.run.data import read_run


def run_of(success: list[float]) -> Spent:
    spent = [float(step) for step in range(1, 1 + len(success))]
    return Spent(success, [10 * each for each in spent], [1e6 * each for each in spent], spent)


RISING = run_of([0.0, 0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0])


def test_the_mean_of_five_steps_has_to_reach_it() -> None:
    assert RISING.step_at(0.4) == 4
    assert RISING.step_at(0.6) == 5
    assert RISING.step_at(0.81) is None


def test_fewer_steps_than_a_window_reach_nothing() -> None:
    assert run_of([1.0] * 4).step_at(0.1) is None


def test_a_row_has_the_mean_of_its_seeds_and_is_empty_where_one_does_not_get_there() -> None:
    later = run_of([0.0, 0.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5])
    first, second = table({"both": [RISING, later]}, [0.4, 0.6]).splitlines()[2:]
    assert [cell.strip() for cell in first.split("|")[1:-1]] == ["both", "40%", "5, 6", "55", "5.50M", "5.5"]
    assert [cell.strip() for cell in second.split("|")[1:-1]] == ["both", "60%", "6, -", "", "", ""]


def test_a_run_is_read_from_its_metrics(tmp_path: Path) -> None:
    row = {"time": 0.0, "success/mean": 0.25, "rollout/num_episodes": 8, "rollout/tokens_mean": 100.0}
    rows = [row | {"step": step, "time/step_s": 30.0} for step in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    assert spent_by(read_run(tmp_path)) == Spent([0.25, 0.25], [8, 16], [800, 1600], [0.5, 1.0])


def test_a_run_of_another_training_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "time": 0.0, "loss": 1.0}\n')
    with pytest.raises(DataError, match="success/mean"):
        spent_by(read_run(tmp_path))
