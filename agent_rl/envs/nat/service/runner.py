"""Threads that make the agents of queued jobs: claim one, create, package, end it once.

What fails is told in one sentence and counted. A job whose machinery failed (sandbox, engine) is queued once more; so
is one whose service was killed, when the next one starts. Not here: HTTP, what a job may be (`requests.py`).
"""

import errno
import logging
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from agent_rl.closing import Closing
from agent_rl.envs.nat.create.attempt import Event
from agent_rl.envs.nat.create.creator import AgentCreator
from agent_rl.envs.nat.create.result import Creation
from agent_rl.envs.nat.create.settings import ServiceConfig
from agent_rl.envs.nat.create.writing import CreationCancelledError
from agent_rl.envs.nat.factory.user_test_cases import parse_cases
from agent_rl.envs.nat.service.keys import LOCAL
from agent_rl.envs.nat.service.metrics import ServiceMetrics
from agent_rl.envs.nat.service.packages import keep
from agent_rl.envs.nat.service.records import MAX_ATTEMPTS, WITH_PROJECT, AgentJob, Ended
from agent_rl.envs.nat.service.shown import shown_plan
from agent_rl.envs.nat.service.store import JobStore
from agent_rl.errors import EngineError, SandboxError, UserError

_LOGGER = logging.getLogger(__name__)
_IDLE_S = 1.0
"""Between looks at the queue when nobody calls, and between tries to write to a disk that is full."""
_END_S = 15.0
"""How long threads may take to end after they were told to."""
_DAY_S = 86400.0
_SWEEP_S = 60.0
DISK_FULL = "the disk of the service's store is full; ask again when its operator has made room"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


def is_disk_full(error: BaseException) -> bool:
    """Whether the disk refused what was to be kept."""
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorname == "SQLITE_FULL" or error.sqlite_errorname.startswith("SQLITE_IOERR")
    return isinstance(error, OSError) and error.errno in _FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """How a job is to end."""

    state: Ended
    reason: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    candidates: tuple[dict[str, Any], ...] = ()


