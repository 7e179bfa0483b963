"""The store of the service: jobs, what happened to them, feedback, uses of keys. Safe for threads.

A state changes only from what it was expected to be, and every change commits with its event, so a job ends once and a
client that comes back is told all of it. One service writes a store; a lock on the folder holds that. Not here: the
tables (`schema.py`), who may see what (`keys.py`), what a job does (`runner.py`).
"""

import fcntl
import json
import os
import secrets
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from agent_rl.closing import Closing
from agent_rl.envs.nat.service.records import (
    ENDED,
    MAX_ATTEMPTS,
    PARTIAL,
    UNDER_WAY,
    AgentJob,
    Ended,
    Feedback,
    JobEvent,
)
from agent_rl.envs.nat.service.schema import open_to_write
from agent_rl.errors import ConfigError
from agent_rl.telemetry.files import make_folder

AGENTS = "agents"
_JSON = ("options", "spec", "model", "result", "timings")
_COLUMNS = tuple(field.name for field in fields(AgentJob))
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM jobs"
_HOUR_S = 3600.0
_TEXTS = "comment || cases || CASE consent WHEN 0 THEN '' ELSE request || options || coalesce(spec, '') || result END"
_FEEDBACK_BYTES = f"""
SELECT coalesce(sum(length(CAST({_TEXTS} AS BLOB))), 0) FROM feedback JOIN jobs ON id = job_id
WHERE feedback.key_name = ?
"""
TRIED_TWICE = "the service ended twice while this agent was made, so it is not tried again; ask once more"


class QueueFullError(Exception):
    """As many jobs wait as may."""


class KeyReusedError(Exception):
    """The idempotency key was used with another body."""


class FeedbackFullError(Exception):
    """The feedback of a key takes as much of the store as it may."""


