"""Many agents asked for at once: throughput, latency, and whether each was made exactly once.

    python benchmarks/service/service_load.py --jobs 200

Starts `agent-rl serve` with the shipped model on a store of its own, asks for all agents at once, each by a plan of the
task file, and reads the ends of all jobs from the store. Not here: the quality of the model (docs/results.md).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from agent_rl.envs.nat.service.records import ENDED
from agent_rl.envs.nat.service.schema import open_to_read

ROOT = Path(__file__).resolve().parents[2]
TASKS = ROOT / "dataset/nat_tasks/starter/val.jsonl"
START_S = 180.0
DEADLINE_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What came of all jobs."""

    states: Mapping[str, int]
    seconds: float
    """From the first request to the last end."""
    latencies: Sequence[float]
    """Of each job, in seconds, sorted."""
    num_ends: Sequence[int]
    """Events `end` of each job."""

    def quantile(self, share: float) -> float:
        return self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]

    def lines(self) -> list[str]:
        num_lost = sum(number != 1 for number in self.num_ends)
        num_jobs = len(self.latencies)
        return [
            f"{num_jobs} jobs in {self.seconds:.1f} s: {60 * num_jobs / self.seconds:.0f} a minute",
            f"latency p50 {self.quantile(0.5):.1f} s, p95 {self.quantile(0.95):.1f} s",
            f"ends: {', '.join(f'{state} {number}' for state, number in sorted(self.states.items()))}",
            f"lost or ended twice: {num_lost}",
        ]


def ask_all(
    url: str, bodies: Sequence[Mapping[str, Any]], store: Path, *, deadline_s: float = DEADLINE_S
) -> LoadResult:
    """Ask for all of them at once and wait until none is under way."""
    start_s = time.monotonic()
    limits = httpx.Limits(max_connections=64)
    with httpx.Client(base_url=url, timeout=120.0, limits=limits) as client:

        def ask(body: Mapping[str, Any]) -> str:
            answer = client.post("/v1/agents", json=body)
            answer.raise_for_status()
            return str(answer.json()["id"])

        with ThreadPoolExecutor(64) as pool:
            ids = list(pool.map(ask, bodies))
    assert len(set(ids)) == len(bodies)
    reader = open_to_read(store)
    marks = ", ".join("?" * len(ENDED))
    while True:
        (num_ended,) = reader.execute(f"SELECT count(*) FROM jobs WHERE state IN ({marks})", ENDED).fetchone()
        if num_ended >= len(ids):
            break
        if time.monotonic() - start_s > deadline_s:
            raise TimeoutError(f"{num_ended} of {len(ids)} jobs have ended after {deadline_s:g} s")
        time.sleep(0.05)
    seconds = time.monotonic() - start_s
    rows = {row["id"]: row for row in reader.execute("SELECT id, state, created_at, ended_at FROM jobs")}
    ends = Counter(row["job_id"] for row in reader.execute("SELECT job_id FROM events WHERE event = 'end'"))
    reader.close()
    mine = [rows[job_id] for job_id in ids]
    return LoadResult(
        states=Counter(row["state"] for row in mine),
        seconds=seconds,
        latencies=sorted(row["ended_at"] - row["created_at"] for row in mine),
        num_ends=[ends[job_id] for job_id in ids],
    )


@contextmanager
def started(store: Path, num_jobs: int, workers: int) -> Iterator[str]:
    """The address of a service of our own."""
    settings = [f"service.store={store}", "service.port=0", "service.metrics_port=null", f"service.workers={workers}"]
    settings += [f"service.max_queue={num_jobs}", "service.max_deadline_s=3600"]
    command = [sys.executable, "-m", "agent_rl.scripts.cli", "serve", "--config", "configs/serve.yaml", *settings]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield line.split(" on ")[1].split(",")[0]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--candidates", type=int, default=4)
    chosen = parser.parse_args()
    rows = [json.loads(line) for line in TASKS.read_text(encoding="utf-8").splitlines()]
    bodies = [
        {"spec": rows[number % len(rows)], "seed": number, "deadline_s": 3600, "candidates": chosen.candidates}
        for number in range(chosen.jobs)
    ]
    with tempfile.TemporaryDirectory() as folder, started(Path(folder), chosen.jobs, chosen.workers) as url:
        result = ask_all(url, bodies, Path(folder))
    print("\n".join(result.lines()))


if __name__ == "__main__":
    main()
