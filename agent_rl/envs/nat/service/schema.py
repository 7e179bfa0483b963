"""The tables of a store, and how to open them.

`store.sqlite3` is in WAL mode: others may read it while the service writes. What is committed is on the disk, so a
service that is killed has lost no job that it accepted. Not here: what is written (`store.py`).
"""

import sqlite3
from pathlib import Path

from agent_rl.errors import ConfigError, DataError

FILE = "store.sqlite3"
VERSION = 1
_TABLES = """
CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    key_name TEXT NOT NULL,
    idempotency_key TEXT,
    body_sha256 TEXT NOT NULL,
    state TEXT NOT NULL,
    request TEXT NOT NULL,
    options TEXT NOT NULL,               -- JSON: cases, candidates, repairs
    seed INTEGER NOT NULL,
    deadline_s REAL NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    planner TEXT NOT NULL DEFAULT '',    -- given, gemini, openai, none
    spec TEXT,                           -- JSON: a row as in dataset/nat_tasks, or NULL
    reason TEXT NOT NULL DEFAULT '',
    model_sha256 TEXT NOT NULL DEFAULT '',
    model TEXT NOT NULL DEFAULT '{}',    -- JSON: name, sha256, policy, ...
    result TEXT NOT NULL DEFAULT '{}',   -- JSON: candidates, chosen, report, provenance, package, files
    timings TEXT NOT NULL DEFAULT '{}',  -- JSON: queue_s, plan_s, sample_s, check_s, package_s, all_s
    created_at REAL NOT NULL,            -- UNIX seconds, as all times here
    started_at REAL,
    ended_at REAL,
    num_bytes INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX jobs_once ON jobs (key_name, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX jobs_by_state ON jobs (state, created_at);
CREATE TABLE events (
    job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    event TEXT NOT NULL,
    data TEXT NOT NULL,                  -- JSON
    at REAL NOT NULL,
    PRIMARY KEY (job_id, number)
) WITHOUT ROWID;
CREATE TABLE feedback (
    job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    key_name TEXT NOT NULL,
    verdict TEXT NOT NULL,               -- works, fails, partly
    comment TEXT NOT NULL,
    cases TEXT NOT NULL,                 -- JSON: [{target, input, expected}]
    consent INTEGER NOT NULL,            -- 0 or 1
    created_at REAL NOT NULL,
    PRIMARY KEY (job_id, key_name)
) WITHOUT ROWID;
CREATE TABLE uses (                      -- requests that count against `per_hour`
    key_name TEXT NOT NULL,
    at REAL NOT NULL
);
CREATE INDEX uses_by_key ON uses (key_name, at);
"""


def open_to_write(folder: Path) -> sqlite3.Connection:
    """The database of a store, made where it is missing. ConfigError where that cannot be."""
    path = folder / FILE
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30.0)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version={VERSION}; COMMIT;")
    except sqlite3.Error as error:
        raise ConfigError(f"{path} cannot be used ({error}); name another folder in service.store") from None
    if version not in (0, VERSION):
        connection.close()
        raise ConfigError(f"{path} is of version {version}, this program writes {VERSION}; name another service.store")
    return connection


def open_to_read(folder: Path) -> sqlite3.Connection:
    """The database of a store for those who only read, also while its service runs. DataError where there is none."""
    path = folder / FILE
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30.0)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error as error:
        raise DataError(f"{path} cannot be read ({error}); give the folder of service.store") from None
    if version != VERSION:
        connection.close()
        raise DataError(f"{path} is of version {version}, this program reads {VERSION}; use the version that wrote it")
    connection.row_factory = sqlite3.Row
    return connection
