"""A start that failed leaves its name free; SIGTERM keeps the last step; a full disk is one sentence wherever it is."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import make_trainer
from fakes import LetterEnv, save_tiny_model, tiny_config

from agent_rl.core.quick_start import free_name
from agent_rl.core.run.lock import RunLock
from agent_rl.data.tasks import Task
from agent_rl.errors import ConfigError, DataError, EpisodesFailedError

SUPPORT = str(Path(__file__).parents[2] / "support")
ROOT = Path(__file__).parents[3]
TASKS = "".join(f'{{"task_id": "t{n}", "question": "p"}}\n' for n in range(4))


class Broken(LetterEnv):
    def reset(self, task: Task) -> Any:
        raise KeyError("oops")


class BrokenLater(LetterEnv):
    """Works in the first evaluation."""

    num_reset = 0

    def reset(self, task: Task) -> Any:
        type(self).num_reset += 1
        if type(self).num_reset > 4:
            raise KeyError("oops")
        return super().reset(task)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny_model(tmp_path / "model")
    (tmp_path / "tasks.jsonl").write_text(TASKS)
    return tmp_path


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_next_start_under_the_name_of_one_without_a_step_works(folder: Path) -> None:
    with make_trainer(folder, env=Broken) as trainer, pytest.raises(EpisodesFailedError):
        trainer.train()
    assert (folder / "runs/tiny/errors.jsonl").is_file()
    assert free_name(folder / "runs", "tiny") == "tiny"
    with make_trainer(folder, train={"steps": 1}) as trainer:
        trainer.train()
    assert [path.name for path in (folder / "runs").iterdir()] == ["tiny"]
    assert not (folder / "runs/tiny/errors.jsonl").exists()
    assert [event["kind"] for event in rows_of(folder / "runs/tiny/events.jsonl")][:1] == ["start"]
    with pytest.raises(ConfigError, match="already holds a run"):
        make_trainer(folder)
    assert free_name(folder / "runs", "tiny") == "tiny-2"


def test_evaluations_of_a_start_without_a_step_are_kept_aside(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = make_trainer(folder, env=BrokenLater, eval={"temperatures": [0.0]})
    with broken, pytest.raises(EpisodesFailedError):
        broken.train()
    with make_trainer(folder, train={"steps": 1}, eval={"temperatures": [0.0]}) as trainer:
        trainer.train()
    aside = folder / "runs/tiny.unfinished-1"
    assert f"what it left is in {aside}" in capsys.readouterr().out
    assert (aside / "eval/step_00000_t0.json").is_file()
    assert [row["step"] for row in rows_of(folder / "runs/tiny/metrics.jsonl")] == [0, 1, 1]


def test_a_folder_that_a_run_writes_to_is_not_taken(folder: Path) -> None:
    lock = RunLock(folder / "runs/tiny")
    lock.acquire()
    try:
        with (
            make_trainer(folder) as trainer,
            pytest.raises(ConfigError, match=rf"has not ended \(process {os.getpid()} "),
        ):
            trainer.train()
    finally:
        lock.release()
    with make_trainer(folder, train={"steps": 1}) as trainer:
        trainer.train()


def command(folder: Path, **sections: dict[str, Any]) -> list[str]:
    """`agent-rl train` in the letter environment, as a person types it."""
    config = tiny_config(
        folder,
        **{
            "env": {"name": "fakes:LetterEnv"},
            "data": {"train_path": str(folder / "tasks.jsonl"), "eval_path": str(folder / "tasks.jsonl")},
            "rollout": {"group_size": 4, "groups_per_step": 2, "async_workers": 0},
            "log": {"progress": False, "trackers": []},
            **sections,
        },
    )
    (folder / "config.yaml").write_text(config.to_yaml())
    return [sys.executable, "-m", "agent_rl.scripts.cli", "train", "--config", str(folder / "config.yaml")]


def environment() -> dict[str, str]:
    """Without coverage, which writes files of its own and takes SIGTERM."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    return {**inherited, "PYTHONPATH": f"{ROOT}:{SUPPORT}", "OMP_NUM_THREADS": "1"}


def test_sigterm_saves_the_last_step_and_exits_with_143(folder: Path) -> None:
    words = command(folder, train={"steps": 100_000}, checkpoint={"every": 0})
    process = subprocess.Popen(words, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("step 3/"):
            process.send_signal(signal.SIGTERM)
            break
    said += process.stdout.readlines()
    assert process.wait(60) == 143, said
    run = folder / "runs/tiny"
    last = rows_of(run / "events.jsonl")[-1]
    assert last["kind"] == "interrupt"
    assert last["step"] == last["facts"]["checkpoint_step"] >= 3
    assert (run / f"checkpoints/step_{last['step']:05d}/manifest.json").is_file()
    assert "continue with checkpoint.resume=auto" in "".join(said)
    more = [*words, "checkpoint.resume=auto", f"train.steps={last['step'] + 1}"]
    done = subprocess.run(more, cwd=folder, env=environment(), capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    assert rows_of(run / "metrics.jsonl")[-1]["step"] == last["step"] + 1


@pytest.mark.parametrize("most_bytes", [200, 3000, 20_000, 60_000])
def test_a_disk_that_takes_no_more_is_one_sentence_wherever_it_happens(folder: Path, most_bytes: int) -> None:
    """No file may become larger: the first that would is the configuration, the metrics, the model, or its state."""
    done = subprocess.run(
        command(folder, train={"steps": 2}, eval={"temperatures": [0.0]}),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes)),
    )
    (line,) = done.stderr.strip().splitlines()
    assert done.returncode == 2, done.stderr
    assert line.startswith(f"error: {folder}/runs/tiny/")
    assert "File too large" in line or "could not write" in line
    assert "make room" in line


def test_a_full_disk_is_one_sentence_for_a_script_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", str(folder / "runs/tiny/environment.json"))

    monkeypatch.setattr("agent_rl.core.run_folder.write_json", full)
    with (
        make_trainer(folder) as trainer,
        pytest.raises(DataError, match=r"environment\.json: cannot be written \(No space"),
    ):
        trainer.train()


def test_the_configuration_of_these_tests_is_one_that_a_person_can_write(folder: Path) -> None:
    command(folder)
    assert yaml.safe_load((folder / "config.yaml").read_text())["env"]["name"] == "fakes:LetterEnv"
