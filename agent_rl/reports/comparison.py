"""Two evaluations of the same tasks side by side: what changed, and whether it is more than chance.

Not here: the statistics (`telemetry/statistics.py`).
"""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from agent_rl.errors import DataError
from agent_rl.reports.episodes import Episode, in_common, successes
from agent_rl.telemetry.statistics import paired_change, paired_means


def compare(before: Sequence[Episode], after: Sequence[Episode], where: str) -> dict[str, Any]:
    """The change from `before` to `after` as plain JSON values: `PairedChange`, its sentence, the reward's change with
    its 95 % interval (Student's t over tasks), and the tasks that were gained and lost.

    `where` names the evaluation that `before` comes from. DataError when the tasks are not the same, or no task was
    scored in both.
    """
    theirs, ours = ({episode.task_id for episode in side} for side in (before, after))
    if theirs != ours:
        raise DataError(
            f"{where}: {len(theirs)} tasks, of which {len(theirs & ours)} are among the {len(ours)} of this evaluation "
            f"({min(theirs ^ ours)!r} is in one only); compare evaluations of the same tasks"
        )
    common = in_common(before, after)
    if common.others:
        raise DataError(
            f"{where}: task {common.others[0]!r} is another one there ({len(common.others)} such in all); compare "
            "evaluations of the same tasks"
        )
    if not common.before:
        raise DataError(f"{where}: no task was scored in both evaluations; evaluate again")
    change = paired_change(successes(common.before), successes(common.after))
    mean, low, high = paired_means(
        *([_rewards(group) for group in side.values()] for side in (common.before, common.after))
    )
    rates = {task_id: _rate(common.after[task_id]) - _rate(group) for task_id, group in common.before.items()}
    return {
        **asdict(change),
        "change": change.change,
        "is_real": change.is_real,
        "sentence": change.sentence,
        "reward_change": {"mean": mean, "low": low, "high": high},
        "gained": [task_id for task_id, rate in rates.items() if rate > 0],
        "lost": [task_id for task_id, rate in rates.items() if rate < 0],
    }


def _rate(episodes: Sequence[Episode]) -> float:
    return fmean(episode.is_success for episode in episodes)


def _rewards(episodes: Sequence[Episode]) -> list[float]:
    return [episode.reward for episode in episodes if episode.reward is not None]