class JobRunner(Closing):
    """`service.workers` threads on one creator and one store. `on_change` is called with the id of every job that
    changed, from any thread."""

    def __init__(
        self,
        creator: AgentCreator,
        store: JobStore,
        config: ServiceConfig,
        metrics: ServiceMetrics,
        on_change: Callable[[str], None],
    ) -> None:
        self._creator, self._store, self._config, self._metrics = creator, store, config, metrics
        self._on_change = on_change
        self._changed = threading.Condition()
        self._is_stopping = False
        self._cancels: dict[str, threading.Event] = {}
        self._put_back: set[str] = set()
        """Of the running jobs, those that go back to the queue instead of ending."""
        self._threads = [
            threading.Thread(target=self._work, name=f"job-{number}", daemon=True) for number in range(config.workers)
        ]
        self._threads.append(threading.Thread(target=self._keep_house, name="jobs-house", daemon=True))

    def start(self) -> None:
        """Queue what an earlier service left, then work."""
        num_again, num_failed = self._store.recover()
        for _ in range(num_again + num_failed):
            self._metrics.incident("restart")
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """There may be something to do."""
        with self._changed:
            self._changed.notify_all()

    def cancel(self, job: AgentJob) -> None:
        """End a job that is under way as `cancelled`, at once; what was being made for it is thrown away."""
        if self._store.end(job.id, "cancelled", reason="its owner cancelled it"):
            self._count_end(job, "cancelled")
        with self._changed:
            if job.id in self._cancels:
                self._cancels[job.id].set()
        self._on_change(job.id)

    def drain(self, seconds: float) -> None:
        """Begin nothing more, give what runs `seconds`, and put the rest back into the queue."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._cancels, timeout=seconds)
            left = dict(self._cancels)
            self._put_back |= set(left)
        for job_id, cancel in left.items():
            self._store.put_back(job_id, counts=False)
            cancel.set()

    def close(self) -> None:
        """`drain` without any time, and wait for the threads."""
        self.drain(0.0)
        deadline = time.monotonic() + _END_S
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))

    # The threads

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                self._run(job)
            finally:
                with self._changed:
                    self._cancels.pop(job.id, None)
                    self._put_back.discard(job.id)
                    self._changed.notify_all()

    def _next(self) -> AgentJob | None:
        """The next job, when there is one; None once the service stops."""
        while True:
            with self._changed:
                if self._is_stopping:
                    return None
                try:
                    job = self._store.claim(self._may_run)
                except sqlite3.Error as error:
                    self._note_store_error(error)
                    job = None
                if job is not None:
                    self._cancels[job.id] = threading.Event()
                    break
                self._changed.wait(_IDLE_S)
        self._on_change(job.id)
        return job

    def _may_run(self, key_name: str, num_running: int) -> bool:
        return key_name == LOCAL or num_running < self._config.running_per_key

    def _keep_house(self) -> None:
        """Remove what is old, and end jobs that waited beyond their deadlines."""
        swept_s = -_SWEEP_S
        while not self._is_stopping:
            try:
                for job in self._store.overdue():
                    self._end(job, _expired(job))
                if time.monotonic() - swept_s > _SWEEP_S:
                    swept_s = time.monotonic()
                    keep_s, rejected_s = self._config.keep_days * _DAY_S, self._config.keep_rejected_days * _DAY_S
                    self._store.sweep(keep_s=keep_s, keep_rejected_s=rejected_s)
            except (sqlite3.Error, OSError) as error:
                self._note_store_error(error)
            with self._changed:
                if not self._is_stopping:
                    self._changed.wait(_IDLE_S)

    def _note_store_error(self, error: BaseException) -> None:
        self._metrics.incident("disk_full" if is_disk_full(error) else "bug")
        _LOGGER.warning("the store failed: %s", error)

    # One job

    def _run(self, job: AgentJob) -> None:
        try:
            outcome: _Outcome | None = self._made(job)
        except CreationCancelledError:
            return  # it was ended, or put back, by whoever cancelled it
        except Exception as error:  # the boundary of a job: whatever fails costs this one, not the service
            outcome = self._failure(job, error)
        if outcome is not None:
            self._end(job, outcome)

    def _failure(self, job: AgentJob, error: Exception) -> _Outcome | None:
        """The end of a job that something ended; None where it is queued once more."""
        if isinstance(error, UserError):
            return _Outcome(state="refused", reason=str(error))
        if is_disk_full(error):
            self._metrics.incident("disk_full")
            return _Outcome(state="failed", reason=DISK_FULL)
        if not isinstance(error, SandboxError | EngineError):
            self._metrics.incident("bug")
            _LOGGER.error("job %s failed", job.id, exc_info=error)
            return _Outcome(state="failed", reason=f"the service failed at this ({type(error).__name__}); report it")
        if job.id in self._put_back:
            return None
        kind = "sandbox" if isinstance(error, SandboxError) else "engine"
        self._metrics.incident(kind)
        _LOGGER.warning("job %s: %s", job.id, error)
        with suppress(sqlite3.Error):
            if job.attempts < MAX_ATTEMPTS and self._store.put_back(job.id, counts=True):
                self._on_change(job.id)
                return None
        what = "the checks' sandbox" if kind == "sandbox" else "the engine that samples"
        return _Outcome(state="failed", reason=f"{what} failed: {error}"[:500])

    def _made(self, job: AgentJob) -> _Outcome:
        left_s = job.created_at + job.deadline_s - time.time()
        if left_s <= 0:
            return _expired(job)
        cases = parse_cases(job.options.get("cases") or (), "cases")
        creation = self._creator.create(
            job.request,
            spec=job.spec,
            cases=cases,
            candidates=job.options.get("candidates"),
            repairs=job.options.get("repairs"),
            seed=job.seed,
            deadline_s=left_s,
            on_event=lambda event: self._tell(job.id, event),
            cancelled=self._cancels[job.id],
        )
        outcome = self._outcome(job, creation)
        if outcome.state not in WITH_PROJECT:
            return outcome
        start_s = time.monotonic()
        try:
            kept = keep(creation, self._creator.toolkit, self._store.path_of(job.id), cases)
        except UserError as error:
            self._metrics.incident("packaging")
            return replace(outcome, state="failed", reason=str(error))
        timings = {**outcome.columns["timings"], "package_s": round(time.monotonic() - start_s, 3)}
        result = {**outcome.columns["result"], **kept.to_dict()}
        columns = {**outcome.columns, "result": result, "timings": timings, "num_bytes": kept.num_bytes}
        return replace(outcome, columns=columns)

    def _outcome(self, job: AgentJob, creation: Creation) -> _Outcome:
        """The end of a job by what was created, without its package."""
        candidates = tuple(each.to_dict() for each in creation.candidates)
        about = creation.provenance["planner"]
        if "status" in about:
            self._metrics.planned(about, creation.seconds["plan"])
        columns = {
            "planner": about["source"] if about else "",
            "model": creation.provenance["model"],
            "result": {
                "candidates": list(candidates),
                "chosen": creation.chosen,
                "report": creation.report.model_dump(mode="json") if creation.report else None,
                "provenance": creation.provenance,
            },
            "timings": {
                "queue_s": round((job.started_at or job.created_at) - job.created_at, 3),
                "plan_s": creation.seconds["plan"],
                "sample_s": round(sum(each.write_s for each in creation.candidates), 3),
                "check_s": round(sum(each.check_s for each in creation.candidates), 3),
            },
        }
        if about.get("status") == "failed":
            self._metrics.incident("planner")
            return _Outcome(state="failed", reason=creation.reason, columns=columns)
        if creation.state == "rejected" and time.time() >= job.created_at + job.deadline_s:
            return _Outcome(state="expired", reason=_expired(job).reason, columns=columns, candidates=candidates)
        return _Outcome(state=creation.state, reason=creation.reason, columns=columns, candidates=candidates)

    def _tell(self, job_id: str, event: Event) -> None:
        """An event of the creation, for the store and whoever listens."""
        kind = event["event"]
        if kind == "end":
            return  # the job's own comes when it is packaged
        data = {name: value for name, value in event.items() if name != "event"}
        columns: dict[str, Any] = {}
        state = {"check": "checking", "repair": "repairing", "candidate": "sampling"}.get(kind)
        if kind == "plan":
            if event["plan"] is not None:
                columns = {"spec": event["plan"]}
            state = None if event["refused"] else "sampling"
            data = {"plan": shown_plan(event["plan"])}
        elif kind == "candidate" and event["verdict"] != "rejected":
            state = None
        self._store.change(job_id, kind, data, state=state, **columns)
        self._on_change(job_id)

    def _end(self, job: AgentJob, outcome: _Outcome) -> None:
        """Write the end, as often as it takes: a full disk first costs the files, then it is waited for."""
        columns = dict(outcome.columns)
        seconds = round(time.time() - job.created_at, 3)
        columns["timings"] = {**columns.get("timings", {}), "all_s": seconds}
        while True:
            try:
                has_ended = self._store.end(job.id, outcome.state, reason=outcome.reason, **columns)
                break
            except sqlite3.Error as error:
                self._note_store_error(error)
                shutil.rmtree(self._store.path_of(job.id), ignore_errors=True)
                outcome, columns = _Outcome(state="failed", reason=DISK_FULL), {}
                with self._changed:
                    if self._is_stopping:
                        return  # the next service finds it under way
                    self._changed.wait(_IDLE_S)
        if not has_ended:  # it was cancelled meanwhile
            shutil.rmtree(self._store.path_of(job.id), ignore_errors=True)
            return
        self._count_end(job, outcome.state, str(columns.get("planner", job.planner)))
        self._metrics.candidates(list(outcome.candidates))
        for name, value in columns.get("timings", {}).items():
            if name != "all_s":
                self._metrics.stage(name.removesuffix("_s"), value)
        _LOGGER.info("job %s of %s: %s after %s s", job.id, job.key_name, outcome.state, seconds)
        self._on_change(job.id)

    def _count_end(self, job: AgentJob, state: Ended, planner: str = "") -> None:
        self._metrics.job_ended(state, planner or job.planner, time.time() - job.created_at)


def _expired(job: AgentJob) -> _Outcome:
    return _Outcome(
        state="expired", reason=f"its deadline of {job.deadline_s:g} s passed before there was a verdict; ask again"
    )
