"""Logs of programs that serve, on stderr: lines for people, or JSON for those who collect them.

    {"time": "2026-03-01T12:00:00.123+00:00", "level": "INFO", "logger": "agent_rl.x", "text": "...", "run": "hello"}

What a call gives as `extra` is a key of its own, so that logs can be searched by it. `redacted` hides secrets in
it. Not here: the logs of training runs (`run_log.py`, `events.py`).
"""

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from agent_rl.redacted import redacted
from agent_rl.telemetry.files import finite, plain

_KNOWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""What every record has; the others were given as `extra`."""
_OWN = {"time", "level", "logger", "text", "error"}


class LogFormat(StrEnum):
    """For options of commands."""

    TEXT = "text"
    JSON = "json"


class JSONLines(logging.Formatter):
    """One JSON object a record, on one line."""

    def format(self, record: logging.LogRecord) -> str:
        row: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "text": redacted(record.getMessage()),
        }
        if record.exc_info:
            row["error"] = redacted(self.formatException(record.exc_info))
        extra = {name: value for name, value in vars(record).items() if name not in _KNOWN and name not in _OWN}
        row |= {name: finite(value) for name, value in redacted(extra).items()}
        return json.dumps(row, default=plain)


def start_log(style: LogFormat, *, level: int = logging.INFO) -> None:
    """Send what all loggers tell to stderr; earlier settings of the root logger are replaced."""
    handler = logging.StreamHandler(sys.stderr)
    is_json = style is LogFormat.JSON
    handler.setFormatter(JSONLines() if is_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of every request
