"""What a run leaves about itself: where it ran, what it said, when, and whom it told."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import make_trainer
from commands import one_line_error, run_here
from fakes import LetterEnv, save_tiny_model, tiny_config
from webhook import KEY, webhook

from agent_rl.core.run.machine import git_state, model_checksum
from agent_rl.data.tasks import Task
from agent_rl.errors import EpisodesFailedError

SUPPORT = str(Path(__file__).parents[2] / "support")
ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny_model(tmp_path / "model")
    (tmp_path / "tasks.jsonl").write_text('{"task_id": "t", "question": "p"}\n')
    return tmp_path


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_command_leaves_where_it_ran_and_what_it_said_without_its_secrets(folder: Path) -> None:
    tasks = str(folder / "tasks.jsonl")
    config = tiny_config(
        folder,
        env={"name": "fakes:LetterEnv"},
        data={"train_path": tasks, "eval_path": tasks},
        rollout={"group_size": 4, "groups_per_step": 1, "async_workers": 0},
        eval={"temperatures": [0.0]},
        log={"progress": False, "trackers": []},
    )
    (folder / "config.yaml").write_text(config.to_yaml())
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    words = [sys.executable, "-m", "agent_rl.scripts.cli", "train", "--config", "config.yaml", "train.steps=1"]
    with webhook() as (url, got):
        done = subprocess.run(
            [*words, f"log.notify={url}"],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT}:{SUPPORT}",
                "OMP_NUM_THREADS": "1",
                "HF_TOKEN": KEY,
            },
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    run = folder / "runs/tiny"
    found = json.loads((run / "environment.json").read_text())
    assert KEY not in (run / "environment.json").read_text()
    assert found["command"][-2] == "train.steps=1"
    assert found["command"][-1].startswith("log.notify=")
    assert (found["host"], found["working_folder"]) == (socket.gethostname(), str(folder))
    assert found["git"]["working_folder"] == {"commit": git_state(folder)["commit"], "changed": False}
    assert len(found["git"]["working_folder"]["commit"]) == 40
    assert found["git"]["agent_rl"] == git_state(ROOT / "agent_rl")
    assert found["packages"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert found["memory_gib"] > 0.5
    assert found["num_cpus_allowed"] == len(os.sched_getaffinity(0))
    assert found["variables"]["OMP_NUM_THREADS"] == "1"
    assert found["model"] == model_checksum(str(folder / "model"))
    digests = {key: each["sha256"] for key, each in found["tasks"].items()}
    assert digests == {key: model_checksum(str(folder / "tasks.jsonl"))["sha256"] for key in digests}
    assert digests
    said = [line.rstrip() for line in done.stdout.splitlines() if line.strip()]
    log = rows_of(run / "log.jsonl")
    assert [row["text"].rstrip() for row in log if row["text"].strip()] == said
    times = [row["time"] for row in log]
    assert times == sorted(times)
    assert abs(times[-1] - time.time()) < 100
    (message,) = got
    assert (message["event"], message["run"], message["step"]) == ("finished", "tiny", 1)
    assert set(message["metrics"]) == {"reward/mean", "success/mean", "time/step_s"}


def test_rows_of_metrics_have_the_time_and_figures_of_the_machine(folder: Path) -> None:
    before = time.time()
    with make_trainer(folder, train={"steps": 2}) as trainer:
        trainer.train()
    rows = rows_of(folder / "runs/tiny/metrics.jsonl")
    assert before <= rows[0]["time"] <= rows[1]["time"] <= time.time()
    for row in rows:
        assert 0.0 < row["host/memory_share"] < 1.0
        assert 0.05 < row["host/process_memory_gib"] < 100.0
        assert 0.0 <= row["host/cpu_share"] <= 1.0


class Broken(LetterEnv):
    def reset(self, task: Task) -> Any:
        raise KeyError(f"password={KEY}")


def test_a_failure_and_an_alarm_are_told_without_secrets(folder: Path) -> None:
    with webhook() as (url, got):
        broken = make_trainer(folder, env=Broken, log={"notify": url, "trackers": []})
        with broken, pytest.raises(EpisodesFailedError):
            broken.train()
        (failed,) = got
        alarm = {"metric": "reward/mean", "above": -1.0}
        log = {"notify": url, "alarms": [alarm], "trackers": []}
        with make_trainer(folder, train={"steps": 1}, log=log) as trainer:
            trainer.train()
    assert (failed["event"], failed["step"]) == ("failed", 0)
    assert "all 32 episodes failed" in failed["text"]
    assert KEY not in json.dumps(got)
    assert [each["event"] for each in got[1:]] == ["alarm", "finished"]
    assert "reward/mean above -1" in got[1]["text"]


@pytest.mark.parametrize("kind", ["closed", "refuses"])
def test_an_address_that_fails_ends_nothing_and_is_not_shown(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with webhook(status=500) as (address, _):
        url = f"http://127.0.0.1:9/{KEY}" if kind == "closed" else address
        with make_trainer(folder, train={"steps": 1}, log={"notify": url, "trackers": []}) as trainer:
            trainer.train()
    said = capsys.readouterr().out
    assert "log.notify: 127.0.0.1 was not told" in said
    assert KEY not in said
    assert KEY not in (folder / "runs/tiny/log.jsonl").read_text()
    assert KEY not in (folder / "runs/tiny/environment.json").read_text()


def test_an_address_that_does_not_answer_delays_the_end_within_bounds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_rl.telemetry.notify.TIMEOUT_S", 0.2)
    with webhook(delay_s=3.0) as (url, got):
        started = time.monotonic()
        with make_trainer(folder, train={"steps": 1}, log={"notify": url, "trackers": []}) as trainer:
            trainer.train()
        assert len(got) == 1
    assert time.monotonic() - started < 60.0  # for hangs


def test_an_address_that_is_none_is_refused_without_being_shown(folder: Path) -> None:
    (folder / "config.yaml").write_text(tiny_config(folder).to_yaml())
    done = run_here("train", "--config", folder / "config.yaml", f"log.notify=ftp://{KEY}")
    line = one_line_error(done)
    assert "log.notify" in line
    assert "https://" in line
    assert KEY not in line


def test_the_checksum_of_a_model_changes_with_any_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.bin").write_bytes(b"weights")
    first = model_checksum(str(tmp_path))
    row = f"a.bin 7 {hashlib.sha256(b'weights').hexdigest()}\n"
    assert first["sha256"] == hashlib.sha256(row.encode()).hexdigest()
    assert (first["of"], first["bytes"]) == ("all bytes", 7)
    (tmp_path / "a.bin").write_bytes(b"Weights")
    assert model_checksum(str(tmp_path))["sha256"] != first["sha256"]
    monkeypatch.setattr("agent_rl.core.run.machine.WHOLE_BYTES", 6)
    assert model_checksum(str(tmp_path))["of"].startswith("names, sizes")
    assert model_checksum("no/such-model") == {"path": "no/such-model", "revision": None}
