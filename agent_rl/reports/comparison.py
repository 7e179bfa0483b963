"""Two evaluations of the same tasks side by side: what changed, and whether it is more than chance.

Not here: the statistics (`statistics.py`).
"""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from agent_rl.errors import DataError
from agent_rl.reports.episodes import Episode, by_task, successes
from agent_rl.reports.statistics import bootstrap_interval, paired_change


def compare(before: Sequence[Episode], after: Sequence[Episode], where: str) -> dict[str, Any]:
    """The change from `before` to `after` as plain JSON values: `PairedChange`, its sentence, the reward's change with
    its 95 % interval (paired bootstrap over tasks), and the tasks that were gained and lost.

    `where` names the evaluation that `before` comes from. DataError when the tasks are not the same, or no task was
    scored in both.
    """
    first, last = by_task(before), by_task(after)
    if first.keys() != last.keys():
        odd = min(first.keys() ^ last.keys())
        raise DataError(
            f"{where}: {len(first)} tasks, of which {len(first.keys() & last.keys())} are among the {len(last)} of "
            f"this evaluation ({odd!r} is in one only); compare evaluations of the same tasks"
        )
    both = [task_id for task_id in last if first[task_id] and last[task_id]]
    if not both:
        raise DataError(f"{where}: no task was scored in both evaluations; evaluate again")
    change = paired_change(successes(first, both), successes(last, both))
    rewards = [_mean_reward(last[task_id]) - _mean_reward(first[task_id]) for task_id in both]
    low, high = bootstrap_interval(rewards)
    rates = {task_id: _rate(last[task_id]) - _rate(first[task_id]) for task_id in both}
    return {
        **asdict(change),
        "change": change.change,
        "is_real": change.is_real,
        "sentence": change.sentence,
        "method": "McNemar's exact test" if change.p_value is not None else "paired bootstrap over tasks",
        "reward_change": {"mean": fmean(rewards), "low": low, "high": high},
        "gained": [task_id for task_id in both if rates[task_id] > 0],
        "lost": [task_id for task_id in both if rates[task_id] < 0],
    }


def _rate(episodes: Sequence[Episode]) -> float:
    return fmean(episode.is_success for episode in episodes)


def _mean_reward(episodes: Sequence[Episode]) -> float:
    return fmean(episode.reward for episode in episodes if episode.reward is not None)
