"""When something around a job fails: one sentence, a metric, and the job ends once all the same."""

import errno
import signal
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from created_agents import outline, planner, reference
from nat_projects import row, spec_of
from services import Client, HeldScript, reference_writer, scripted_creator, service_of, serving, wait_until

from agent_rl.envs.nat.create.creator import AgentCreator
from agent_rl.envs.nat.factory.planner.client import CallError
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.service import runner
from agent_rl.envs.nat.service.records import AgentJob
from agent_rl.envs.nat.service.store import TRIED_TWICE, JobStore, new_job_id
from agent_rl.errors import EngineError, UserError

SPEC = spec_of("unit_converter", 1)
ROW = row(SPEC)


def incidents(client: Client, kind: str) -> float:
    return client.metric("agent_rl_incidents_total", kind=kind)


def ends(client: Client, job_id: str) -> int:
    return sum(event.event == "end" for event in client.service.store.events(job_id))


def test_a_planner_that_is_down(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    asking = planner(CallError("no connection to http://x", is_transient=False))
    with serving(nat_toolkit, tmp_path, [], planner=asking) as client:
        job = client.made(request="km to m")
        assert (job["state"], job["planner"]) == ("failed", "openai")
        assert job["error"]["detail"].startswith("the planner did not answer: no connection")
        assert incidents(client, "planner") == 1
        assert client.metric("agent_rl_planner_requests_total", outcome="failed") == 1
        assert client.metric("agent_rl_jobs_total", state="failed", planner="openai") == 1


def test_a_request_that_the_planner_refuses_is_no_failure(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    with serving(nat_toolkit, tmp_path, [], planner=planner(outline("none"))) as client:
        job = client.made(request="write me a poem")
        assert job["state"] == "refused" and incidents(client, "planner") == 0


def test_a_toolkit_that_is_killed_is_started_again(tmp_path: Path) -> None:
    script = HeldScript(reference(SPEC))
    others = set(psutil.Process().children(recursive=True))
    with NatToolkit.open(processes=1) as toolkit, serving(toolkit, tmp_path, script) as client:
        job_id = client.begun(spec=ROW)
        wait_until(lambda: script.num_asked)
        servers = set(psutil.Process().children(recursive=True)) - others
        assert servers
        for each in servers:
            each.send_signal(signal.SIGKILL)
        script.may_go_on.set()
        assert client.ended(job_id)["state"] == "accepted"
        assert client.metric("agent_rl_sandbox_runs_total", status="failed") >= 1


def test_a_sandbox_that_does_not_come_back_fails_the_job_at_the_second_try(tmp_path: Path) -> None:
    script = HeldScript(reference(SPEC))
    with NatToolkit.open(processes=1) as toolkit, serving(toolkit, tmp_path, script) as client:
        job_id = client.begun(spec=ROW)
        wait_until(lambda: script.num_asked)
        toolkit.close()
        script.may_go_on.set()
        job = client.ended(job_id)
        assert (job["state"], job["attempts"]) == ("failed", 2)
        assert "sandbox" in job["error"]["detail"] and "\n" not in job["error"]["detail"]
        assert incidents(client, "sandbox") == 2 and ends(client, job_id) == 1


def test_an_engine_that_fails_once_costs_nothing(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    failures = [EngineError("the server went away")]

    def script(_turn: int, _sampling: Any) -> str:
        if failures:
            raise failures.pop()
        return reference(SPEC)

    with serving(nat_toolkit, tmp_path, script) as client:
        job = client.made(spec=ROW)
        assert (job["state"], job["attempts"]) == ("accepted", 2)
        assert incidents(client, "engine") == 1


def test_a_bug_costs_one_job(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    failures = [ValueError("secret detail")]

    def script(_turn: int, _sampling: Any) -> str:
        if failures:
            raise failures.pop()
        return reference(SPEC)

    with serving(nat_toolkit, tmp_path, script, service={"workers": 1}) as client:
        job = client.made(spec=ROW)
        assert job["state"] == "failed" and "secret" not in job["error"]["detail"]
        assert client.made(spec=ROW)["state"] == "accepted"
        assert incidents(client, "bug") == 1


def fill(store: JobStore, *, is_full: bool) -> None:
    """Let the database take no more pages, as on a full disk, or again."""
    with store._writing:
        (pages,) = store._db.execute("PRAGMA page_count").fetchone()
        store._db.execute(f"PRAGMA max_page_count={pages if is_full else 10**6}")


def test_a_full_disk_takes_no_job_and_loses_none(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    script = HeldScript(reference(SPEC))
    with serving(nat_toolkit, tmp_path, script) as client:
        job_id = client.begun(spec=ROW)
        wait_until(lambda: script.num_asked)
        fill(client.service.store, is_full=True)
        refused = [client.post("/v1/agents", {"spec": ROW, "request": "x" * 4000}) for _ in range(3)][-1]
        assert (refused.status_code, refused.json()["detail"]) == (507, runner.DISK_FULL)
        assert incidents(client, "disk_full") >= 1
        script.may_go_on.set()
        wait_until(lambda: client.job(job_id)["state"] in ("failed", "accepted") or incidents(client, "disk_full") > 3)
        fill(client.service.store, is_full=False)
        job = client.ended(job_id)
        assert ends(client, job_id) == 1
        assert (job["state"], job["error"]["detail"]) == ("failed", runner.DISK_FULL)
        assert client.made(spec=ROW)["state"] == "accepted"


def test_a_package_that_the_disk_does_not_take(
    nat_toolkit: NatToolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = [OSError(errno.ENOSPC, "No space left"), UserError("it cannot be packaged")]
    real = runner.keep

    def keep(*arguments: Any) -> Any:
        if errors:
            raise errors.pop(0)
        return real(*arguments)

    monkeypatch.setattr(runner, "keep", keep)
    with serving(nat_toolkit, tmp_path, reference_writer(SPEC)) as client:
        jobs = [client.made(spec=ROW) for _ in range(3)]
        assert [job["state"] for job in jobs] == ["failed", "failed", "accepted"]
        assert [job["error"]["detail"] for job in jobs[:2]] == [runner.DISK_FULL, "it cannot be packaged"]
        assert (incidents(client, "disk_full"), incidents(client, "packaging")) == (1, 1)


def test_a_store_at_its_quota_takes_no_job(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    with serving(nat_toolkit, tmp_path, reference_writer(SPEC), service={"store_mb": 1}) as client:
        job = client.made(spec=ROW)
        client.service.store._db.execute("UPDATE jobs SET num_bytes = ?", (2**20,))
        answer = client.post("/v1/agents", {"spec": ROW})
        assert answer.status_code == 507 and "quota" in answer.json()["detail"]
        assert client.get("/readyz").json()["why"] == {"store": "it is full"}
        client.http.delete(f"/v1/agents/{job['id']}")
        assert client.made(spec=ROW)["state"] == "accepted"


def test_a_client_that_leaves_changes_nothing(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    import httpx

    script = HeldScript(reference(SPEC))
    with serving(nat_toolkit, tmp_path, script) as client:
        with pytest.raises(httpx.ReadTimeout):
            headers = {"Prefer": "wait=30"}
            httpx.post(f"{client.service.address}/v1/agents", json={"spec": ROW}, headers=headers, timeout=1.0)
        script.may_go_on.set()
        (job,) = client.get("/v1/agents").json()["agents"]
        assert client.ended(job["id"])["state"] == "accepted"
        wait_until(lambda: incidents(client, "client_gone") == 1)


def a_job(*, age_s: float = 0.0, deadline_s: float = 600.0) -> AgentJob:
    return AgentJob(
        id=new_job_id(),
        key_name="local",
        state="queued",
        request="x",
        options={},
        seed=0,
        deadline_s=deadline_s,
        planner="given",
        spec=ROW,
        created_at=time.time() - age_s,
    )


def late(client: Client, *, age_s: float) -> str:
    return client.service.store.admit(a_job(age_s=age_s, deadline_s=10.0), body_sha256="", max_queue=9)[0].id


def test_a_deadline_that_passes_in_the_queue_or_while_it_is_made(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    script = HeldScript("no project")
    with serving(nat_toolkit, tmp_path, script, service={"workers": 1}) as client:
        held = late(client, age_s=8.0)
        client.service.runner.wake()
        wait_until(lambda: script.num_asked)
        waiting = late(client, age_s=60.0)
        job = client.ended(waiting)
        assert (job["state"], job["error"]["title"]) == ("expired", "Too late")
        time.sleep(2.1)
        script.may_go_on.set()
        assert client.ended(held)["state"] == "expired"
        assert client.metric("agent_rl_jobs_total", state="expired", planner="given") == 2


def test_a_service_that_drains_takes_nothing_and_puts_back_what_is_not_done(
    nat_toolkit: NatToolkit, tmp_path: Path
) -> None:
    script = HeldScript(reference(SPEC))
    making = scripted_creator(nat_toolkit, tmp_path, script, service={"drain_s": 0.3, "workers": 2})
    with service_of(making) as client:
        ids = [client.begun(spec=ROW) for _ in range(3)]
        wait_until(lambda: script.num_asked == 2)
        draining = threading.Thread(target=client.service.drain)
        draining.start()
        wait_until(lambda: not client.get("/readyz").json()["ready"])
        answer = client.post("/v1/agents", {"spec": ROW})
        assert answer.status_code == 503 and answer.headers["retry-after"]
        assert client.post("/v1/validate", {"files": {}}).status_code == 503
        chat = client.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
        assert chat.status_code == 503
        assert client.get("/readyz").status_code == 503 and client.get("/healthz").status_code == 200
        draining.join()
        assert [client.job(each)["state"] for each in ids] == ["queued"] * 3
        script.may_go_on.set()
    with serving(nat_toolkit, tmp_path, reference_writer(SPEC)) as client:
        jobs = [client.ended(each) for each in ids]
        assert [(job["state"], job["attempts"]) for job in jobs] == [("accepted", 1)] * 3
        assert [ends(client, each) for each in ids] == [1] * 3
        assert incidents(client, "restart") == 0


def test_what_runs_is_given_time_to_end(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    script = HeldScript(reference(SPEC))
    with serving(nat_toolkit, tmp_path, script, service={"drain_s": 60.0}) as client:
        job_id = client.begun(spec=ROW)
        wait_until(lambda: script.num_asked)
        draining = threading.Thread(target=client.service.drain)
        draining.start()
        script.may_go_on.set()
        draining.join()
        assert client.job(job_id)["state"] == "accepted"


def test_a_job_that_was_begun_twice_when_the_service_died_has_failed(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    for _ in range(2):
        with JobStore(tmp_path / "store") as store:
            if not store.counts():
                store.admit(a_job(), body_sha256="", max_queue=9)
            store.recover()
            assert store.claim(lambda *_: True)
    with serving(nat_toolkit, tmp_path, reference_writer(SPEC)) as client:
        (job,) = client.get("/v1/agents").json()["agents"]
        assert client.job(job["id"])["error"]["detail"] == TRIED_TWICE
        assert incidents(client, "restart") == 1


def test_old_agents_are_removed_while_it_runs(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    with serving(nat_toolkit, tmp_path, reference_writer(SPEC)) as client:
        job = client.made(spec=ROW)
    with sqlite3.connect(tmp_path / "store/store.sqlite3") as db:
        db.execute("UPDATE jobs SET ended_at = 1")
    db.close()
    with serving(nat_toolkit, tmp_path, reference_writer(SPEC)) as client:
        wait_until(lambda: client.get(f"/v1/agents/{job['id']}").status_code == 404)
        wait_until(lambda: not client.service.store.path_of(job["id"]).exists())


def test_a_creator_outlives_its_service(nat_toolkit: NatToolkit, tmp_path: Path) -> None:
    making: AgentCreator = scripted_creator(nat_toolkit, tmp_path, reference_writer(SPEC))
    for _ in range(2):
        with service_of(making) as client:
            assert client.made(spec=ROW)["state"] == "accepted"
    assert making.create(spec=ROW).state == "accepted"
