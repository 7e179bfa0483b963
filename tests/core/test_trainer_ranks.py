"""Runs of several processes: each rolls out and trains on its share, one writes, and a resume is exact."""

import json
import os
from pathlib import Path

import pytest
import torch
from distributed.ranks import start_ranks
from fakes import LETTER_TASKS, LetterEnv, save_tiny_model, tiny_config
from run_outcomes import outcome
from safetensors.torch import load_file

from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.envs.base import EnvFactory

SETTINGS = {"overlap_comm": False, "reduce_bucket_size": 5000, "stage3_param_persistence_threshold": 0}


def run(folder: Path, name: str, steps: int, total: int) -> None:
    """A run of `total` steps from wherever it stands; with fewer `steps` it ends with the checkpoint of that step."""
    config = tiny_config(
        folder,
        run={"name": name},
        rollout={"group_size": 4, "groups_per_step": 3, "async_workers": 0},
        train={"steps": total, "epochs": 2},
        algorithm={"kl": {"coef": 0.1, "target": 0.001, "horizon": 64}, "correction": {"kind": "token_tis"}},
        eval={"temperatures": [1.0], "every": 2},
        checkpoint={"every": 2, "resume": "auto"},
    )
    with GRPOTrainer.from_config(
        config, env_factory=EnvFactory(LetterEnv), train_tasks=LETTER_TASKS, eval_tasks=LETTER_TASKS
    ) as trainer:
        save = trainer.save_checkpoint

        def save_and_end() -> None:
            save()
            if trainer.step == steps < total:
                os._exit(0)

        trainer.save_checkpoint = save_and_end
        trainer.train()


def launch(folder: Path, kind: str, name: str, steps: int, total: int) -> list[str]:
    """What each of two processes printed."""
    settings = None
    out = folder / f"{name}_{steps}"
    if kind.startswith("zero"):
        settings = folder / "deepspeed.json"
        settings.write_text(json.dumps({"zero_optimization": SETTINGS | {"stage": int(kind[-1])}}))
    ranks = start_ranks(run, folder, name, steps, total, folder=out, num=2, deepspeed_config=settings)
    codes = ranks.wait(timeout_s=110)
    assert codes == [0, 0], ranks.log(0) + ranks.log(1)
    return [ranks.log(0), ranks.log(1)]


@pytest.mark.parametrize("kind", ["zero3", "ddp"])
def test_stopped_and_resumed_a_run_of_two_processes_ends_the_same_bit_for_bit(tmp_path: Path, kind: str) -> None:
    save_tiny_model(tmp_path / "model")
    logs = launch(tmp_path, kind, "straight", 4, 4)
    launch(tmp_path, kind, "stopped", 2, 4)
    launch(tmp_path, kind, "stopped", 4, 4)
    straight, resumed = (outcome(tmp_path / "runs" / name, 4) for name in ("straight", "stopped"))
    assert straight == resumed
    assert [row["step"] for row in straight["metrics"] if "loss/policy" in row] == [1, 2, 3, 4]
    # All three groups of a step are known to both processes, and one of them alone reports them.
    assert all(row["batch/num_samples"] == 12 for row in straight["metrics"] if "loss/policy" in row)
    assert "step 4/4" in logs[0]
    assert "step" not in logs[1]
    # Tokens of both processes' episodes are logged, with what either of them computed of its share.
    logged = straight["samples"]
    assert list(logged) == ["step_00001.jsonl.gz", "step_00004.jsonl.gz"]
    columns = [sample for episode in logged["step_00001.jsonl.gz"] for sample in episode["samples"]]
    assert len(columns) == 12
    assert all(
        [value is None for value in each["trainer_logprobs"]] == [value is None for value in each["sampling_logprobs"]]
        and any(each["loss_mask"])
        and each["num_updates"] == 2  # one in each epoch; the KL makes one of samples without an advantage too
        for each in columns
    )
    start = load_file(tmp_path / "model/model.safetensors")
    end = load_file(tmp_path / "runs/straight/checkpoints/step_00004/model/model.safetensors")
    assert start.keys() == end.keys()
    assert not any(torch.equal(start[name], weight) for name, weight in end.items())
