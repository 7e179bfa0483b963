"""The store of the service: a job ends once, whatever ends the service; nothing accepted is lost; old things go."""

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_rl.envs.nat.service.records import PARTIAL, AgentJob, Feedback
from agent_rl.envs.nat.service.schema import FILE, open_to_read
from agent_rl.envs.nat.service.store import FeedbackFullError, JobStore, KeyReusedError, QueueFullError, new_job_id
from agent_rl.errors import ConfigError, DataError


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    with JobStore(tmp_path / "store") as opened:
        yield opened


def a_job(**changes: Any) -> AgentJob:
    values: dict[str, Any] = {
        "id": new_job_id(),
        "key_name": "ann",
        "state": "queued",
        "request": "km to m",
        "options": {"candidates": 2},
        "seed": 3,
        "deadline_s": 120.0,
        "created_at": time.time(),
    }
    return AgentJob(**{**values, **changes})


def admitted(store: JobStore, **changes: Any) -> str:
    return store.admit(a_job(**changes), body_sha256="b", max_queue=99)[0].id


def told(store: JobStore, job_id: str) -> list[Any]:
    return [each.data["state"] for each in store.events(job_id) if each.event in ("state", "end")]


def always(_name: str, _running: int) -> bool:
    return True


def test_a_job_goes_from_the_queue_to_its_end_once(store: JobStore) -> None:
    job_id = admitted(store)
    job = store.claim(always)
    assert job is not None and (job.id, job.state, job.attempts) == (job_id, "planning", 1)
    assert job.options == {"candidates": 2} and store.claim(always) is None
    assert store.change(job_id, "plan", {"plan": {"x": 1}}, state="sampling", spec={"x": 1}, planner="openai")
    assert store.end(job_id, "accepted", model={"sha256": "aa"}, result={"chosen": 0}, num_bytes=5)
    assert not store.end(job_id, "failed", reason="late")
    assert not store.change(job_id, "check", {}, state="checking")
    assert not store.put_back(job_id, counts=True)
    found = store.find(job_id)
    assert found is not None and found.has_ended
    assert (found.state, found.reason, found.spec, found.result) == ("accepted", "", {"x": 1}, {"chosen": 0})
    assert [(each.number, each.event) for each in store.events(job_id)] == [
        (1, "state"), (2, "state"), (3, "plan"), (4, "state"), (5, "end"),
    ]  # fmt: skip
    assert [each.number for each in store.events(job_id, after=3)] == [4, 5]
    assert store.counts() == {"accepted": 1}


def test_the_oldest_that_may_run_is_next(store: JobStore) -> None:
    first, second = admitted(store, created_at=1.0), admitted(store, created_at=2.0)
    other = admitted(store, created_at=3.0, key_name="bob")
    one_each = lambda _name, running: running < 1  # noqa: E731
    assert [job.id if (job := store.claim(one_each)) else None for _ in range(3)] == [first, other, None]
    store.end(first, "refused", reason="no")
    job = store.claim(one_each)
    assert job is not None and job.id == second


def test_the_same_request_again_is_the_same_job(store: JobStore) -> None:
    job, is_new = store.admit(a_job(), body_sha256="b", idempotency_key="k", max_queue=1)
    assert is_new
    again, is_new = store.admit(a_job(), body_sha256="b", idempotency_key="k", max_queue=1)
    assert (again.id, is_new) == (job.id, False)
    with pytest.raises(KeyReusedError):
        store.admit(a_job(), body_sha256="other", idempotency_key="k", max_queue=9)
    with pytest.raises(QueueFullError):
        store.admit(a_job(key_name="bob"), body_sha256="b", idempotency_key="k", max_queue=1)
    assert store.counts() == {"queued": 1}


def test_what_was_begun_when_the_service_died_is_begun_once_more_and_then_fails(tmp_path: Path) -> None:
    with JobStore(tmp_path) as store:
        waiting, begun = admitted(store, created_at=9.0), admitted(store, created_at=1.0)
        store.claim(always)
        store.change(begun, "plan", {}, state="sampling", spec={"x": 1}, planner="openai")
        written = [store.path_of(begun).with_suffix(PARTIAL), store.path_of(begun)]
    written[0].mkdir(parents=True)
    with JobStore(tmp_path) as store:  # nothing was ended before, as after `kill -9`
        assert store.recover() == (1, 0)
        assert not written[0].exists()
        job = store.claim(always)
        assert job is not None and (job.id, job.attempts, job.spec) == (begun, 2, None)
    for folder in written:  # killed while the package was written, and before the end was
        folder.mkdir()
    with JobStore(tmp_path) as store:
        assert store.recover() == (0, 1)
        assert not any(folder.exists() for folder in written)
        assert told(store, begun) == ["queued", "planning", "sampling", "queued", "planning", "failed"]
        assert store.counts() == {"failed": 1, "queued": 1}
        found = store.find(waiting)
        assert found is not None and found.attempts == 0


def test_a_job_that_is_put_back_when_the_service_drains_was_not_begun(store: JobStore) -> None:
    job_id = admitted(store, planner="given", spec={"x": 1})
    for _ in range(3):
        job = store.claim(always)
        assert job is not None and (job.attempts, job.spec) == (1, {"x": 1})
        assert store.put_back(job_id, counts=False)


