"""Episodes as reports read them: one record, from `eval/*.json` of a run or from `episodes.jsonl` of an evaluation.

Files of earlier versions lack some fields; what a record does not say is None or empty. Not here: what the records are
made of (`core/evaluation.py`, `telemetry/transcripts.py`).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One played episode of one task."""

    task_id: str
    sample: int = 0
    """Its number among the episodes of its task, from 0."""
    family: str | None = None
    level: int | str | None = None
    difficulty: str | None = None
    reward: float | None
    """None when the environment failed and the episode counts for nothing."""
    reward_parts: Mapping[str, float]
    stop_reason: str
    num_turns: int = 0
    num_tokens: int | None = None
    """Tokens that the model drew."""
    duration_s: float | None = None
    flags: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """What the environment noted at the end, in words."""
    error: str | None = None
    messages: tuple[Mapping[str, Any], ...] = ()
    """As in `transcripts/`; empty in files of earlier versions."""

    @property
    def is_scored(self) -> bool:
        return self.reward is not None

    @property
    def is_success(self) -> bool:
        return self.reward_parts.get("success", 0.0) >= 1.0

    @classmethod
    def from_record(cls, record: Mapping[str, Any], where: str) -> "Episode":
        """Read a record. DataError, opened by `where`, for one that lacks what every version wrote."""
        try:
            return cls(
                task_id=str(record["task_id"]),
                sample=int(record.get("sample", 0)),
                family=record.get("family"),
                level=record.get("level"),
                difficulty=record.get("difficulty"),
                reward=None if record["reward"] is None else float(record["reward"]),
                reward_parts={str(name): float(value) for name, value in record["reward_parts"].items()},
                stop_reason=str(record["stop_reason"]),
                num_turns=int(record.get("num_turns", 0)),
                num_tokens=record.get("num_tokens"),
                duration_s=record.get("duration_s"),
                flags=tuple(record.get("flags", ())),
                problems=tuple(record.get("problems", ())),
                error=record.get("error"),
                messages=tuple(record.get("messages", ())),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"{where}: not a record of an episode ({type(error).__name__}: {error}); use a file that an evaluation "
                "wrote"
            ) from None


def read_eval_file(path: Path) -> list[Episode]:
    """The episodes of a run's `eval/step_*_t*.json`, in task order. DataError when it is not such a file."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["episodes"]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); name an evaluation's file") from None
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path}: not the record of an evaluation; remove it or make it again") from None
    return [Episode.from_record(row, f"{path}, episode {number}") for number, row in enumerate(rows, start=1)]


def read_episode_lines(path: Path) -> list[dict[str, Any]]:
    """The records of an `episodes.jsonl`; a last line that was cut off is left out. DataError for any other damage."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [_record(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


def _record(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise DataError(f"{where}: not a record of an episode; remove the file to evaluate again")
    return record


def by_task(episodes: Iterable[Episode]) -> dict[str, list[Episode]]:
    """Scored episodes by task id, in order of appearance; a task without a scored one has an empty list."""
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.task_id, []).extend([episode] if episode.is_scored else [])
    return groups


def successes(groups: Mapping[str, Sequence[Episode]], task_ids: Iterable[str]) -> list[list[bool]]:
    """Successes of the episodes of `task_ids`, as `statistics.paired_change` takes them."""
    return [[episode.is_success for episode in groups[task_id]] for task_id in task_ids]
