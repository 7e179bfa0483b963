"""The whole way by the commands that a person types, each in a process of its own and reading what the one before
wrote: task files, checks, a warm start, a run that is killed and resumed, an evaluation, a report, the viewer."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urljoin

import pytest
import yaml
from builders import ROOT
from run_outcomes import lasting_metrics

AGENT_RL = [sys.executable, "-m", "agent_rl.scripts.cli"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
STEPS = 6
SMALL = [
    "data.train_path=tasks/train.jsonl", "data.eval_path=tasks/eval.jsonl", "model.path=warm", "run.name=tiny",
    "rollout.groups_per_step=2", "rollout.group_size=4", "rollout.async_workers=0", f"train.steps={STEPS}",
    "train.warmup_steps=0", "checkpoint.every=1", "checkpoint.keep=2", "eval.temperatures=[0]", "log.samples_every=1",
]  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [*AGENT_RL, *words], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def kill_after_steps(folder: Path, words: Sequence[str], checkpoints: Path, number: int) -> None:
    """Start a command, and `kill -9` it with its children once a step has its checkpoint."""
    program = subprocess.Popen(
        [*AGENT_RL, *words], cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 900  # for hangs
    try:
        while not (checkpoints / f"step_{number:05d}").is_dir():
            assert program.poll() is None, "the run ended by itself"
            assert time.monotonic() < deadline, "no checkpoint is written"
            time.sleep(0.01)
    finally:
        os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def pages_of(folder: Path, run_folder: str) -> list[str]:
    """What `agent-rl view` serves: its page, and the list of the run's episodes."""
    viewer = subprocess.Popen(
        [*AGENT_RL, "view", run_folder, "--no-browser"], cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    try:
        address = next(word for word in viewer.stdout.readline().split() if word.startswith("http"))
        addresses = (address, urljoin(address, "api/runs"))
        return [urllib.request.urlopen(each, timeout=400).read().decode() for each in addresses]
    finally:
        viewer.send_signal(signal.SIGINT)
        assert viewer.wait(timeout=400) == 130


def test_from_task_files_to_the_viewer(tmp_path: Path) -> None:
    run(tmp_path, "prepare-tasks", "--domain", "math", "--output-dir", "tasks", "--num-train", "60", "--num-eval", "12")
    checked = run(tmp_path, "check-data", "--config", "configs/math_grpo.yaml", "tasks/train.jsonl", "tasks/eval.jsonl")
    assert "72 of 72 (100.0 %)" in checked
    warm = ["--num-demonstrations", "640", "--hidden-size", "64", "--num-layers", "2"]
    run(tmp_path, "sft", "--domain", "math", "--output-dir", "warm", *warm)

    train = ["train", "--config", "configs/math_grpo.yaml", *SMALL]
    run_folder = tmp_path / "runs/tiny"
    kill_after_steps(tmp_path, train, run_folder / "checkpoints", 2)
    assert [row["step"] for row in lasting_metrics(run_folder) if "reward/mean" in row][:2] == [1, 2]
    run(tmp_path, *train, "checkpoint.resume=auto")
    steps = [row["step"] for row in lasting_metrics(run_folder) if "reward/mean" in row]
    assert steps == list(range(1, STEPS + 1))
    events = [json.loads(line)["kind"] for line in (run_folder / "events.jsonl").read_text().splitlines()]
    assert events.count("resume") == 1

    last = f"runs/tiny/checkpoints/step_{STEPS:05d}"
    config = ["--config", "runs/tiny/config.yaml", "--checkpoint", last]
    run(tmp_path, "eval", *config, "--baseline", "warm", "--output-dir", "evaluation")
    (page,) = (tmp_path / "evaluation").glob("*.html")
    assert "12 tasks" in page.read_text(encoding="utf-8")
    run(tmp_path, "report", "runs/tiny")
    assert "<html" in (run_folder / "report.html").read_text(encoding="utf-8")
    assert yaml.safe_load((run_folder / "config.yaml").read_text())["train"]["steps"] == STEPS
    page, data = pages_of(tmp_path, "runs/tiny")
    assert "<html" in page
    (shown,) = json.loads(data)
    assert [each["step"] for each in shown["sets"] if each["temperature"] is None] == steps


def test_the_flagship_from_task_files_to_an_agent_on_disk(tmp_path: Path) -> None:
    made = ["--starter", "--num-samples", "20", "--hidden-cases", "sampled"]
    run(tmp_path, "prepare-dataset", *made, "--output-dir", "tasks")
    checked = run(tmp_path, "check-data", "--config", "configs/nat_grpo.yaml", "tasks/val.jsonl")
    assert "2 of 2 (100.0 %)" in checked

    last = f"runs/tiny/checkpoints/step_{2:05d}"
    small = [word.replace("eval.jsonl", "val.jsonl") for word in SMALL if not word.startswith(("model", "train.steps"))]
    words = ["model.path=model/nat_minimind_grpo", "train.steps=2", "train.learning_rate=1e-6"]
    run(
        tmp_path,
        "train",
        "--config",
        "configs/nat_grpo.yaml",
        *small,
        *words,
        "train.final_learning_rate=0",
        "env.options.checkers=1",
    )
    run(tmp_path, "eval", "--config", "runs/tiny/config.yaml", "--checkpoint", last, "--output-dir", "evaluation")
    episodes = (tmp_path / "evaluation/episodes.jsonl").read_text().splitlines()
    assert len(episodes) == 2

    (tmp_path / "plan.jsonl").write_text((tmp_path / "tasks/val.jsonl").read_text().splitlines()[0])
    run(tmp_path, "create", "--spec", "plan.jsonl", "--checkpoint", last, "--output-dir", "agent")
    run(tmp_path, "nat", "validate", "agent", "--spec", "plan.jsonl")
