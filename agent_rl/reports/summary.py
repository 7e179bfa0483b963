"""The figures of an evaluation, as plain JSON values; the tables that a terminal shows; and two evaluations compared.

Success is counted as in training (`core/evaluation.py`): with one episode a task the figures are the same.
Not here: files and pages (`evaluation.py`), statistics (`telemetry/statistics.py`).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from statistics import fmean
from typing import Any

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from agent_rl.errors import DataError
from agent_rl.reports.episodes import Episode, by_task, failure_counts, in_common
from agent_rl.telemetry.statistics import clustered_interval, correlation_within, ks_of, paired_means, pass_at_k

Figures = dict[str, Any]
GROUPINGS = ("env", "difficulty", "level", "family")
"""By what success is shown apart, where tasks say so and more than one kind is there."""
MAX_VALUES = 50
"""Values of a grouping that tables and plots show."""
FAILURE_MODES = "Failure modes, of failed episodes"
_LABEL_CHARS = 28
_DIFFICULTIES = ("easy", "medium", "hard")
_SHARE = "share/"


def summarize(episodes: Sequence[Episode], *, part_weights: Mapping[str, float] | None = None) -> Figures:
    """Figures of `episodes`, at least one of them scored.

    `num_tasks`, `num_episodes`, `num_env_errors` (episodes without a score, left out of all but lengths and ends);
    `success` as in `success_of`; `by`: label -> value -> the same of those tasks; `reward`: mean, min, max; `parts`:
    mean of every part of the reward, in a mixture over the environments that report it; `parts_with_success`: its
    correlation with success within tasks, with one episode a task across them, None where one of the two is the same
    everywhere; `components`: shares in [0, 1], those parts named `share/*` and the parts of `part_weights` without
    their weights; `pass_at_k`: k -> rate, of the tasks with as many scored episodes, whose number is in
    `pass_at_k_tasks`, with `[low, high]` in `pass_at_k_intervals`; `pass_at_k_by`: label -> value -> `pass_at_k_of`
    those tasks; `turns`, `tokens`, `seconds`: means of an episode, None where no record says; `stop_reasons`,
    `failure_modes`, `flags`: episodes by name, most frequent first.
    Raises ValueError when nothing was scored.
    """
    scored = [episode for episode in episodes if episode.is_scored]
    if not scored:
        raise ValueError("no episode was scored")
    rewards = _rewards(scored)
    names = sorted({name for episode in scored for name in episode.reward_parts})
    parts = {
        name: fmean(e.reward_parts.get(name, 0.0) for e in _reporting(scored, name))
        for name in names
        if name != "success"
    }
    weighted = {name: parts[name] / weight for name, weight in (part_weights or {}).items() if weight and name in parts}
    shares = {name.removeprefix(_SHARE): mean for name, mean in parts.items() if name.startswith(_SHARE)}
    pass_at = pass_at_k_of(scored)
    by = {name: groups for name in GROUPINGS if len(groups := _grouped(scored, name)) > 1}
    return {
        "num_tasks": len({episode.task_id for episode in episodes}),
        "num_episodes": len(episodes),
        "num_env_errors": len(episodes) - len(scored),
        "success": success_of(scored),
        "by": {name: {value: success_of(group) for value, group in groups.items()} for name, groups in by.items()},
        "reward": {"mean": fmean(rewards), "min": min(rewards), "max": max(rewards)},
        "components": {**weighted, **shares},
        "parts": parts,
        "parts_with_success": {name: _with_success(scored, name) for name in parts},
        "pass_at_k": {k: each["rate"] for k, each in pass_at.items()},
        "pass_at_k_tasks": {k: each["num_tasks"] for k, each in pass_at.items()},
        "pass_at_k_intervals": {k: [each["low"], each["high"]] for k, each in pass_at.items()},
        "pass_at_k_by": {
            name: {value: pass_at_k_of(group) for value, group in groups.items()} for name, groups in by.items()
        },
        "turns": _mean(episodes, lambda e: e.num_turns),
        "tokens": _mean(episodes, lambda e: e.num_tokens),
        "seconds": _mean(episodes, lambda e: e.duration_s),
        "stop_reasons": dict(Counter(episode.stop_reason for episode in episodes).most_common()),
        "failure_modes": failure_counts(scored),
        "flags": dict(Counter(flag for episode in episodes for flag in set(episode.flags)).most_common()),
    }


def _reporting(scored: Sequence[Episode], name: str) -> list[Episode]:
    """Episodes of the environments that report a part at all; one that lacks it there counts as 0."""
    envs = {episode.env for episode in scored if name in episode.reward_parts}
    return [episode for episode in scored if episode.env in envs]


def _with_success(scored: Sequence[Episode], name: str) -> float | None:
    """Of a part of the reward, in groups of a task's episodes where tasks have several."""
    reporting = _reporting(_reporting(scored, name), "success")
    groups = [group for group in by_task(reporting).values() if len(group) > 1] or [reporting]
    return correlation_within(
        [[(e.reward_parts.get(name, 0.0), float(e.is_success)) for e in group] for group in groups]
    )


