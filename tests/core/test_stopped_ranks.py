"""A signal to runs of several processes: whichever got it, all save the same whole step, and a resume is exact."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from distributed.ranks import start_ranks
from fakes import LETTER_TASKS, LetterEnv, save_tiny_model, tiny_config
from run_outcomes import outcome

from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.data.tasks import Task
from agent_rl.distributed.stopping import AgreedInterrupt
from agent_rl.envs.base import EnvFactory

ROOT = Path(__file__).parents[2]
TOTAL = 4


class SignalEnv(LetterEnv):
    """The process with this rank sends itself a signal in its episode of this number."""

    rank, at, number, num_reset = "", 0, signal.SIGTERM, 0

    def reset(self, task: Task) -> Any:
        SignalEnv.num_reset += 1
        if os.environ["RANK"] == SignalEnv.rank and SignalEnv.num_reset == SignalEnv.at:
            os.kill(os.getpid(), SignalEnv.number)
        return super().reset(task)


def run(folder: Path, name: str, source: str, place: str) -> None:
    """A run that is stopped in the episodes of a step, or after it; without a place it goes to its end."""
    config = tiny_config(
        folder,
        run={"name": name},
        rollout={"group_size": 4, "groups_per_step": 2, "async_workers": 2 if source == "threads" else 0},
        train={"steps": TOTAL},
        eval={"temperatures": [1.0], "every": 2},
        checkpoint={"every": 0, "resume": "auto"},
    )

    def on_step(step: int, _metrics: Any) -> None:
        if place == "after a step" and step == 2 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGINT)

    if place.startswith("episode"):
        # 2 of the first evaluation, 4 of each of two steps, 2 of the evaluation after them: this is in the third step.
        SignalEnv.rank, SignalEnv.at = place[-1], 14
    with GRPOTrainer.from_config(
        config, env_factory=EnvFactory(SignalEnv), train_tasks=LETTER_TASKS, eval_tasks=LETTER_TASKS
    ) as trainer:
        try:
            trainer.train(on_step=on_step)
        except AgreedInterrupt:
            print("agreed", trainer.step)
        except SystemExit as error:
            print("agreed", trainer.step, error.code)


def launch(folder: Path, *args: str, kind: str = "ddp") -> list[str]:
    settings = None
    if kind == "zero3":
        settings = folder / "deepspeed.json"
        settings.write_text(json.dumps({"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}))
    out = folder / "_".join(args).replace(" ", "_")
    ranks = start_ranks(run, folder, *args, folder=out, num=2, deepspeed_config=settings)
    assert ranks.wait(timeout_s=110) == [0, 0], ranks.log(0) + ranks.log(1)
    return [ranks.log(0), ranks.log(1)]


def stop_and_continue(folder: Path, place: str, source: str, *, kind: str = "ddp") -> list[str]:
    """A run of two processes that is stopped at a place, continued; what either of them said of the first part."""
    save_tiny_model(folder / "model")
    logs = launch(folder, "stopped", source, place, kind=kind)
    said = [next(line for line in log.splitlines() if line.startswith("agreed")) for log in logs]
    steps = {int(line.split()[1]) for line in said}
    assert len(steps) == 1
    (step,) = steps
    assert 1 <= step < TOTAL
    assert (folder / f"runs/stopped/checkpoints/step_{step:05d}/manifest.json").is_file()
    events = [json.loads(line) for line in (folder / "runs/stopped/events.jsonl").read_text().splitlines()]
    assert [each["facts"]["checkpoint_step"] for each in events if each["kind"] == "interrupt"] == [step]
    launch(folder, "stopped", source, "", kind=kind)
    return said


def test_a_signal_between_steps_changes_nothing_in_the_end(tmp_path: Path) -> None:
    assert stop_and_continue(tmp_path, "after a step", "serial") == ["agreed 2", "agreed 2"]
    launch(tmp_path, "straight", "serial", "")
    assert outcome(tmp_path / "runs/stopped", TOTAL) == outcome(tmp_path / "runs/straight", TOTAL)


def test_episodes_in_threads_are_cut_short_by_the_process_that_got_it(tmp_path: Path) -> None:
    said = stop_and_continue(tmp_path, "episode of 1", "threads")
    assert [line.endswith(" 143") for line in said] == [False, True]
    rows = [json.loads(line) for line in (tmp_path / "runs/stopped/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss/policy" in row] == [1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize(("place", "kind"), [("episode of 0", "ddp"), ("episode of 1", "zero3")])
def test_a_signal_in_an_episode_changes_nothing_in_the_end(tmp_path: Path, place: str, kind: str) -> None:
    stop_and_continue(tmp_path, place, "serial", kind=kind)
    launch(tmp_path, "straight", "serial", "", kind=kind)
    assert outcome(tmp_path / "runs/stopped", TOTAL) == outcome(tmp_path / "runs/straight", TOTAL)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_launcher_that_is_told_to_stop_leaves_a_checkpoint_of_the_last_step(tmp_path: Path, number: int) -> None:
    save_tiny_model(tmp_path / "model")
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in LETTER_TASKS))
    config = tiny_config(
        tmp_path,
        env={"name": "fakes:LetterEnv"},
        data={"train_path": str(tmp_path / "tasks.jsonl"), "eval_path": None},
        rollout={"group_size": 4, "groups_per_step": 2},
        train={"steps": 100_000},
        checkpoint={"every": 0},
        log={"progress": False, "trackers": []},
    )
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    words = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--main_process_port", "0"]
    words += ["--config_file", str(ROOT / "configs/accelerate/ddp_2cpu.yaml"), "-m", "agent_rl.scripts.cli", "train"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}", "OMP_NUM_THREADS": "1"}
    words += ["--config", str(tmp_path / "config.yaml")]
    with (tmp_path / "out.txt").open("w") as out:
        process = subprocess.Popen(
            words, cwd=tmp_path, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    said = tmp_path / "out.txt"
    deadline = time.monotonic() + 300
    while "step 3/" not in said.read_text():
        assert process.poll() is None and time.monotonic() < deadline, said.read_text()
        time.sleep(0.1)
    # Ctrl-C goes to all processes of a terminal, the launcher among them, which passes it on; Slurm asks the launcher.
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    process.wait(120)
    events = [json.loads(line) for line in (tmp_path / "runs/tiny/events.jsonl").read_text().splitlines()]
    assert events[-1]["kind"] == "interrupt", said.read_text()
    step = events[-1]["step"]
    assert events[-1]["facts"]["checkpoint_step"] == step >= 3
    assert (tmp_path / f"runs/tiny/checkpoints/step_{step:05d}/manifest.json").is_file()
