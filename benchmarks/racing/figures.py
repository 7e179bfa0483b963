"""Turns of a race, success over time, and the table: pure functions on numbers. Not here: running anything, plots."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from agent_rl.reports.episodes import Episode
from agent_rl.reports.summary import percent, success_of

TRL, OURS = "TRL", "agent_rl"
SIDES = (TRL, OURS)
Curve = Sequence[tuple[float, float]]
"""(seconds of training, success), times rising, from 0 on."""


@dataclass(frozen=True, order=True)
class Turn:
    """One run: what the machine does alone until it ends."""

    task: str
    model: str
    seed: int
    side: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished run."""

    turn: Turn
    curve: Curve
    num_steps: int
    others_cpu: float
    """Share of the CPUs that other programs had meanwhile."""
    final: tuple[Episode, ...]
    """Of the last checkpoint, on the held-out tasks."""


def turns(tasks: Sequence[str], models: Sequence[str], num_seeds: int) -> Iterator[Turn]:
    """All runs in order: every pair of a task and a model with one seed, then with the next.

    The sides follow each other, and who is first changes with each seed, so that a machine that gets slower or faster
    does so for both.
    """
    for seed in range(num_seeds):
        sides = SIDES if seed % 2 == 0 else SIDES[::-1]
        for task in tasks:
            for model in models:
                yield from (Turn(task, model, seed, side) for side in sides)


def success_at(curve: Curve, seconds: float) -> float:
    """Success at a time, by straight lines between checkpoints; before the first and behind the last as there."""
    if seconds <= curve[0][0]:
        return curve[0][1]
    for (before, low), (after, high) in pairwise(curve):
        if seconds <= after:
            return low + (high - low) * (seconds - before) / (after - before)
    return curve[-1][1]


def mean_curve(curves: Sequence[Curve]) -> list[tuple[float, float]]:
    """The mean of the curves at every time that one of them has, up to the end of the first that ends."""
    end = min(curve[-1][0] for curve in curves)
    times = sorted({seconds for curve in curves for seconds, _ in curve if seconds <= end})
    return [(seconds, fmean(success_at(curve, seconds) for curve in curves)) for seconds in times]


def time_to(curve: Curve, threshold: float) -> float | None:
    """When the curve first reaches a success, in seconds; None if it never does."""
    if curve[0][1] >= threshold:
        return curve[0][0]
    for (before, low), (after, high) in pairwise(curve):
        if high >= threshold:
            return before + (after - before) * (threshold - low) / (high - low)
    return None


def summarize(results: Sequence[Result]) -> list[dict[str, Any]]:
    """A row for every task, model and side that has runs, as plain JSON values.

    `to_peer_s`: when the side's mean curve reaches the mean success that TRL ends with; None if it never does, TRL has
    not run, or TRL ends no higher than it began (`has_target` is False then). `share_of_time`: that in TRL's time.
    """
    rows = []
    for task, model in dict.fromkeys((result.turn.task, result.turn.model) for result in results):
        runs = [result for result in results if (result.turn.task, result.turn.model) == (task, model)]
        peers = [result.curve for result in runs if result.turn.side == TRL]
        for side in SIDES:
            own = sorted((result for result in runs if result.turn.side == side), key=lambda each: each.turn.seed)
            if own:
                rows.append({"task": task, "model": model, "side": side, **_figures(own, peers)})
    return rows


def _figures(own: Sequence[Result], peers: Sequence[Curve]) -> dict[str, Any]:
    curve = mean_curve([result.curve for result in own])
    target = fmean(peer[-1][1] for peer in peers) if peers else 0.0
    has_target = bool(peers) and target > fmean(peer[0][1] for peer in peers)
    reached = time_to(curve, target) if has_target else None
    return {
        "seeds": [result.turn.seed for result in own],
        "steps": fmean(result.num_steps for result in own),
        "start": fmean(result.curve[0][1] for result in own),
        "final": success_of([episode for result in own for episode in result.final]),
        "final_by_seed": [result.curve[-1][1] for result in own],
        "seconds": fmean(result.curve[-1][0] for result in own),
        "has_target": has_target,
        "to_peer_s": reached,
        "share_of_time": None if reached is None else reached / fmean(peer[-1][0] for peer in peers),
        "others_cpu": max(result.others_cpu for result in own),
        "curve": curve,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown of `summarize`."""
    heads = ["task", "model", "", "seeds", "steps", "start %", "final %", "by seed"]
    heads += [f"min to {TRL}'s final", "of its time", "CPU of others"]
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join('---' for _ in heads)} |"]
    for row in rows:
        reached, share = row["to_peer_s"], row["share_of_time"]
        cells = [row["task"], row["model"], row["side"], str(len(row["seeds"])), f"{row['steps']:.0f}"]
        cells += [f"{100 * row['start']:.1f}", percent(row["final"])]
        cells += [", ".join(f"{100 * rate:.1f}" for rate in row["final_by_seed"])]
        time = "not reached" if row["has_target"] else f"{TRL} did not rise"
        cells += [time if reached is None else f"{reached / 60:.1f}", "" if share is None else f"{share:.0%}"]
        lines.append(f"| {' | '.join((*cells, format(row['others_cpu'], '.0%')))} |")
    return "\n".join(lines)