def test_the_last_feedback_of_a_key_counts(store: JobStore) -> None:
    job_id = admitted(store)
    said: dict[str, Any] = {"job_id": job_id, "key_name": "ann", "comment": "", "cases": [], "created_at": 1.0}
    store.put_feedback(Feedback(**said, verdict="works", consent=False))
    store.put_feedback(Feedback(**{**said, "key_name": "root"}, verdict="partly", consent=False))
    case = {"target": "f", "input": {"x": 1}, "expected": "2"}
    store.put_feedback(Feedback(**{**said, "cases": [case]}, verdict="fails", consent=True))
    first, second = store.feedback(job_id)
    assert (first.key_name, first.verdict, first.consent, first.cases) == ("ann", "fails", True, [case])
    assert second.verdict == "partly"


def test_feedback_of_a_key_is_bounded_with_the_jobs_that_it_keeps(store: JobStore) -> None:
    def tell(job_id: str, comment: str, consent: bool = True, name: str = "ann") -> bool:
        said = Feedback(
            job_id=job_id, key_name=name, verdict="works", comment=comment, cases=[], consent=consent, created_at=1.0
        )
        return store.put_feedback(said, max_bytes=3000)

    first, second = admitted(store, spec={"x": "y" * 1000}), admitted(store, request="z" * 1000)
    assert tell(first, "a" * 1000)
    for comment in ("a" * 1500, "\N{SNOWMAN}" * 500):  # in bytes
        with pytest.raises(FeedbackFullError):
            tell(second, comment)
    assert store.feedback(second) == []
    assert tell(second, "a" * 900, consent=False)  # its job goes with the others
    assert tell(second, "a" * 1900, name="bob")
    assert not tell(first, "b")  # in place of what was said
    store.end(first, "accepted")
    store.delete(first)
    assert not tell(second, "a" * 1500)


def test_uses_are_counted_by_the_hour(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("agent_rl.envs.nat.service.store.time.time", lambda: clock[0])
    assert [store.use("ann", 2) for _ in range(2)] == [0.0, 0.0]
    clock[0] += 600
    assert store.use("ann", 2) == 3000.0
    assert store.use("bob", 2) == 0.0
    clock[0] += 3000
    assert store.use("ann", 2) == 0.0


def test_old_jobs_go_and_those_with_feedback_for_training_keep_their_rows(store: JobStore) -> None:
    old, rejected, kept, young, waiting = (admitted(store) for _ in range(5))
    for job_id in (old, rejected, kept, young):
        store.path_of(job_id).mkdir()
        store.end(job_id, "rejected" if job_id == rejected else "accepted", num_bytes=1000)
    (store.path_of("agent-of-nobody")).mkdir()
    store.put_feedback(
        Feedback(job_id=kept, key_name="ann", verdict="works", comment="", cases=[], consent=True, created_at=1.0)
    )
    day = 86400.0
    for job_id, days in ((old, 8), (kept, 8), (rejected, 2), (young, 2)):
        store._db.execute("UPDATE jobs SET ended_at = ? WHERE id = ?", (time.time() - days * day, job_id))
    before = store.num_bytes()
    assert store.sweep(keep_s=7 * day, keep_rejected_s=day) == 3
    assert [store.find(each) is None for each in (old, rejected, kept, young, waiting)] == [True, True] + [False] * 3
    assert os.listdir(store.folder / "agents") == [young]
    assert store.num_bytes() <= before - 3000
    assert store.sweep(keep_s=7 * day, keep_rejected_s=day) == 0


def test_a_job_under_way_cannot_be_removed(store: JobStore) -> None:
    job_id = admitted(store)
    store.delete(job_id)
    assert store.find(job_id) is not None
    store.end(job_id, "cancelled")
    store.delete(job_id)
    assert store.find(job_id) is None and store.events(job_id) == []


def test_a_store_has_one_writer_and_any_number_of_readers(store: JobStore) -> None:
    job_id = admitted(store, spec={"task_id": "t"}, planner="given")
    with pytest.raises(ConfigError, match="another service uses"):
        JobStore(store.folder)
    reader = open_to_read(store.folder)
    row = reader.execute("SELECT * FROM jobs").fetchone()
    assert (row["id"], row["spec"], row["planner"]) == (job_id, '{"task_id": "t"}', "given")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.execute("DELETE FROM jobs")
    reader.close()
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


def test_what_is_no_store_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"service\.store"):
        open_to_read(tmp_path)
    (tmp_path / FILE).write_text("no database, but long enough to be looked at as one" * 20)
    with pytest.raises(ConfigError, match=r"service\.store"):
        JobStore(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"service\.store"):
        JobStore(tmp_path / "file")
    future = sqlite3.connect(tmp_path / "new.sqlite3")
    future.execute("PRAGMA user_version=99")
    future.close()
    (tmp_path / "new").mkdir()
    os.rename(tmp_path / "new.sqlite3", tmp_path / "new" / FILE)
    for opening in (open_to_read, JobStore):
        with pytest.raises((DataError, ConfigError), match="version 99"):
            opening(tmp_path / "new")
