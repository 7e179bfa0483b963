"""What the reward of a run pays for: every part that episodes record, how it moved, and whether it goes with success.

Means are those of metrics.jsonl, over the first and the last steps as everywhere in the report; the correlation is of
episodes of the last saved steps within their groups, which is what a group's advantages see. Not here: the statistic
(`telemetry/statistics.py`), the curves of the parts (`curves.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from agent_rl.errors import DataError
from agent_rl.reports.run.data import Run
from agent_rl.reports.run.evidence import is_clear, measured, rise
from agent_rl.reports.view.data import RunSamples
from agent_rl.telemetry.statistics import correlation_within, is_success

MAX_STEPS = 3
"""Saved steps whose episodes count: the newest, as a policy that found a loophole did so late."""
_PREFIX, _SUFFIX = "reward_parts/", "/mean"
_Scored = tuple[Mapping[str, Any], float, str | None]
"""Parts, reward and, in a mixture, environment of an episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFigures:
    """One part of the reward, or the reward itself."""

    name: str
    first: float
    """Mean over the first steps."""
    last: float
    with_success: float | None
    """Correlation with success, from -1 to 1; None where one of the two was the same everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardParts:
    """What is known of the reward's parts."""

    success: tuple[float, float] | None
    """Mean over the first and the last steps."""
    parts: tuple[PartFigures, ...]
    """The reward first."""
    source: str
    """Which episodes the correlations are of."""
    alone: tuple[str, ...]
    """Parts that clearly rose in training while success did not."""


def reward_parts(run: Run) -> RewardParts | None:
    """The parts of a run's reward; None where no episode records any besides success."""
    names = {"reward": "reward/mean"}
    names |= {key.removeprefix(_PREFIX).removesuffix(_SUFFIX): key for key in run.metrics if key.startswith(_PREFIX)}
    names.pop("success", None)
    moved = {name: ends for name, key in names.items() if (ends := _ends(run, key))}
    if len(moved) < 2:
        return None
    success = _ends(run, "success/mean")
    groups, source = _groups(run)
    parts = tuple(
        PartFigures(name=name, first=fmean(first), last=fmean(last), with_success=_with_success(name, groups))
        for name, (first, last) in moved.items()
    )
    return RewardParts(
        success=(fmean(success[0]), fmean(success[1])) if success else None,
        parts=parts,
        source=source,
        alone=tuple(name for name, ends in moved.items() if success and _rose(*ends) and not _rose(*success)),
    )


def _ends(run: Run, key: str) -> tuple[Sequence[float], Sequence[float]] | None:
    """The first and the last steps' values; of a short run the first and the last alone."""
    values = measured(run.metrics.get(key, ()))
    return run.evidence().ends(key) or ((values[:1], values[-1:]) if values else None)


def _rose(first: Sequence[float], last: Sequence[float]) -> bool:
    return len(first) > 1 and rise(first, last) > 0 and is_clear(first, last)


def _with_success(name: str, groups: Sequence[Sequence[_Scored]]) -> float | None:
    """Over the environments that report the part, and success; an episode there that lacks one counts as 0."""
    envs, judged = (
        {env for group in groups for parts, _, env in group if part == "reward" or part in parts}
        for part in (name, "success")
    )
    values = [
        [
            (reward if name == "reward" else float(parts.get(name) or 0.0), float(is_success(parts)))
            for parts, reward, env in group
            if env in envs & judged
        ]
        for group in groups
    ]
    return correlation_within(values)


def _groups(run: Run) -> tuple[list[list[_Scored]], str]:
    """Groups of the newest saved steps; without any, the tasks of the last evaluation as one group."""
    groups: dict[Any, list[_Scored]] = {}
    steps = []
    for step, record in _saved(run):
        steps.append(step)
        groups.setdefault((step, record["group_id"]), []).append(
            (record["reward_parts"], record["reward"], record.get("env"))
        )
    if groups:
        numbers = dict.fromkeys(map(str, steps))
        return list(
            groups.values()
        ), f"within {len(groups)} groups of step{'s' * (len(numbers) > 1)} {', '.join(numbers)}"
    last = max(run.evaluations, key=lambda each: (each.step, each.temperature), default=None)
    episodes = last.episodes if last else ()
    scored = [(each.reward_parts, each.reward, each.env) for each in episodes if each.reward is not None]
    if not last or not scored:
        return [], "of no episode, as none was saved"
    return [scored], f"across {len(scored)} held-out tasks after step {last.step}, as no step of training was saved"


def _saved(run: Run) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Scored episodes of training; what cannot be read is left out, as the links to episodes say so."""
    try:
        samples = RunSamples(run.path)
    except DataError:
        return
    sets = [(name, found) for name, found in samples.sets().items() if found.temperature is None]
    for name, found in sets[-MAX_STEPS:]:
        try:
            viewed = samples.load_set(name, found)
        except DataError:
            continue
        for index in range(len(viewed.summaries)):
            record = viewed.record(index)
            if record["reward"] is not None and not record.get("greedy"):
                yield found.step or 0, record
