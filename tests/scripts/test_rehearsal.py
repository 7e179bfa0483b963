"""What a rehearsal checks in the files of its run, on files written by hand; and what it finds on the machine."""

import argparse
import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
A, B = "http://127.0.0.1:8000", "http://127.0.0.1:8001"


@pytest.fixture(scope="module")
def rehearsal() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rehearsal", ROOT / "scripts/rehearsal.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(step: int, **values: Any) -> dict[str, Any]:
    found = {"step": step, "optim/skipped": 0.0, "async/staleness_max": float(step > 1), "sync/probe_gap": 0.01}
    return found | {"rollout/env_errors": 0.0} | values


def event(kind: str, step: int, **facts: Any) -> dict[str, Any]:
    return {"time": "2026-01-01T00:00:00.000+00:00", "step": step, "kind": kind, "facts": facts}


def evaluation(step: int, num_scored: int = 8) -> dict[str, Any]:
    return event("evaluation", step, temperature=0.0, num_scored=num_scored, num_successes=2)


GOOD: dict[str, list[dict[str, Any]]] = {
    "run/metrics.jsonl": [{"step": 0, "eval/t0/success": 0.25}, row(1), row(2), row(3)],
    "run/events.jsonl": [
        event("start", 0, planned_steps=3, num_processes=2),
        evaluation(0),
        event("checkpoint", 1, folder="step_00001"),
        event("resume", 1, from_step=1, checkpoint="step_00001", changed=[], planned_steps=3, num_processes=2),
        evaluation(3),
        event("end", 3, reason="finished"),
    ],
    "versions.jsonl": [
        {"server": server, "version": version}
        for version in ("default", "0", "1", "2", "1", "2", "3")
        for server in (A, B)
    ],
    "notes.json": [{"interrupt_code": 1, "num_tensors": 68, "num_changed": 60, "left_behind": 0}],
}


def options_of(folder: Path, **values: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"folder": folder, "run": folder / "run", "port": 8000} | values)


def write(folder: Path, **changed: list[dict[str, Any]]) -> argparse.Namespace:
    """A rehearsal that found everything but what is `changed`, by the name of the file."""
    (folder / "run").mkdir()
    for name, rows in GOOD.items():
        lines = changed.get(Path(name).stem, rows)
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = (ROOT / "configs/nat_grpo_8xh100.yaml").read_text().replace("steps: 60", "steps: 3")
    (folder / "run/config.yaml").write_text(config)
    (folder / "run/report.html").touch()
    (folder / "phases.tsv").write_text("preflight\t20\ntraining\t70\n")
    return options_of(folder)


def test_a_whole_rehearsal_is_summed_up_from_its_files(rehearsal: ModuleType, tmp_path: Path, capsys: Any) -> None:
    rehearsal.summary(write(tmp_path))
    facts = json.loads((tmp_path / "summary.json").read_text())
    assert (facts["steps"], facts["learned"], facts["staleness_max"]) == ([1, 2, 3], [1, 2, 3], [0.0, 1.0, 1.0])
    assert facts["versions"] == {A: [0, 1, 2, 1, 2, 3], B: [0, 1, 2, 1, 2, 3]}
    assert facts["evaluations"] == {"0": [2, 8], "3": [2, 8]}
    assert (facts["resumed_after_step"], facts["interrupt_code"], facts["num_changed"]) == (1, 1, 60)
    assert facts["phases"] == {"preflight": 20, "training": 70}
    printed = capsys.readouterr().out
    assert "NCCL" in printed and "step 3: 2 of 8" in printed and "90 s in all" in printed


@pytest.mark.parametrize(
    ("changed", "fact"),
    [
        ({"metrics": [row(1), row(3)]}, "steps [1, 3], expected [1, 2, 3]"),
        ({"metrics": [row(1), row(2), row(2), row(3)]}, "steps [1, 2, 2, 3]"),
        ({"metrics": [row(n, **{"async/staleness_max": 0.0}) for n in (1, 2, 3)]}, "async/staleness_max is [0.0"),
        ({"metrics": [row(n, **{"optim/skipped": 1.0}) for n in (1, 2, 3)]}, "no step learned"),
        ({"metrics": [row(1), row(2, **{"rollout/env_errors": 2.0}), row(3)]}, "failed in 2 episodes"),
        ({"metrics": [row(1), row(2), row(3, **{"sync/probe_gap": None})]}, "sync/probe_gap is [0.01, 0.01, None]"),
        ({"metrics": [row(1), row(2), row(3, **{"sync/probe_gap": 0.9})]}, "up to 0.142857"),
        ({"versions": GOOD["versions.jsonl"][:-1]}, f"{B} was seen with versions [0, 1, 2, 1, 2]"),
        ({"events": [each for each in GOOD["run/events.jsonl"] if each["kind"] != "resume"]}, "after steps []"),
        ({"events": GOOD["run/events.jsonl"][:-1]}, "the run ended with []"),
        ({"events": [each for each in GOOD["run/events.jsonl"] if each != evaluation(3)]}, "none of step 3"),
    ],
)
def test_what_is_absent_fails_the_rehearsal(
    rehearsal: ModuleType, tmp_path: Path, changed: dict[str, Any], fact: str
) -> None:
    with pytest.raises(rehearsal.RehearsalError) as raised:
        rehearsal.summary(write(tmp_path, **changed))
    assert fact in str(raised.value)
    assert not (tmp_path / "summary.json").exists()


def test_a_training_that_ends_as_if_finished_was_not_interrupted(rehearsal: ModuleType, tmp_path: Path) -> None:
    rehearsal.interrupted(options_of(tmp_path, code=1))
    with pytest.raises(rehearsal.RehearsalError):
        rehearsal.interrupted(options_of(tmp_path, code=0))


def test_processes_ports_and_shared_memory_that_stay_are_named(
    rehearsal: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "shm"
    memory.mkdir()
    (memory / "of_others").touch()
    monkeypatch.setattr(rehearsal, "SHARED_MEMORY", memory)
    monkeypatch.setattr(rehearsal, "SETTLE_S", 0.5)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        monkeypatch.setattr(rehearsal, "LAUNCHER_PORT", listener.getsockname()[1])
        options = options_of(tmp_path, port=1)
        rehearsal.before(options)
        (memory / "folder_of_another_run").mkdir()
        with (memory / "open").open("w"):
            rehearsal.leftovers(options)
            listener.listen()
            (memory / "left").touch()
            marked = subprocess.Popen(
                [sys.executable, "-c", "import time; time.sleep(60)"],
                env=os.environ | {rehearsal.MARK: str(tmp_path)},
            )
            try:
                with pytest.raises(rehearsal.RehearsalError) as raised:
                    rehearsal.leftovers(options)
            finally:
                marked.kill()
                marked.wait()
    text = str(raised.value)
    assert f"process {marked.pid} (" in text and f"port {rehearsal.LAUNCHER_PORT}" in text
    assert str(memory / "left") in text and "of_others" not in text and str(memory / "open") not in text
