"""Episodes of a run that its report links to, and the file that these links open: best, worst, minor signal, flagged,
not scored, and the held-out tasks that changed, two by two.

Read from the steps whose samples were saved. Not here: the file's page (`reports/view/static_page.py`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from agent_rl.errors import DataError
from agent_rl.reports.run.changes import BeforeAfter, TaskPair
from agent_rl.reports.view.data import EpisodeSet, RunSamples
from agent_rl.reports.view.runs import ViewedRuns
from agent_rl.reports.view.static_page import write_page
from agent_rl.telemetry.metrics import MINOR

MAX_STEPS = 10
"""Saved steps that are looked through, the first and the last among them."""
NUM_EACH = 4
"""Links of each kind."""

_Row = Mapping[str, Any]
"""A summary of an episode (`view/steps.py`) with the id of its `set` and its `step`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLink:
    """One episode, or two side by side."""

    step: int
    task_id: str
    reward: float | None
    words: str
    """How it went."""
    fragment: str
    """What stands behind # in the address of the viewer's page, the served one and the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLinks:
    """What a report links to."""

    kinds: tuple[tuple[str, int, tuple[EpisodeLink, ...]], ...]
    """Title, how many episodes or groups of that kind there are, links to the first of them."""
    steps: tuple[int, ...]
    """Steps that were looked through."""
    notes: tuple[str, ...]
    """What could not be read."""
    pairs: Mapping[tuple[float, str], str]
    """Fragments of changed held-out tasks, by temperature and task."""
    kept: Mapping[str, set[int]] = field(repr=False)
    """Episodes that the file has to hold, by set."""

    @property
    def is_empty(self) -> bool:
        return not self.kept


def find_links(path: Path, held_out: Sequence[BeforeAfter]) -> EpisodeLinks:
    """Look through the saved steps of a run; `held_out` are its evaluations compared."""
    if not (path / "config.yaml").is_file():  # the report says so
        return EpisodeLinks(kinds=(), steps=(), notes=(), pairs={}, kept={})
    samples = RunSamples(path)
    sets = samples.sets()
    saved = [name for name, found in sets.items() if found.temperature is None]
    rows, notes = [], []
    for name in _spread(saved):
        try:
            summaries = samples.load_set(name, sets[name]).summaries
            rows += [{**row, "set": name, "step": sets[name].step} for row in summaries]
        except DataError as error:
            notes.append(str(error))
    kept: dict[str, set[int]] = {}
    kinds = tuple(_kinds(samples.name, [row for row in rows if not row["greedy"]], kept))
    return EpisodeLinks(
        kinds=tuple(kind for kind in kinds if kind[1]),
        steps=tuple(dict.fromkeys(row["step"] for row in rows)),
        notes=tuple(notes),
        pairs={
            (each.after.temperature, pair.after.task_id): fragment
            for each in held_out
            for pair in each.turned
            if (fragment := _pair(samples, sets, each, pair, kept))
        },
        kept=kept,
    )


def write_linked_page(path: Path, run: Path, links: EpisodeLinks) -> None:
    """Write the file that the links open; it holds these episodes and their groups alone."""
    write_page(path, ViewedRuns([RunSamples(run)]), lambda _, name: links.kept.get(name, ()))


def _spread(names: Sequence[str]) -> list[str]:
    """At most `MAX_STEPS` of them, evenly, the first and the last included."""
    if len(names) <= MAX_STEPS:
        return list(names)
    return [names[round(at * (len(names) - 1) / (MAX_STEPS - 1))] for at in range(MAX_STEPS)]


def _kinds(
    run: str, rows: Sequence[_Row], kept: dict[str, set[int]]
) -> Iterable[tuple[str, int, tuple[EpisodeLink, ...]]]:
    groups: dict[tuple[str, Any], list[_Row]] = {}
    for row in rows:
        groups.setdefault((row["set"], row["group_id"]), []).append(row)

    def links(chosen: Iterable[tuple[_Row, _Row | None]]) -> tuple[EpisodeLink, ...]:
        made = []
        for row, beside in list(chosen)[:NUM_EACH]:
            kept.setdefault(row["set"], set()).update(each["index"] for each in groups[row["set"], row["group_id"]])
            made.append(_link(run, row, beside))
        return tuple(made)

    scored = sorted((row for row in rows if row["reward"] is not None), key=lambda row: -row["reward"])
    if scored:
        best = scored[:NUM_EACH]
        yield "Highest rewards", len(best), links((row, None) for row in best)
        worst = [row for row in reversed(scored) if row not in best][:NUM_EACH]
        yield "Lowest rewards", len(worst), links((row, None) for row in worst)
    minor = _minor(groups.values())
    title = "Minor signal: one outcome, nearly one reward, and yet advantages; the highest and the lowest of the group"
    yield title, len(minor), links(minor)
    for flag, _ in Counter(flag for row in rows for flag in row["flags"]).most_common():
        flagged = [row for row in rows if flag in row["flags"]]
        yield f"Flagged {flag}", len(flagged), links((row, None) for row in flagged)
    lost = [row for row in rows if row["reward"] is None]
    yield "Not scored, as the environment failed", len(lost), links((row, None) for row in lost)


def _minor(groups: Iterable[Sequence[_Row]]) -> list[tuple[_Row, _Row]]:
    """The ends of groups that `group/frac_minor_signal` counts: highest and lowest reward; largest advantage first."""
    scored = [[row for row in group if row["reward"] is not None] for group in groups]
    ends: dict[str, list[float]] = {}
    for group in scored:
        for row in group:
            ends.setdefault(row["set"], []).append(row["reward"])
    found = []
    for group in filter(None, scored):
        rewards, step = [row["reward"] for row in group], ends[group[0]["set"]]
        has_one_outcome = len({row["success"] for row in group}) == 1 and group[0]["success"] is not None
        largest = max(abs(row["advantage"] or 0.0) for row in group)
        if has_one_outcome and largest and max(rewards) - min(rewards) < MINOR * (max(step) - min(step)):
            high, low = (choose(group, key=lambda row: row["reward"]) for choose in (max, min))
            found.append((largest, high, low))
    return [(high, low) for _, high, low in sorted(found, key=lambda each: -each[0])]


def _link(run: str, row: _Row, beside: _Row | None) -> EpisodeLink:
    places = _place(run, row, "") + (_place(run, beside, "with_") if beside else [])
    return EpisodeLink(
        step=row["step"],
        task_id=str(row["task_id"]),
        reward=row["reward"],
        words=_words(row) + (f"; beside it {_words(beside)}" if beside else ""),
        fragment=urlencode(places),
    )


def _words(row: _Row) -> str:
    outcome = {True: "solved", False: "not solved", None: None}[row["success"]]
    reward = "no reward" if row["reward"] is None else f"reward {row['reward']:.3f}"
    advantage = f"advantage {row['advantage']:+.2f}" if row["advantage"] else None
    return ", ".join(filter(None, (reward, outcome, advantage, f"ended by {row['stop_reason']}")))


def _place(run: str, row: _Row, prefix: str) -> list[tuple[str, Any]]:
    temperature = [] if row.get("temperature") is None else [("eval", row["temperature"])]
    named = [("run", run), ("step", row["step"]), *temperature, ("task", row["task_id"]), ("episode", row["number"])]
    return [(f"{prefix}{name}", value) for name, value in named]


def _pair(
    samples: RunSamples,
    sets: Mapping[str, EpisodeSet],
    compared: BeforeAfter,
    pair: TaskPair,
    kept: dict[str, set[int]],
) -> str | None:
    """The later episode of a changed task with the earlier one beside it; None where a file is gone by now."""
    temperature = f"{compared.after.temperature:g}"
    places = []
    for prefix, step in (("", compared.after.step), ("with_", compared.before.step)):
        name = f"eval-{step}-t{temperature}"
        try:
            summaries = samples.load_set(name, sets[name]).summaries
        except (KeyError, DataError):
            return None
        (row, *_) = [each for each in summaries if each["task_id"] == pair.after.task_id]
        kept.setdefault(name, set()).add(row["index"])
        places += _place(samples.name, {**row, "step": step, "temperature": temperature}, prefix)
    return urlencode(places)
