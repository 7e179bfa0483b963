"""The rehearsal of the 8-GPU job, whole: `scripts/train_agenthands.sh --rehearse`."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import free_port

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.timeout(1300)
def test_the_job_of_eight_gpus_is_rehearsed_on_cpus(tmp_path: Path) -> None:
    folder, port = tmp_path / "rehearsal", free_port()
    environment = os.environ | {
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "PORT": str(port),
        "REHEARSAL_FOLDER": str(folder),
    }
    before = set(Path("/dev/shm").glob("agent_rl_rehearsal_*"))
    done = subprocess.run(
        ["scripts/train_agenthands.sh", "--rehearse"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=1200,
    )
    logs = [path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("servers/*.log"))]
    assert done.returncode == 0, "\n".join([done.stdout[-8000:], *logs])
    run = folder / "rehearsal"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "optim/skipped" in row]
    assert [row["step"] for row in steps] == [1, 2, 3]
    assert max(row["async/staleness_max"] for row in steps) == 1
    assert all(row["sync/probe_gap"] < 0.5 / 0.7 for row in steps)
    assert any(row["optim/skipped"] == 0 for row in steps)
    facts = json.loads((folder / "summary.json").read_text())
    assert set(facts["versions"]) == {f"http://127.0.0.1:{number}" for number in (port, port + 1)}
    assert all(seen[-1] == 3 for seen in facts["versions"].values())
    assert facts["resumed_after_step"] in (1, 2) and facts["num_changed"] > 0
    assert list(facts["phases"]) == [
        "preflight",
        "plan",
        "servers",
        "training",
        "Ctrl-C",
        "resume",
        "report",
        "weights",
        "stop",
    ]
    assert (run / "report.html").is_file() and (run / "report.json").is_file()
    assert list((run / "eval").glob("step_00003_t0*.json"))
    assert set(Path("/dev/shm").glob("agent_rl_rehearsal_*")) <= before
    assert marked_processes(folder) == []
    for number in (port, port + 1):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", number)) != 0


def marked_processes(folder: Path) -> list[str]:
    """Command lines of processes that were started with the rehearsal's folder in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"AGENT_RL_REHEARSAL={folder}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found
