"""A run that goes back to a checkpoint and is stopped there: it goes on as one that was not stopped."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import make_trainer
from fakes import save_tiny_model
from run_outcomes import lasting_metrics
from safetensors.torch import load_file

from agent_rl.distributed import checkpoint
from agent_rl.distributed.checkpoint import load_state, replace_state, save_checkpoint, verify_checkpoint
from agent_rl.telemetry.events import read_events

TASKS = [{"task_id": f"t{i}", "question": "post"} for i in range(64)]
OPTIONS = {
    "train": {"steps": 4, "schedule": "constant", "learning_rate": 1e-3},
    "rollout": {"group_size": 4, "groups_per_step": 2, "async_workers": 0},
    "checkpoint": {"every": 2, "resume": "auto"},
    "log": {
        # The reward is above -1 always: the alarm fires at step 3, and not again in the two steps after the way back.
        "alarms": [{"metric": "reward/mean", "above": -1.0, "steps": 3, "action": "rollback"}],
        "progress": False,
    },
}


def train(folder: Path, name: str, *, stop_after_rollback: bool = False) -> None:
    num_calls = 0

    def stop(_step: int, _metrics: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        if stop_after_rollback and num_calls == 3:
            raise KeyboardInterrupt

    with make_trainer(folder, tasks=TASKS, run={"name": name}, **OPTIONS) as trainer:
        trainer.train(on_step=stop)


def test_a_run_that_is_stopped_after_a_rollback_does_not_forget_it(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")
    train(tmp_path, "straight")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, "stopped", stop_after_rollback=True)
    straight, stopped = tmp_path / "runs/straight", tmp_path / "runs/stopped"
    path = stopped / "checkpoints/step_00002"
    state = load_state(path)
    assert (state["step"], state["num_rollbacks"], state["rate_factor"]) == (2, 1, 0.5)

    train(tmp_path, "stopped")
    events = [(event.kind, event.step) for event in read_events(stopped) if event.kind != "alarm"]
    assert events == [
        ("start", 0), ("checkpoint", 2), ("rollback", 3), ("interrupt", 2), ("resume", 2), ("checkpoint", 4), ("end", 4)
    ]  # fmt: skip
    assert [row["optim/learning_rate"] for row in lasting_metrics(stopped)] == [1e-3, 1e-3, 5e-4, 5e-4]
    assert lasting_metrics(stopped) == lasting_metrics(straight)
    weights = [load_file(run / "checkpoints/step_00004/model/model.safetensors") for run in (straight, stopped)]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def saved(folder: Path) -> Path:
    return save_checkpoint(
        folder, 2, write_model=lambda model: model.mkdir(), state={"rate_factor": 1.0}, keep=1, score=0.5
    )


def test_the_state_of_a_checkpoint_is_replaced_again_and_again_and_the_rest_stays(tmp_path: Path) -> None:
    path = saved(tmp_path)
    for rate_factor in (0.5, 0.25, 0.125):
        replace_state(path, {"rate_factor": rate_factor})
        assert load_state(path) == {"rate_factor": rate_factor}
        assert len(list(path.glob("trainer*.pt"))) == 1
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["step"], manifest["score"], list(manifest["files"])) == (2, 0.5, ["trainer_replaced.pt"])


@pytest.mark.parametrize("number", range(6))
def test_a_kill_at_any_moment_of_it_leaves_the_old_state_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The power goes at call `number` of those that reach the disk, of which the fifth moves the manifest."""
    path, calls = saved(tmp_path), []

    def dying(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            calls.append(function)
            if len(calls) > number:
                raise SystemExit
            return function(*arguments)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_fsync", dying(checkpoint._fsync))
        patch.setattr(checkpoint, "save_tensors", dying(checkpoint.save_tensors))
        patch.setattr(os, "replace", dying(os.replace))
        with pytest.raises(SystemExit):
            replace_state(path, {"rate_factor": 0.5})
    verify_checkpoint(path)
    assert load_state(path) == {"rate_factor": 1.0 if number < 5 else 0.5}
    replace_state(path, {"rate_factor": 0.25})
    assert load_state(path) == {"rate_factor": 0.25}