class JobStore(Closing):
    """A folder with `store.sqlite3` and `agents/ID/`, open for writing."""

    def __init__(self, folder: Path) -> None:
        """ConfigError where the folder cannot be used, or another service uses it."""
        make_folder(folder / AGENTS, "service.store")
        self.folder = folder
        self._writing = threading.RLock()
        self._lock_file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.chmod(folder, 0o700)
            self._db = open_to_write(folder)
        except OSError as error:
            os.close(self._lock_file)
            raise ConfigError(
                f"service.store is {folder}, which another service uses ({error.strerror}); end it or name another"
            ) from None
        except ConfigError:
            os.close(self._lock_file)
            raise

    def close(self) -> None:
        with self._writing:
            self._db.close()
            if self._lock_file >= 0:
                os.close(self._lock_file)
                self._lock_file = -1

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._writing:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite itself rolls back where the disk is full
                    self._db.execute("ROLLBACK")
                raise

    def _rows(self, sql: str, *values: Any) -> list[Any]:
        with self._writing:
            return self._db.execute(sql, values).fetchall()

    # Jobs

    def admit(
        self, job: AgentJob, *, body_sha256: str, idempotency_key: str | None = None, max_queue: int
    ) -> tuple[AgentJob, bool]:
        """Queue a job; (the job, whether it is new). With a key that was used before, the job of then.

        QueueFullError and KeyReusedError, and nothing is kept.
        """
        with self._transaction() as db:
            if (known := self.known(job.key_name, idempotency_key, body_sha256)) is not None:
                return known, False
            (waiting,) = db.execute("SELECT count(*) FROM jobs WHERE state = 'queued'").fetchone()
            if waiting >= max_queue:
                raise QueueFullError
            columns = {name: _written(name, getattr(job, name)) for name in _COLUMNS}
            columns |= {"idempotency_key": idempotency_key, "body_sha256": body_sha256}
            marks = ", ".join("?" * len(columns))
            db.execute(f"INSERT INTO jobs ({', '.join(columns)}) VALUES ({marks})", tuple(columns.values()))
            _add_event(db, job.id, "state", {"state": job.state})
        return job, True

    def known(self, key_name: str, idempotency_key: str | None, body_sha256: str) -> AgentJob | None:
        """The job that was asked for with this idempotency key. KeyReusedError where the body was another."""
        rows = self._rows(
            "SELECT id, body_sha256 FROM jobs WHERE key_name = ? AND idempotency_key = ?", key_name, idempotency_key
        )
        if rows and rows[0][1] != body_sha256:
            raise KeyReusedError
        return self.find(rows[0][0]) if rows else None

    def find(self, job_id: str) -> AgentJob | None:
        rows = self._rows(f"{_SELECT} WHERE id = ?", job_id)
        return _job(rows[0]) if rows else None

    def newest(self, key_name: str | None, limit: int) -> list[AgentJob]:
        """Jobs of a key, or of all, the newest first."""
        order = "ORDER BY created_at DESC, id LIMIT ?"
        if key_name is None:
            return [_job(row) for row in self._rows(f"{_SELECT} {order}", limit)]
        return [_job(row) for row in self._rows(f"{_SELECT} WHERE key_name = ? {order}", key_name, limit)]

    def claim(self, may_run: Callable[[str, int], bool]) -> AgentJob | None:
        """Begin the oldest job that may run now: `may_run(key name, how many of this key are under way)`."""
        with self._transaction() as db:
            states = ", ".join("?" * (len(UNDER_WAY) - 1))
            running: Counter[str] = Counter(
                dict(
                    db.execute(
                        f"SELECT key_name, count(*) FROM jobs WHERE state IN ({states}) GROUP BY key_name",
                        UNDER_WAY[1:],
                    ).fetchall()
                )
            )
            waiting = db.execute(
                "SELECT id, key_name FROM jobs WHERE state = 'queued' ORDER BY created_at, id"
            ).fetchall()
            found = next((job_id for job_id, name in waiting if may_run(name, running[name])), None)
            if found is None:
                return None
            db.execute(
                "UPDATE jobs SET state = 'planning', attempts = attempts + 1, started_at = ? WHERE id = ?",
                (time.time(), found),
            )
            _add_event(db, found, "state", {"state": "planning"})
        return self.find(found)

    def change(
        self, job_id: str, event: str, data: Mapping[str, Any], *, state: str | None = None, **columns: Any
    ) -> bool:
        """Change a job that is under way and tell it, a state that is new too; False where it has ended meanwhile."""
        with self._transaction() as db:
            before = db.execute("SELECT state FROM jobs WHERE id = ?", (job_id,)).fetchone()
            changes = columns if state is None else {**columns, "state": state}
            if not _update(db, job_id, UNDER_WAY[1:], changes):
                return False
            _add_event(db, job_id, event, data)
            if state not in (None, before[0]):
                _add_event(db, job_id, "state", {"state": state})
        return True

    def end(self, job_id: str, state: Ended, *, reason: str = "", **columns: Any) -> bool:
        """The end of a job; False where it has ended before, and then nothing changes."""
        with self._transaction() as db:
            if not _update(
                db, job_id, UNDER_WAY, {**columns, "state": state, "reason": reason, "ended_at": time.time()}
            ):
                return False
            _add_event(db, job_id, "end", {"state": state, "reason": reason})
        return True

    def put_back(self, job_id: str, *, counts: bool) -> bool:
        """Queue a job that was begun once more; without `counts` as if it had not been begun."""
        with self._transaction() as db:
            changed = db.execute(
                "UPDATE jobs SET state = 'queued', attempts = attempts - ?, "
                "spec = CASE planner WHEN 'given' THEN spec END "
                f"WHERE id = ? AND state IN ({', '.join('?' * (len(UNDER_WAY) - 1))})",
                (0 if counts else 1, job_id, *UNDER_WAY[1:]),
            ).rowcount
            if changed:
                _add_event(db, job_id, "state", {"state": "queued"})
        return bool(changed)

    def recover(self) -> tuple[int, int]:
        """After a crash: (jobs that are queued once more, jobs that have failed because it was not the first).

        Packages that were being written are removed; call it before any job runs.
        """
        begun = self._rows(f"SELECT id, attempts FROM jobs WHERE state IN ({', '.join('?' * 4)})", *UNDER_WAY[1:])
        again = [job_id for job_id, attempts in begun if attempts < MAX_ATTEMPTS and self.put_back(job_id, counts=True)]
        failed = [
            job_id
            for job_id, attempts in begun
            if attempts >= MAX_ATTEMPTS and self.end(job_id, "failed", reason=TRIED_TWICE)
        ]
        for left in [*(self.folder / AGENTS).glob(f"*{PARTIAL}"), *map(self.path_of, failed)]:
            shutil.rmtree(left, ignore_errors=True)
        return len(again), len(failed)

    def overdue(self) -> list[AgentJob]:
        """Queued jobs whose deadline has passed."""
        return [
            _job(row)
            for row in self._rows(f"{_SELECT} WHERE state = 'queued' AND created_at + deadline_s < ?", time.time())
        ]

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        return dict(self._rows("SELECT state, count(*) FROM jobs GROUP BY state"))

    # Events

    def events(self, job_id: str, after: int = 0) -> list[JobEvent]:
        """What happened to a job since event `after`."""
        rows = self._rows(
            "SELECT number, event, data FROM events WHERE job_id = ? AND number > ? ORDER BY number", job_id, after
        )
        return [JobEvent(number=number, event=event, data=json.loads(data)) for number, event, data in rows]

    # Feedback

    def put_feedback(self, feedback: Feedback, *, max_bytes: int | None = None) -> bool:
        """Keep it in place of what the same key said before; whether that key says so for the first time.

        FeedbackFullError, and nothing is kept, where a key's feedback, with the jobs that it keeps, would be larger.
        """
        with self._transaction() as db:
            place = (feedback.job_id, feedback.key_name)
            known = db.execute("SELECT verdict FROM feedback WHERE job_id = ? AND key_name = ?", place).fetchone()
            db.execute(
                "INSERT OR REPLACE INTO feedback VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    feedback.job_id,
                    feedback.key_name,
                    feedback.verdict,
                    feedback.comment,
                    json.dumps(list(feedback.cases)),
                    int(feedback.consent),
                    feedback.created_at,
                ),
            )
            (num_bytes,) = db.execute(_FEEDBACK_BYTES, (feedback.key_name,)).fetchone()
            if max_bytes is not None and num_bytes > max_bytes:
                raise FeedbackFullError
        return known is None or known[0] != feedback.verdict

    def feedback(self, job_id: str) -> list[Feedback]:
        rows = self._rows("SELECT * FROM feedback WHERE job_id = ? ORDER BY key_name", job_id)
        return [
            Feedback(
                job_id=row[0],
                key_name=row[1],
                verdict=row[2],
                comment=row[3],
                cases=json.loads(row[4]),
                consent=bool(row[5]),
                created_at=row[6],
            )
            for row in rows
        ]

    # Keys

    def use(self, key_name: str, per_hour: int) -> float:
        """Count a request of a key: 0, or the seconds until one is free, and then it is not counted."""
        now = time.time()
        with self._transaction() as db:
            db.execute("DELETE FROM uses WHERE at <= ?", (now - _HOUR_S,))
            times = db.execute("SELECT at FROM uses WHERE key_name = ? ORDER BY at", (key_name,)).fetchall()
            if len(times) >= per_hour:
                return max(1.0, times[len(times) - per_hour][0] + _HOUR_S - now)
            db.execute("INSERT INTO uses VALUES (?, ?)", (key_name, now))
        return 0.0

    # Folders, and what is too old

    def path_of(self, job_id: str) -> Path:
        """The folder of a job's package; `job_id` is one that the store gave out."""
        return self.folder / AGENTS / job_id

    def delete(self, job_id: str) -> None:
        """Remove a job that has ended, with all that is known of it."""
        with self._transaction() as db:
            db.execute(f"DELETE FROM jobs WHERE id = ? AND state IN ({', '.join('?' * len(ENDED))})", (job_id, *ENDED))
        shutil.rmtree(self.path_of(job_id), ignore_errors=True)

    def sweep(self, *, keep_s: float, keep_rejected_s: float) -> int:
        """Remove ended jobs that are older, and folders of no job; returns how many jobs lost their files.

        A job with feedback that may be used for training stays, without files.
        """
        now = time.time()
        kept = "EXISTS (SELECT 1 FROM feedback WHERE job_id = id AND consent = 1)"
        old = self._rows(
            f"SELECT id, {kept} FROM jobs WHERE ended_at < CASE state WHEN 'rejected' THEN ? ELSE ? END "
            f"AND (num_bytes > 0 OR NOT {kept})",
            now - keep_rejected_s,
            now - keep_s,
        )
        for job_id, is_kept in old:
            if is_kept:
                shutil.rmtree(self.path_of(job_id), ignore_errors=True)
                with self._transaction() as db:
                    db.execute("UPDATE jobs SET num_bytes = 0 WHERE id = ?", (job_id,))
            else:
                self.delete(job_id)
        known = {row[0] for row in self._rows("SELECT id FROM jobs")}
        for folder in (self.folder / AGENTS).iterdir():
            if folder.name.removesuffix(PARTIAL) not in known:
                shutil.rmtree(folder, ignore_errors=True)
        return len(old)

    def num_bytes(self) -> int:
        """Of the packages and of the database's pages in use."""
        ((packages,),) = self._rows("SELECT coalesce(sum(num_bytes), 0) FROM jobs")
        ((pages,),), ((free,),), ((size,),) = (
            self._rows(f"PRAGMA {name}") for name in ("page_count", "freelist_count", "page_size")
        )
        return int(packages + (pages - free) * size)


