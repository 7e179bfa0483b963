"""The service as a process: killed in the middle, under load, and from a request to an agent that answers over HTTP."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_server import chat_server
from checkout import PageFolder
from created_agents import outline, planned
from nat_projects import row, spec_of
from service.service_load import ask_all
from services import reference_writer, serving, wait_until

from agent_rl.data.tasks import read_tasks
from agent_rl.envs.nat.create.package import read_zip
from agent_rl.envs.nat.create.running import served
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.service.schema import open_to_read

ROOT = Path(__file__).resolve().parents[4]
SPEC = spec_of("unit_converter", 1)
ROW = row(SPEC)
TASK = read_tasks(ROOT / "dataset/nat_tasks/starter/val.jsonl")[0]
PAGE = (ROOT / "docs/service.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.timeout(600)
SUPPORT = [ROOT, *(ROOT / "tests/support" / name for name in ("", "nat"))]


@contextlib.contextmanager
def process(*words: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A Python program in a process of its own, and the line that it prints first; killed at the end."""
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, SUPPORT)), "OMP_NUM_THREADS": "1"}
    started = subprocess.Popen([sys.executable, *map(str, words)], cwd=ROOT, env=environment, text=True, stdout=-1)
    try:
        assert started.stdout is not None
        yield started, started.stdout.readline()
    finally:
        started.kill()
        started.communicate()


def scripted_service(store: Path) -> Any:
    return process(ROOT / "tests/support/nat/service_process.py", store, "0.4")


@pytest.mark.slow
def test_every_job_ends_once_after_the_service_was_killed_again_and_again(tmp_path: Path) -> None:
    with scripted_service(tmp_path) as (running, line):
        with httpx.Client(base_url=line.strip(), timeout=400) as client:
            body = {"spec": ROW, "deadline_s": 600}
            keyed = [{"Idempotency-Key": f"k{number}"} for number in range(16)]
            ids = [client.post("/v1/agents", json=body, headers=each).json()["id"] for each in keyed]
            done = lambda: [each for each in ids if client.get(f"/v1/agents/{each}").json()["ended_at"]]  # noqa: E731
            wait_until(lambda: len(done()) >= 3)
            before = {each: client.get(f"/v1/agents/{each}").json() for each in done()}
        running.send_signal(signal.SIGKILL)
    assert 3 <= len(before) < len(ids)
    with scripted_service(tmp_path) as (running, line):
        time.sleep(1.0)
        running.send_signal(signal.SIGKILL)
    with scripted_service(tmp_path) as (_, line), httpx.Client(base_url=line.strip(), timeout=400) as client:
        wait_until(lambda: all(client.get(f"/v1/agents/{each}").json()["ended_at"] for each in ids), 90)
        jobs = {each: client.get(f"/v1/agents/{each}").json() for each in ids}
        assert {name: jobs[name] for name in before} == before
        again = [client.post("/v1/agents", json=body, headers=each).json()["id"] for each in keyed]
        assert again == ids
        for each in ids:
            if jobs[each]["state"] == "accepted":
                assert client.get(jobs[each]["links"]["project"]).status_code == 200
    reader = open_to_read(tmp_path)
    ends = reader.execute("SELECT job_id, count(*) FROM events WHERE event = 'end' GROUP BY job_id").fetchall()
    assert {tuple(each) for each in ends} == {(each, 1) for each in ids}
    states = [job["state"] for job in jobs.values()]
    assert set(states) <= {"accepted", "failed"} and states.count("failed") <= 3  # at most those begun twice
    folders = {path.name for path in (tmp_path / "agents").iterdir()}
    assert folders == {each for each in ids if jobs[each]["state"] == "accepted"}
    reader.close()


def test_nothing_is_lost_under_load(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    with serving(nat_toolkit, tmp_path, reference_writer(SPEC), service={"workers": 4}) as client:
        bodies = [{"spec": ROW, "seed": number, "deadline_s": 600} for number in range(40)]
        result = ask_all(client.service.address, bodies, tmp_path / "store", deadline_s=100)
        assert result.states == {"accepted": 40}
        assert list(result.num_ends) == [1] * 40
        assert 0 < result.quantile(0.5) <= result.quantile(0.95) <= result.seconds + 1
        assert any(line.endswith("twice: 0") for line in result.lines())


def answers_of(packed: Path, plan: dict[str, Any]) -> None:
    """The plan's cases, asked over HTTP of the real `nat serve`."""
    cases = plan["test_cases"]
    assert cases
    with served(read_zip(packed), "http") as agent, httpx.Client(base_url=agent.url, timeout=30) as client:
        for case in cases:
            answer = client.post("/v1/workflow", json=case["inputs"])
            assert answer.status_code == 200, answer.text
            assert answer.json() in (case["expected"], {"value": case["expected"]})


@pytest.mark.slow
def test_one_curl_ends_in_an_agent_that_answers_over_http(tmp_path: Path) -> None:
    """With the shipped model: by a row, and by words and a scripted planner."""
    rules = TASK["tools"][0]["rules"]
    answers = [outline("direct", "unit_converter"), planned(rules, name="size_tool")]
    with chat_server(*answers) as server:
        settings = ["service.port=0", "service.metrics_port=null", f"service.store={tmp_path}/store"]
        settings += ["planner.source=openai", "planner.model=m", f"planner.base_url={server.url}"]
        with process("-m", "agent_rl.scripts.cli", "serve", *settings) as (running, line):
            address = line.split(" on ")[1].split(",")[0]
            for name, body in (("row", {"spec": TASK}), ("words", {"request": "bytes, kB and MB, no decimals"})):
                (tmp_path / "body.json").write_text(json.dumps(body))
                curl = ["curl", "-sS", "-X", "POST", f"{address}/v1/agents", "-H", "Content-Type: application/json"]
                curl += ["-H", "Prefer: wait=60", "-d", f"@{tmp_path}/body.json"]
                job = json.loads(subprocess.run(curl, check=True, capture_output=True, text=True).stdout)
                assert job["state"] == "accepted", job.get("error")
                packed = tmp_path / f"{name}.zip"
                packed.write_bytes(httpx.get(f"{address}{job['links']['project']}").content)
                answers_of(packed, job["plan"])
            running.send_signal(signal.SIGTERM)
            assert running.wait(60) == 0


@pytest.mark.long
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    page = PageFolder(tmp_path)
    shell = page.run
    start, key, *blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    secret = shell(key.splitlines()[0]).strip()
    command = next(line for line in start.splitlines() if line.startswith("agent-rl serve"))
    with subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=tmp_path, env=page.environment, text=True, stdout=-1
    ) as running:
        try:
            assert running.stdout is not None and "8700" in running.stdout.readline()
            shown = [shell(f"export KEY={secret}\n{block}") for block in blocks]
            assert '"state":"accepted"' in shown[0]
            assert "event: end" in "".join(shown) and "agent_rl_jobs_total" in "".join(shown)
        finally:
            running.send_signal(signal.SIGTERM)
            assert running.wait(60) == 0
