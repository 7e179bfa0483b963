"""What is shipped matches the documents: the trained NAT model against its warm start, by the real toolkit."""

import json
from pathlib import Path

import pytest

from agent_rl.scripts.evaluate_model import main

ROOT = Path(__file__).resolve().parents[2]
NUM_TASKS = 48


@pytest.mark.long
def test_the_shipped_trained_model_solves_held_out_tasks_that_its_warm_start_does_not(tmp_path: Path) -> None:
    main(
        ROOT / "configs/nat_grpo.yaml",
        tmp_path,
        checkpoint=[str(ROOT / "model/nat_minimind_grpo")],
        baseline=str(ROOT / "model/nat_minimind"),
        max_tasks=NUM_TASKS,
    )
    compared = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["comparison"]
    assert compared["num_tasks"] == NUM_TASKS
    assert compared["after"] >= 0.85
    assert compared["before"] <= 0.6
    assert compared["p_value"] < 0.001