def new_job_id() -> str:
    """An id that nobody guesses."""
    return f"agent-{secrets.token_hex(12)}"


def _add_event(db: sqlite3.Connection, job_id: str, event: str, data: Mapping[str, Any]) -> None:
    db.execute(
        "INSERT INTO events SELECT ?, coalesce(max(number), 0) + 1, ?, ?, ? FROM events WHERE job_id = ?",
        (job_id, event, json.dumps(data), time.time(), job_id),
    )


def _update(db: sqlite3.Connection, job_id: str, states: tuple[str, ...], columns: Mapping[str, Any]) -> bool:
    """Change a job that is in one of the states; the checksum of its model has a column of its own."""
    changes = {name: _written(name, value) for name, value in columns.items()}
    if "model" in columns:
        changes["model_sha256"] = str(columns["model"].get("sha256", ""))
    sets = ", ".join(f"{name} = ?" for name in changes) or "id = id"
    marks = ", ".join("?" * len(states))
    done = db.execute(
        f"UPDATE jobs SET {sets} WHERE id = ? AND state IN ({marks})", (*changes.values(), job_id, *states)
    )
    return done.rowcount == 1


def _written(name: str, value: Any) -> Any:
    return json.dumps(value) if name in _JSON and value is not None else value


def _job(row: tuple[Any, ...]) -> AgentJob:
    values = dict(zip(_COLUMNS, row, strict=True))
    return AgentJob(**{name: json.loads(value) if name in _JSON and value else value for name, value in values.items()})
