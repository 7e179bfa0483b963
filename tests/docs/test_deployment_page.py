"""The commands of docs/DEPLOYMENT.md run with the shipped model, and so do the scripts that it names."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from checkout import blocks, make_checkout, run_block
from waiting import wait_for

from agent_rl.envs.nat.create.running import read_package

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/DEPLOYMENT.md"
START, BACKUP = blocks(PAGE)
TASKS = "dataset/nat_tasks/starter/val.jsonl"
_ON_A_FREE_PORT = ("service.port=0", "service.metrics_port=null")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@contextmanager
def served(folder: Path, *settings: str) -> Iterator[str]:
    """The address of the page's service, on a free port; ended by SIGTERM, which must give exit code 0."""
    words = START.split()
    assert words[0] == "agent-rl"
    log = folder / "serve.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "agent_rl.scripts.cli", *words[1:], *_ON_A_FREE_PORT, *settings],
            cwd=folder,
            env=ENVIRONMENT,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_for(lambda: "serving agents on" in log.read_text() or process.poll() is not None, timeout_s=240)
            assert process.poll() is None, log.read_text()
            yield re.search(r"serving agents on (http://[\d.:]+)", log.read_text())[1]
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_backup_of_a_running_service_has_its_agents(tmp_path: Path) -> None:
    folder = make_checkout(tmp_path, {})
    (folder / "bin/python").unlink()
    (folder / "bin/python").symlink_to(sys.executable)
    body = {"spec": json.loads((ROOT / TASKS).read_text().splitlines()[0])}
    with served(folder) as address:
        answer = httpx.post(f"{address}/v1/agents", json=body, headers={"Prefer": "wait=60"}, timeout=90)
        job = answer.json()
        wait_for(lambda: httpx.get(f"{address}/v1/agents/{job['id']}").json()["state"] == "accepted", timeout_s=120)
        assert httpx.get(f"{address}/readyz").json()["ready"]
        ran = run_block(BACKUP, folder)
        assert ran.returncode == 0, ran.stderr
    with served(folder, "service.store=backup") as address:
        kept = httpx.get(f"{address}/v1/agents/{job['id']}").json()
        packed = httpx.get(f"{address}{kept['links']['project']}")
        (folder / "kept.zip").write_bytes(packed.content)
    assert kept["state"] == read_package(folder / "kept.zip")[1]["state"] == "accepted"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_example_saves_what_was_accepted(tmp_path: Path) -> None:
    command = [sys.executable, "examples/production_deployment.py", TASKS, str(tmp_path / "agents"), "2"]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False)
    states = re.findall(r"^\d: (\w+)", done.stdout, re.MULTILINE)
    assert len(states) == 2, done.stderr
    assert done.returncode == (0 if states == ["accepted", "accepted"] else 1)
    assert len(list((tmp_path / "agents").glob("agent_*.zip"))) == states.count("accepted") > 0


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_scripts_name_of_the_plan_creates_an_agent(tmp_path: Path) -> None:
    (tmp_path / "task.json").write_text((ROOT / TASKS).read_text().splitlines()[0])
    command = [sys.executable, ROOT / "agent_rl/scripts/deploy_trained.py", "--spec", tmp_path / "task.json"]
    command += ["--output-dir", tmp_path / "agent", "--config", ROOT / "configs/serve.yaml"]
    plain = {name: value for name, value in ENVIRONMENT.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "agent/PROVENANCE.json").read_text())["state"] == "accepted"


def test_the_page_names_files_that_exist() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    named = re.findall(r"`((?:deploy|examples|agent_rl|tests)/[\w/.-]+)`", text)
    assert len(named) > 6 and [path for path in named if not (ROOT / path).exists()] == []