def success_of(episodes: Sequence[Episode]) -> Figures:
    """Success of scored episodes: the mean over tasks of the share that succeeded, with `clustered_interval`."""
    groups = [[episode.is_success for episode in group] for group in by_task(episodes).values() if group]
    rates = [fmean(group) for group in groups]
    low, high = clustered_interval(rates, len(episodes))
    return {
        "rate": fmean(rates) if rates else 0.0,
        "low": low,
        "high": high,
        "num_tasks": len(rates),
        "num_episodes": len(episodes),
        "num_successes": sum(map(sum, groups)),
    }


def pass_at_k_of(episodes: Sequence[Episode]) -> dict[str, Figures]:
    """k -> `rate`, `low`, `high` and `num_tasks` of pass@k, over the tasks with at least k of the scored `episodes`.

    The interval counts a task as often as disjoint groups of k fit into its episodes: with k = 1 it is that of
    `success_of`, with as many episodes as k Wilson's over tasks. Keys are texts, as JSON has no whole numbers there.
    """
    groups = [group for group in by_task(episodes).values() if group]
    found = {}
    for k in ks_of(max(map(len, groups), default=0)):
        enough = [group for group in groups if len(group) >= k]
        rates = [pass_at_k(len(group), sum(episode.is_success for episode in group), k) for group in enough]
        low, high = clustered_interval(rates, sum(len(group) // k for group in enough))
        found[str(k)] = {"rate": fmean(rates), "low": low, "high": high, "num_tasks": len(rates)}
    return found


def dropped(figures: Figures, baseline: Figures | None = None) -> list[str]:
    """`2 of 400 episodes dropped by environment errors.`, for either side that lost any."""
    sides = [("", figures), *([("of the baseline ", baseline)] if baseline else [])]
    return [
        f"{side['num_env_errors']} of {side['num_episodes']} episodes {of}dropped by environment errors."
        for of, side in sides
        if side["num_env_errors"]
    ]


def _grouped(episodes: Sequence[Episode], name: str) -> dict[str, list[Episode]]:
    """By a label of the tasks; easy comes before hard, numbers rise, other labels are in alphabetical order."""
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        if (value := getattr(episode, name)) is not None:
            groups.setdefault(str(value), []).append(episode)
    return {value: groups[value] for value in sorted(groups, key=_place)}


def _place(label: str) -> tuple[int, float, str]:
    """Sort key of a label: the difficulties, then numbers, then words."""
    if label in _DIFFICULTIES:
        return 0, _DIFFICULTIES.index(label), label
    return (1, float(label), label) if label.removeprefix("-").isdecimal() else (2, 0.0, label)


def _mean(episodes: Sequence[Episode], value_of: Callable[[Episode], float | None]) -> float | None:
    values = [value for episode in episodes if (value := value_of(episode)) is not None]
    return fmean(values) if values else None


def percent(success: Figures) -> str:
    """`54.0 [47.1, 60.8]`."""
    return f"{100 * success['rate']:.1f} [{100 * success['low']:.1f}, {100 * success['high']:.1f}]"


def group_table(figures: Figures, baseline: Figures | None = None) -> Table:
    """Success by group, of a baseline too; fits 80 columns."""
    title = "; ".join(filter(None, ("Solved % (95 % intervals)", left_out(figures))))
    table = Table(title=title, box=SIMPLE, title_justify="left")
    table.add_column("", no_wrap=True, max_width=_LABEL_CHARS, overflow="ellipsis")
    for column in ("tasks", *(["baseline"] if baseline else []), "solved %"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, success, other in group_rows(figures, baseline):
        before = [] if baseline is None else [Text("" if other is None else percent(other))]
        table.add_row(Text(name), str(success["num_tasks"]), *before, Text(percent(success)))
    return table


def group_rows(figures: Figures, baseline: Figures | None = None) -> list[tuple[str, Figures, Figures | None]]:
    """`all` and the groups, each with the baseline's success where that has the group; `MAX_VALUES` of a grouping."""
    rows = [("all", figures["success"], baseline["success"] if baseline else None)]
    for name, groups in figures["by"].items():
        others = baseline["by"].get(name, {}) if baseline else {}
        shown = islice(groups.items(), MAX_VALUES)
        rows += [(f"{name} {value}", success, others.get(value)) for value, success in shown]
    return rows


def left_out(figures: Figures) -> str:
    """`family: 12 more in report.json`, of groupings with more values than are shown; empty without any."""
    numbers = {name: len(groups) - MAX_VALUES for name, groups in figures["by"].items()}
    return "; ".join(f"{name}: {number} more in report.json" for name, number in numbers.items() if number > 0)


def pass_rows(figures: Figures) -> list[tuple[str, dict[str, Figures]]]:
    """`all` and the groups, as in `group_rows`, with their `pass_at_k_of`; none with one episode a task."""
    if len(figures["pass_at_k"]) < 2:
        return []
    every = {
        k: {"rate": rate, "low": low, "high": high, "num_tasks": figures["pass_at_k_tasks"][k]}
        for (k, rate), (low, high) in zip(
            figures["pass_at_k"].items(), figures["pass_at_k_intervals"].values(), strict=True
        )
    }
    groups = [(name, islice(values.items(), MAX_VALUES)) for name, values in figures["pass_at_k_by"].items()]
    return [("all", every), *((f"{name} {value}", by_k) for name, values in groups for value, by_k in values)]


def pass_table(figures: Figures) -> Table:
    """The first and the last pass@k of every group, with intervals; fits 80 columns."""
    table = Table(title="pass@k % (95 % intervals)", box=SIMPLE, title_justify="left")
    table.add_column("", no_wrap=True, max_width=_LABEL_CHARS, overflow="ellipsis")
    rows = pass_rows(figures)
    ends = (min(figures["pass_at_k"], key=int), max(figures["pass_at_k"], key=int))
    for column in ("tasks", *(f"pass@{k}" for k in ends)):
        table.add_column(column, justify="right", no_wrap=True)
    for name, by_k in rows:
        tasks = str(by_k[ends[0]]["num_tasks"])
        table.add_row(Text(name), tasks, *(Text(percent(by_k[k]) if k in by_k else "") for k in ends))
    return table


def figure_table(figures: Figures, baseline: Figures | None = None) -> Table:
    """Everything else, with the baseline's figures in a column of their own; fits 80 columns."""
    table = Table(box=SIMPLE, show_header=False)
    table.add_column("", no_wrap=True, max_width=34, overflow="ellipsis")
    columns = ("baseline", "this model") if baseline else ("",)
    for _ in columns:
        table.add_column("", justify="right", no_wrap=True)
    for title, rows in figure_rows(figures, baseline):
        table.add_row(*(Text(name, "bold") for name in (title, *columns)))
        for name, *values in rows:
            table.add_row(Text(f"  {name}"), *map(Text, values))
    return table


def figure_rows(figures: Figures, baseline: Figures | None = None) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Titles with rows of a name, the baseline's value if there is a baseline, and the value; no empty sections."""
    if baseline is None:
        return [(title, list(rows.items())) for title, rows in _sections(figures).items() if rows]
    before, now = _sections(baseline), _sections(figures)
    return [
        (title, [(name, before[title].get(name, ""), rows.get(name, "")) for name in {**rows, **before[title]}])
        for title, rows in now.items()
        if rows or before[title]
    ]


def _sections(figures: Figures) -> dict[str, dict[str, str]]:
    num_episodes, num_failed = figures["num_episodes"], sum(figures["failure_modes"].values())
    reward, pass_at = figures["reward"], figures["pass_at_k"]
    components, parts = figures["components"], figures["parts"]
    lengths = {"turns": figures["turns"], "generated tokens": figures["tokens"], "seconds": figures["seconds"]}
    return {
        "Reward": {"mean": f"{reward['mean']:.3f}", "range": f"{reward['min']:.3f} to {reward['max']:.3f}"},
        "Components, mean share": _decimals(components),
        "Parts of the reward, mean": {} if components else _decimals(parts),
        "Parts, correlation with success": {
            name: "none" if value is None else f"{value:+.2f}"
            for name, value in figures.get("parts_with_success", {}).items()
        },
        "pass@k": _pass_at(figures) if len(pass_at) > 1 else {},
        "Mean of an episode": {name: f"{mean:.1f}" for name, mean in lengths.items() if mean is not None},
        "Ends of episodes": _shares(figures["stop_reasons"], num_episodes),
        FAILURE_MODES: _shares(figures["failure_modes"], num_failed),
        "Reward hacking, episodes": _shares(figures["flags"], num_episodes),
    }


def _pass_at(figures: Figures) -> dict[str, str]:
    """With the number of tasks where some have too few scored episodes."""
    every, counts = figures["success"]["num_tasks"], figures["pass_at_k_tasks"]
    notes = {k: f" ({number} of {every} tasks)" if number < every else "" for k, number in counts.items()}
    (_, by_k), *_ = pass_rows(figures)
    return {f"pass@{k}": f"{percent(each)} %{notes[k]}" for k, each in by_k.items()}


def _decimals(values: Mapping[str, float]) -> dict[str, str]:
    return {name: f"{value:.3f}" for name, value in values.items()}


def _shares(counts: Mapping[str, int], total: int) -> dict[str, str]:
    return {name: f"{count} ({100 * count / total:.1f} %)" for name, count in counts.items()}


# Two evaluations


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
            f"{where}: task {common.others[0]!r} is a different task there ({len(common.others)} in all); compare "
            "evaluations of the same tasks"
        )
    if (change := common.change) is None:
        raise DataError(f"{where}: no task was scored in both evaluations; evaluate again")
    mean, low, high = paired_means(
        *([_rewards(group) for group in side.values()] for side in (common.before, common.after))
    )
    then, now = (
        {task_id: fmean(e.is_success for e in group) for task_id, group in side.items()}
        for side in (common.before, common.after)
    )
    return {
        **asdict(change),
        "change": change.change,
        "is_real": change.is_real,
        "sentence": change.sentence,
        "reward_change": {"mean": mean, "low": low, "high": high},
        "gained": [task_id for task_id, rate in then.items() if now[task_id] > rate],
        "lost": [task_id for task_id, rate in then.items() if now[task_id] < rate],
    }


def _rewards(episodes: Sequence[Episode]) -> list[float]:
    return [episode.reward for episode in episodes if episode.reward is not None]
