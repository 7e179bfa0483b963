"""What one key may hold of a service: streams that follow jobs, and room for feedback. No project is made."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from agent_rl.envs.nat.create.settings import ServiceConfig
from agent_rl.envs.nat.service.app import MAX_STREAMS, MAX_STREAMS_OF_KEY, ServiceApp
from agent_rl.envs.nat.service.changes import JobChanges
from agent_rl.envs.nat.service.gate import Gate
from agent_rl.envs.nat.service.keys import ApiKey
from agent_rl.envs.nat.service.metrics import ServiceMetrics
from agent_rl.envs.nat.service.store import JobStore

KEYS = {name: ApiKey(name=name, sha256="0" * 64, scopes=("create", "feedback"), per_hour=30) for name in ("ann", "bob")}
ASKED = {"request": "Convert km to m"}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[SimpleNamespace]:
    store, changes, metrics = JobStore(tmp_path / "store"), JobChanges(), ServiceMetrics()
    config = SimpleNamespace(service=ServiceConfig(store_mb=1), creation=SimpleNamespace(deadline_s=120.0))
    creator: Any = SimpleNamespace(config=config, toolkit=None, model={"name": "m"})
    runner: Any = SimpleNamespace(wake=lambda: None)
    app = ServiceApp(creator, store, runner, metrics, changes, needs_key=True, probe=dict)
    ring: Any = SimpleNamespace(is_open=False, find=KEYS.get)
    gate = Gate(app.app, keys=ring, metrics=metrics, max_bytes=2**18, body_timeout_s=60.0)

    def asked(name: str, method: str, path: str, body: Any = None, **headers: str) -> Any:
        return TestClient(gate).request(method, path, json=body, headers={"x-api-key": name, **headers})

    with store:
        yield SimpleNamespace(store=store, changes=changes, asked=asked)


def held(service: SimpleNamespace, name: str, count: int) -> None:
    service.changes.num_of_key[name] = count


@pytest.mark.parametrize(("name", "count"), [("bob", MAX_STREAMS), ("ann", MAX_STREAMS_OF_KEY)])
def test_a_job_that_nobody_can_wait_for_is_queued_and_named(service: SimpleNamespace, name: str, count: int) -> None:
    held(service, name, count)
    answer = service.asked("ann", "POST", "/v1/agents", ASKED, prefer="wait=1")
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/agents/{answer.json()['id']}"
    assert "preference-applied" not in answer.headers
    assert service.store.counts() == {"queued": 1}


def test_one_key_cannot_hold_all_streams(service: SimpleNamespace) -> None:
    paths = {}
    for name in KEYS:
        job_id = service.asked(name, "POST", "/v1/agents", ASKED).json()["id"]
        service.store.end(job_id, "accepted")
        paths[name] = f"/v1/agents/{job_id}/events"
    held(service, "ann", MAX_STREAMS_OF_KEY)
    refusal = service.asked("ann", "GET", paths["ann"])
    assert refusal.status_code == 429 and refusal.headers["retry-after"] == "5"
    assert f"{MAX_STREAMS_OF_KEY} clients with the key 'ann'" in refusal.json()["detail"]
    assert service.asked("bob", "GET", paths["bob"]).status_code == 200
    held(service, "ann", MAX_STREAMS)
    assert service.asked("bob", "GET", paths["bob"]).status_code == 429


def test_streams_are_counted_while_they_last(service: SimpleNamespace) -> None:
    answer = service.asked("ann", "POST", "/v1/agents", ASKED, prefer="wait=1")
    assert answer.status_code == 202 and answer.headers["preference-applied"] == "wait=1"
    assert service.changes.num_listening == 0


def test_the_feedback_of_one_key_cannot_fill_the_store(service: SimpleNamespace) -> None:
    said = {"verdict": "works", "consent": True, "cases": [{"input": "x" * 4000, "expected": "y" * 4000}] * 12}

    def tell(name: str) -> Any:
        job_id = service.asked(name, "POST", "/v1/agents", ASKED).json()["id"]
        service.store.end(job_id, "accepted")
        return service.asked(name, "POST", f"/v1/agents/{job_id}/feedback", said)

    assert tell("ann").status_code == 201
    refusal = tell("ann")  # two are more than the eighth of 1 MiB
    assert refusal.status_code == 507 and "the feedback of the key 'ann'" in refusal.json()["detail"]
    assert tell("bob").status_code == 201
