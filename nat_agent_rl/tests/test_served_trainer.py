"""The example against the real `agent-rl serve-trainer`, which runs in the trainer's own interpreter (`make setup`)."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from conftest import HERE, KEY, Finetuning, free_port, the_error

ROOT = HERE.parents[1]
CLI = [str(ROOT / ".venv/bin/python"), "-m", "agent_rl.scripts.cli", "serve-trainer"]
PLACE = {"cwd": ROOT, "env": os.environ | {"PYTHONPATH": str(ROOT), "AGENT_RL_KEY": KEY, "OMP_NUM_THREADS": "1"}}
SMALL = ("run.name=served", "run.device=cpu", "train.steps=100", "policy.max_batch_size=16", "checkpoint.every=0")


class ServedTrainer:
    """`agent-rl serve-trainer` with the math model, as a process."""

    def __init__(self, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.log = folder / "server.log"
        options = ["--config", "configs/math_grpo.yaml", *SMALL, f"run.output_dir={folder}", "--port", str(port)]
        with self.log.open("w") as output:
            self.process = subprocess.Popen([*CLI, *options], **PLACE, stdout=output, stderr=output)
        deadline = time.monotonic() + 120
        while "serving the trainer" not in self.log.read_text():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedTrainer]:
    trainer = ServedTrainer(tmp_path)
    yield trainer
    trainer.end()


def test_the_example_trains_token_by_token_goes_on_and_says_when_the_server_is_lost(
    served: ServedTrainer, finetuning: Callable[[str], Finetuning], tmp_path: Path
) -> None:
    run = finetuning(served.url)
    text = (ROOT / "nat_agent_rl/example/math.yml").read_text(encoding="utf-8")
    run.config = yaml.safe_load(text.replace("http://127.0.0.1:8601", served.url))
    run.config["finetuning"] |= {"num_epochs": 2, "output_dir": "out"}
    run.config["trajectory_builders"]["builder"] |= {"rows_per_epoch": 4, "group_size": 4}
    run.config["eval"]["general"]["dataset"]["file_path"] = str(ROOT / "dataset/math_tasks/train.jsonl")
    held_out = tmp_path / "held.jsonl"
    held_out.write_text("".join((ROOT / "dataset/math_tasks/eval.jsonl").read_text().splitlines(keepends=True)[:8]))
    done = run.run("--validation_dataset", str(held_out))
    assert done.returncode == 0, done.stderr + served.log.read_text()
    assert run.run("-o", "finetuning.num_epochs", "1").returncode == 0

    epochs = run.epochs()
    assert [(epoch["epoch"], epoch["weight_version"]) for epoch in epochs] == [(0, 1), (1, 2), (2, 3)]
    for epoch in epochs:
        learned = epoch["trainer"]
        assert (learned["rollout/id_mismatches"], learned["rollout/new_contexts"]) == (0.0, 0.0)
        assert learned["mismatch/abs_log_diff_max"] < 1e-3
        assert learned["reward/mean"] == pytest.approx(epoch["reward"])
    assert any(epoch["trainer"]["optim/grad_norm"] > 0 for epoch in epochs)

    process = run.start("-o", "finetuning.num_epochs", "50")
    deadline = time.monotonic() + 60
    while len(run.epochs()) < 4:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    served.end()
    output, errors = process.communicate(timeout=60)
    assert served.url in the_error(subprocess.CompletedProcess(process.args, process.returncode, output, errors))
