"""Episodes as reports read them: one record, from `eval/*.json` of a run or from `episodes.jsonl` of an evaluation.

Files of earlier versions lack some fields; what a record does not say is None or empty. Not here: what the records are
made of (`core/evaluation.py`, `telemetry/transcripts.py`).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from agent_rl.errors import DataError
from agent_rl.telemetry.metrics import is_success


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
    task_sha256: str | None = None
    """Digest of the task's row; None in files of earlier versions."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """As in `transcripts/`; empty in files of earlier versions."""

    @property
    def is_scored(self) -> bool:
        return self.reward is not None

    @property
    def is_success(self) -> bool:
        return is_success(self.reward_parts)

    @property
    def opening(self) -> tuple[Mapping[str, Any], ...]:
        """The messages before the model's first."""
        return tuple(takewhile(lambda message: message.get("role") != "assistant", self.messages))

    def is_of_another_task(self, other: "Episode") -> bool:
        """Whether the rows differ, whatever their ids are; told by the openings where a row's digest is not known."""
        if self.task_sha256 and other.task_sha256:
            return self.task_sha256 != other.task_sha256
        return bool(self.opening and other.opening) and self.opening != other.opening

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
                task_sha256=record.get("task_sha256"),
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
    try:
        # Cut as bytes: a line may have been cut off within a character.
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); name another folder") from None
    return [_record(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


def _record(line: bytes, where: str) -> dict[str, Any]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What two evaluations have in common, by task id in the order of the first."""

    before: dict[str, list[Episode]]
    after: dict[str, list[Episode]]
    """Scored episodes of the tasks that both scored; the keys of both are the same."""
    others: tuple[str, ...]
    """Ids that both scored of tasks which are not the same; left out of the two."""


def in_common(before: Iterable[Episode], after: Iterable[Episode]) -> Common:
    """The tasks that can be compared: the same id, the same task, scored on both sides."""
    first, last = by_task(before), by_task(after)
    both = [task_id for task_id in first if first[task_id] and last.get(task_id)]
    others = tuple(task_id for task_id in both if first[task_id][0].is_of_another_task(last[task_id][0]))
    same = [task_id for task_id in both if task_id not in others]
    return Common(
        before={task_id: first[task_id] for task_id in same},
        after={task_id: last[task_id] for task_id in same},
        others=others,
    )


def successes(groups: Mapping[str, Sequence[Episode]]) -> list[list[bool]]:
    """Successes of every task's episodes, as `telemetry.paired.paired_change` takes them."""
    return [[episode.is_success for episode in group] for group in groups.values()]
