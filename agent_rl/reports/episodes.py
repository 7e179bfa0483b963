"""Episodes as reports read them, from `eval/*.json` of a run or from `episodes.jsonl` of an evaluation.

Not here: what a record holds (`telemetry/trajectory_json.py`).
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.config import import_plugins
from agent_rl.envs.failure_modes import FailureModes
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import DataError, UserError
from agent_rl.telemetry.files import read_lines
from agent_rl.telemetry.statistics import PairedChange, paired_change
from agent_rl.telemetry.trajectory_json import Episode

GENERAL = FailureModes()
"""Names failures by the ends of episodes, where no environment is known."""


def failure_modes_of(config: Mapping[str, Any], notes: list[str]) -> FailureModes:
    """The failure modes of the environment of a `config.yaml`; those of any environment, with a note, if it cannot be
    made, as for a configuration of another version."""
    env = config.get("env") or {}
    if "name" not in env:
        return GENERAL
    try:
        import_plugins(config.get("plugins"), "config.yaml")
        return FailureModes(make_env_factory(env["name"], env.get("options") or {}, seed=0).failure_rules)
    except UserError as error:
        notes.append(f"failures are named by the ends of episodes alone, as the environment cannot be made: {error}")
        return GENERAL


def read_eval_file(path: Path, failures: FailureModes = GENERAL) -> list[Episode]:
    """The episodes of a run's `eval/step_*_t*.json`, in task order. DataError when it is not such a file."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["episodes"]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); name an evaluation's file") from None
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path}: not the record of an evaluation; remove it or make it again") from None
    return to_episodes(rows, f"{path}, episode ", failures)


def read_episode_lines(path: Path) -> list[dict[str, Any]]:
    """The records of an `episodes.jsonl`; a last line that was cut off is left out. DataError for any other damage."""
    problem = "not a record of an episode; remove the file to evaluate again"
    return read_lines(path, lambda record: {**record}, problem)


def to_episodes(records: Iterable[Mapping[str, Any]], source: str, failures: FailureModes = GENERAL) -> list[Episode]:
    """Read records; DataError with `source` and the number of a record that is none."""
    numbered = enumerate(records, start=1)
    return [Episode.from_record(record, f"{source}{number}", failures.label) for number, record in numbered]


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

    @property
    def change(self) -> PairedChange | None:
        """Of the success of these tasks; None without any."""
        return paired_change(successes(self.before), successes(self.after)) if self.before else None


def in_common(before: Iterable[Episode], after: Iterable[Episode]) -> Common:
    """The tasks that can be compared: the same id, the same task, scored on both sides."""
    first, last = by_task(before), by_task(after)
    both = [task_id for task_id in first if first[task_id] and last.get(task_id)]
    others = tuple(task_id for task_id in both if first[task_id][0].is_of_another_task(last[task_id][0]))
    different = set(others)
    same = [task_id for task_id in both if task_id not in different]
    return Common(
        before={task_id: first[task_id] for task_id in same},
        after={task_id: last[task_id] for task_id in same},
        others=others,
    )


def failure_counts(episodes: Iterable[Episode]) -> dict[str, int]:
    """Failed episodes by failure mode, most frequent first; those without a score are left out."""
    labels = (episode.failure_mode for episode in episodes if episode.is_scored)
    return dict(Counter(label for label in labels if label is not None).most_common())


def successes(groups: Mapping[str, Sequence[Episode]]) -> list[list[bool]]:
    """Successes of every task's episodes, as `telemetry.statistics.paired_change` takes them."""
    return [[episode.is_success for episode in group] for group in groups.values()]
