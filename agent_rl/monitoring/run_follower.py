"""Follows the folder of one run: what was appended since the last look, its settings, its state, its checkpoint.

Reads only. What cannot be read is named in `unreadable` and not raised: one damaged run must not hide the others. Not
here: Prometheus (`exporter.py`).
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from agent_rl.config import flatten
from agent_rl.config.sections import AlarmConfig
from agent_rl.config.yaml_text import read_settings
from agent_rl.errors import ConfigError
from agent_rl.monitoring.growing_file import GrowingFile
from agent_rl.monitoring.run_rows import RunRows, read_row
from agent_rl.monitoring.run_state import LockWatch, allowed_silence_s, state_of
from agent_rl.telemetry.events import EVENTS_FILE, Event, event_of

METRICS_FILE = "metrics.jsonl"
CONFIG_FILE = "config.yaml"
ENVIRONMENT_FILE = "environment.json"
T = TypeVar("T")
_CHECKPOINT = re.compile(r"step_(\d{5,})")


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """The newest whole checkpoint of a run."""

    step: int
    time: float
    """When it was whole, in seconds since the epoch."""
    num_bytes: int


class RunFollower:
    """`follower.look()` reads what is new; then `rows`, `state`, `checkpoint`, `settings` are those of now."""

    def __init__(self, folder: Path) -> None:
        """Nothing is read yet."""
        self.folder = folder
        self.settings: Mapping[str, Any] = {}
        """The configuration, flat; empty where it cannot be read."""
        self.environment: Mapping[str, Any] = {}
        """Machine and versions, as in environment.json, flat."""
        self.rows = RunRows([])
        self.state: str | None = None
        self.checkpoint: SavedCheckpoint | None = None
        self.num_rollbacks = 0
        self.num_bad_lines = 0
        """Whole lines of metrics.jsonl and events.jsonl that could not be read."""
        self.unreadable: set[str] = set()
        """Names of files that could not be read at the last look."""
        self._lock = LockWatch(folder)
        self._written: dict[str, int] = {}
        self._restart()

    @property
    def name(self) -> str:
        """Of the folder, or of the link that leads there, so that no two of one folder are alike."""
        return os.path.basename(os.path.abspath(self.folder))

    def _restart(self) -> None:
        """Forget all rows and events, for what was read is no longer what the files hold."""
        self.rows = RunRows(_alarm_rules(self.settings))
        self.num_rollbacks = self.num_bad_lines = 0
        self._last_event: Event | None = None
        self._returns: list[Event] = []
        """Returns to a checkpoint and continued runs that no row has come after yet."""
        self._metrics_file = GrowingFile(self.folder / METRICS_FILE, on_restart=self._restart_again)
        self._events_file = GrowingFile(self.folder / EVENTS_FILE, on_restart=self._restart_again)

    def _restart_again(self) -> None:
        raise _ReplacedError

    def look(self, now: float | None = None) -> None:
        """Read what was appended; `now` is in seconds since the epoch."""
        self.unreadable = set()
        self._read_settings()
        try:
            self._read_new()
        except _ReplacedError:
            self._restart()
            with suppress(_ReplacedError):  # replaced once more meanwhile: the next look reads it
                self._read_new()
        self.checkpoint = self._newest_checkpoint()
        self.state = self._state(time.time() if now is None else now)

    @property
    def last_sign_time(self) -> float:
        """When the run last showed that it lives, by a row, an event or its start; 0 where it never did."""
        event_time = self._last_event.time.timestamp() if self._last_event else 0.0
        return max(self.rows.last_time, event_time, self._lock.taken_at())

    def _state(self, now: float) -> str | None:
        event = self._last_event
        return state_of(
            event.kind if event else None,
            event.facts.get("reason") if event else None,
            is_alive=self._lock.is_alive(),
            silence_s=now - self.last_sign_time,
            allowed_s=allowed_silence_s(self.rows.usual_step_s, self.rows.longest_evaluation_s),
        )

    def _read_settings(self) -> None:
        """Where they were written again, as a run that continues does; other alarms read all rows again."""
        if self._is_new(CONFIG_FILE):
            settings: Mapping[str, Any] = {}
            try:
                settings = flatten(read_settings(self.folder / CONFIG_FILE))
            except (ConfigError, AttributeError):
                self._miss(CONFIG_FILE)
            is_other = settings.get("log.alarms") != self.settings.get("log.alarms")
            self.settings = settings
            if is_other:
                self._restart()
        if self._is_new(ENVIRONMENT_FILE):
            self.environment = {}
            try:
                self.environment = flatten(json.loads((self.folder / ENVIRONMENT_FILE).read_text(encoding="utf-8")))
            except (OSError, ValueError, AttributeError):
                self._miss(ENVIRONMENT_FILE)

    def _is_new(self, name: str) -> bool:
        """Whether the file was written since it was last read; False where there is none."""
        try:
            written = (self.folder / name).stat().st_mtime_ns
        except FileNotFoundError:
            return False
        except OSError:
            written = -1
        is_new = self._written.get(name) != written
        self._written[name] = written
        return is_new

    def _miss(self, name: str) -> None:
        self.unreadable.add(name)
        self._written.pop(name, None)

    def _read_new(self) -> None:
        """Rows first: every event before a row is then in the events that are read after it."""
        for rows in self._parsed(self._metrics_file, METRICS_FILE, read_row):
            self._read_events()
            for row in rows:
                self._add(row)
        self._read_events()

    def _read_events(self) -> None:
        for events in self._parsed(self._events_file, EVENTS_FILE, event_of):
            self._last_event = events[-1] if events else self._last_event
            self.num_rollbacks += sum(event.kind == "rollback" for event in events)
            self._returns += [event for event in events if event.kind in ("rollback", "resume")]

    def _add(self, row: Mapping[str, Any]) -> None:
        """The trainer begins its alarms anew after it went back to a checkpoint, unless it was started again then."""
        is_back = False
        while self._returns and self._returns[0].time.timestamp() <= row["time"]:
            event = self._returns.pop(0)
            is_back = event.kind == "rollback" and event.facts.get("checkpoint") is not None
        if is_back:
            self.rows.restart_alarms()
        self.rows.add(row)

    def _parsed(self, file: GrowingFile, name: str, read: Callable[[Any], T]) -> Iterator[list[T]]:
        try:
            for lines in file.new_lines():
                yield list(self._readable(lines, read))
        except OSError:
            self._miss(name)

    def _readable(self, lines: Iterable[bytes], read: Callable[[Any], T]) -> Iterator[T]:
        for line in lines:
            try:
                yield read(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
                self.num_bad_lines += 1

    def _newest_checkpoint(self) -> SavedCheckpoint | None:
        """By its number: a checkpoint has its name once it is whole."""
        try:
            found = [
                (int(match[1]), path)
                for path in (self.folder / "checkpoints").iterdir()
                if (match := _CHECKPOINT.fullmatch(path.name))
            ]
            if not found:
                return None
            step, path = max(found)
            if self.checkpoint is not None and self.checkpoint.step == step:
                return self.checkpoint
            sizes = [file.stat().st_size for file in path.rglob("*") if file.is_file()]
            return SavedCheckpoint(step, path.stat().st_mtime, sum(sizes))
        except FileNotFoundError:  # no checkpoints yet, or this one was just removed
            return None
        except OSError:
            self._miss("checkpoints")
            return None


class _ReplacedError(Exception):
    """A file no longer begins with what was read of it."""


def _alarm_rules(settings: Mapping[str, Any]) -> list[AlarmConfig]:
    with suppress(ValueError, TypeError):
        return [AlarmConfig(**rule) for rule in settings.get("log.alarms") or ()]
    return []
