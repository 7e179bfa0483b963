"""`events.jsonl`: what happened to a run, one JSON object per line, appended when it happens and never rewritten.

    {"time": "2026-03-01T12:00:00.123+00:00", "step": 20, "kind": "checkpoint", "facts": {"folder": "..."}}

`step` counts the steps done. The lines are the history of the run: after `resume` or `rollback` the steps behind
`from_step` or `to_step` are run again, and the events of their first pass stay. The kinds and their facts:

- `start`: `planned_steps`, `num_processes`. `resume`: `from_step` and `checkpoint` too, and `changed` settings.
- `evaluation`: `temperature`, `num_scored`, `num_successes`, `mean_reward`, `seconds`.
- `checkpoint`: `folder`.
- `alarm`: `metric`, `action`, `since_step`, `value` (null when not a number), `sentence`.
- `rollback`: `to_step`, `checkpoint` (null when there was none), `rate_factor` of the learning rate from now on.
- `interrupt`: `checkpoint_step` (null when there is none).
- `end`: `reason` is `finished`, `stopped` (by an alarm, or by updates that were not finite) or `failed`; `error`.

Not here: when something happened (the trainer), metrics (`metrics.py`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from agent_rl.errors import DataError
from agent_rl.telemetry.files import finite, plain, read_lines

EventKind = Literal["start", "resume", "evaluation", "checkpoint", "alarm", "rollback", "interrupt", "end"]
EVENTS_FILE = "events.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the file."""

    time: datetime
    step: int
    """Steps done when it happened."""
    kind: str
    """An `EventKind`; a later version may write others."""
    facts: Mapping[str, Any] = field(default_factory=dict)


class EventLog:
    """`EventLog(folder).write("rollback", 40, to_step=20)`; with several processes only the main one is `enabled`.

    The file is opened for every line, so that a killed process loses nothing that it reported before.
    """

    def __init__(self, folder: Path, *, enabled: bool = True) -> None:
        """Nothing is written yet."""
        self._path = folder / EVENTS_FILE
        self._enabled = enabled

    def write(self, kind: EventKind, step: int, **facts: Any) -> None:
        """Append one line; a number that is infinite or not a number becomes null.

        A last line that a crash cut off is removed first. DataError when the line cannot be written.
        """
        if not self._enabled:
            return
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        record = {"time": time, "step": step, "kind": kind, "facts": {k: finite(v) for k, v in facts.items()}}
        line = json.dumps(record, ensure_ascii=True, allow_nan=False, default=plain).encode() + b"\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab+") as file:
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
                file.write(line)
        except OSError as error:
            raise DataError(
                f"{self._path}: the {kind} at step {step} cannot be written ({error.strerror}); make room, then "
                "continue with checkpoint.resume=auto"
            ) from error


def read_events(folder: Path) -> list[Event]:
    """The events of a run's folder, the oldest first; none when the run is of a version that wrote no events.

    A last line that was cut off is left out. DataError for any other damage.
    """
    kinds = ", ".join(get_args(EventKind))
    problem = f"not an event with time, step, kind ({kinds}) and facts; remove the line to read the rest"
    return read_lines(folder / EVENTS_FILE, event_of, problem)


def event_of(record: Mapping[str, Any]) -> Event:
    """The event of a line's JSON; ValueError, KeyError or TypeError for what is none, a time without its zone too."""
    time = datetime.fromisoformat(record["time"])
    if time.tzinfo is None:  # whose time it is, and whether it can be told in seconds, depends on the machine
        raise ValueError(f"{record['time']!r:.60} has no time zone")
    return Event(
        time=time,
        step=int(record["step"]),
        kind=str(record["kind"]),
        facts=dict(record["facts"]),
    )
