"""Held-out tasks before and after: which outcomes changed, in what order to read them, and how failures shifted.

Both sides ran the same tasks with the same seeds, so they are compared task by task; tasks that share only the id are
left out. Not here: the statistics (`telemetry/statistics.py`), failure modes
(`envs/failure_modes.py`).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent_rl.reports.episodes import Episode, failure_counts, in_common
from agent_rl.reports.run.data import HeldOutEvaluation
from agent_rl.telemetry.statistics import PairedChange


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPair:
    """One task with two sets of weights."""

    before: Episode
    after: Episode

    @property
    def reward_change(self) -> float:
        return (self.after.reward or 0.0) - (self.before.reward or 0.0)

    @property
    def failure(self) -> str | None:
        """Why the side that failed did; the later one where both did."""
        return self.after.failure_mode or self.before.failure_mode

    @property
    def data(self) -> dict[str, Any]:
        rewards = {"reward_before": self.before.reward, "reward_after": self.after.reward}
        return {"task_id": self.after.task_id, "failure_mode": self.failure} | rewards


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeAfter:
    """Two evaluations at one temperature, compared on the tasks that both scored."""

    before: HeldOutEvaluation
    after: HeldOutEvaluation
    """Of these tasks only."""
    change: PairedChange
    gained: tuple[TaskPair, ...]
    """Failed before, solved after; in the order to read them."""
    lost: tuple[TaskPair, ...]
    """Solved before, failed after."""
    failures_before: dict[str, int]
    failures_after: dict[str, int]
    """Failed episodes by failure mode, most frequent first."""

    @property
    def by_env(self) -> dict[str, "BeforeAfter"]:
        """The same of each environment of a mixture; empty where all are of one."""
        after = self.after.by_env
        compared = {name: compare([each, after[name]]) for name, each in self.before.by_env.items() if name in after}
        return {name: each for name, each in compared.items() if each is not None}

    @property
    def turned(self) -> tuple[TaskPair, ...]:
        return self.gained + self.lost


def compare(evaluations: Sequence[HeldOutEvaluation]) -> BeforeAfter | None:
    """The first against the last of evaluations at one temperature; None with fewer than two, or when no task was
    scored in both."""
    if len(evaluations) < 2:
        return None
    before, after = evaluations[0], evaluations[-1]
    common = in_common(before.episodes, after.episodes)
    if common.change is None:
        return None
    pairs = [TaskPair(before=group[0], after=common.after[task_id][0]) for task_id, group in common.before.items()]
    return BeforeAfter(
        before=replace(before, episodes=tuple(pair.before for pair in pairs)),
        after=replace(after, episodes=tuple(pair.after for pair in pairs)),
        change=common.change,
        gained=reading_order(p for p in pairs if p.after.is_success and not p.before.is_success),
        lost=reading_order(p for p in pairs if p.before.is_success and not p.after.is_success),
        failures_before=failure_counts(pair.before for pair in pairs),
        failures_after=failure_counts(pair.after for pair in pairs),
    )


def left_out_notes(evaluations: Sequence[HeldOutEvaluation]) -> list[str]:
    """Sentences, without a full stop, on tasks and episodes that `compare` cannot count."""
    if not evaluations:
        return []
    before, after = evaluations[0], evaluations[-1]
    where = f"temperature {after.temperature:g}, steps {before.step} and {after.step}"
    notes = []
    if others := in_common(before.episodes, after.episodes).others:
        notes.append(
            f"{where}: held-out tasks with the same id that are different tasks on both sides are not compared: "
            f"{len(others)}, such as {others[0]!r}"
        )
    for each in (before, after):
        if num_lost := len(each.episodes) - each.counted.num_scored:
            notes.append(
                f"temperature {each.temperature:g}, step {each.step}: {num_lost} of {len(each.episodes)} held-out "
                "episodes were dropped by environment errors"
            )
    return notes


def reading_order(pairs: Iterable[TaskPair]) -> tuple[TaskPair, ...]:
    """One of each failure mode first, then a second one of each; among these the largest change of reward first."""
    seen: Counter[str | None] = Counter()
    ranked = []
    for pair in sorted(pairs, key=lambda pair: -abs(pair.reward_change)):
        ranked.append((seen[pair.failure], pair))
        seen[pair.failure] += 1
    return tuple(pair for _, pair in sorted(ranked, key=lambda each: each[0]))
