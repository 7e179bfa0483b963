"""The page of an evaluation: figures, plots, comparison, conversations to unfold; and the plots as files.

Not here: what a page is made of (`html_parts.py`), how a plot is drawn (`plots.py`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_rl.reports.episodes import Episode
from agent_rl.reports.html_parts import (
    Html,
    block,
    conversation,
    folded,
    grid,
    heading,
    image,
    page,
    paragraph,
    table,
)
from agent_rl.reports.plots import count_bars, histogram, pass_curve, rate_marks, save_png, svg_uri
from agent_rl.reports.summary import FAILURE_MODES, Figures, dropped, figure_rows, group_rows, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Report = Mapping[str, Any]
"""As `evaluation_output.write_report` makes it."""
NUM_RANKED = 3
"""Conversations shown of the best, of the worst, and of each failure mode."""
MAX_TRANSCRIPT_CHARS = 2_000_000
"""Of all conversations on a page together, which keeps a page at a few megabytes."""
_INTERVALS = (
    "Intervals are 95 %: Wilson's, for several episodes of a task with the effective number of episodes, so that "
    "episodes of one task do not count as independent. Of many intervals, one in twenty misses what it is for."
)
METHODS = {
    "McNemar": "Success is compared by McNemar's exact test and Newcombe's interval for pairs",
    "sign-flip": "Success is compared by an exact sign-flip test and Student's t, both over tasks",
}
"""By `PairedChange.method`."""


def draw(report: Report, episodes: Sequence[Episode]) -> dict[str, tuple["Figure", str]]:
    """Plots by file name, each with its caption."""
    figures, baseline = report["summary"], report["baseline"]
    rows = group_rows(figures, baseline)
    success = {name: (s["rate"], s["low"], s["high"]) for name, s, _ in rows}
    others = {name: (o["rate"], o["low"], o["high"]) for name, _, o in rows if o is not None}
    note = "; hollow marks: the baseline" if others else ""
    plots = {
        "success": (rate_marks(success, label="solved in %", others=others), f"Success with 95 % intervals{note}"),
    }
    modes, before = figures["failure_modes"], baseline["failure_modes"] if baseline else None
    if modes or before:
        every = {name: modes.get(name, 0) for name in {**modes, **(before or {})}}
        note = "; hatched: the baseline" if before is not None else ""
        plots["failure_modes"] = (
            count_bars(every, label="failed episodes", others=before),
            f"Failed episodes by failure mode{note}",
        )
    if len(figures["pass_at_k"]) > 1:
        curves = {"this model": figures, "baseline": baseline} if baseline else {"this model": figures}
        points = {name: {int(k): rate for k, rate in each["pass_at_k"].items()} for name, each in curves.items()}
        plots["pass_at_k"] = (pass_curve(points), "pass@k, unbiased estimator of Chen et al. 2021")
    rewards = [episode.reward for episode in episodes if episode.reward is not None]
    plots["rewards"] = (histogram(rewards, label="reward", unit="episodes"), "Rewards of all scored episodes")
    return plots


def write_plots(plots: Mapping[str, tuple["Figure", str]], folder: Path) -> None:
    """Each as `NAME.png`."""
    for name, (figure, _) in plots.items():
        save_png(figure, folder / f"{name}.png")


def render(
    report: Report,
    episodes: Sequence[Episode],
    plots: Mapping[str, tuple["Figure", str]],
    meanings: Mapping[str, str],
) -> str:
    """The whole page, one file that needs nothing else."""
    figures, settings, comparison = report["summary"], report["settings"], report["comparison"]
    model, protocol = settings["model"], settings["protocol"]
    pictures = {name: image(svg_uri(figure), caption) for name, (figure, caption) in plots.items()}
    body = [
        heading("Evaluation", 1),
        paragraph(
            f"{model['name']} on {model['tasks']}: {protocol['num_tasks']} tasks, "
            f"{protocol['samples']} episode{'s' * (protocol['samples'] > 1)} each, temperature "
            f"{protocol['temperature']:g}",
            "soft",
        ),
        paragraph(f"Solved: {percent(figures['success'])} %", "lead"),
        *(paragraph(said, "bad") for said in dropped(figures, report["baseline"])),
        *_comparison(comparison, report["baseline_name"]),
        heading("Success"),
        _success_table(figures, report["baseline"]),
        paragraph(_INTERVALS, "soft"),
        pictures["success"],
        *_failures(figures, report["baseline"], pictures, meanings),
        *_figures(figures, report["baseline"]),
        *([heading("pass@k"), pictures["pass_at_k"]] if "pass_at_k" in pictures else []),
        heading("Rewards"),
        pictures["rewards"],
        *_transcripts(episodes),
        heading("Settings"),
        folded("What the evaluation was made with", [_settings_table(settings), *_environment(report)]),
    ]
    return page(f"Evaluation of {model['name']}", body)


def _comparison(comparison: Mapping[str, Any] | None, name: str | None) -> list[Html]:
    if comparison is None:
        return []
    reward = comparison["reward_change"]
    return [
        paragraph(f"Against {name}: {comparison['sentence']}", "lead"),
        paragraph(
            f"Mean reward {reward['mean']:+.3f} [{reward['low']:+.3f}, {reward['high']:+.3f}]. "
            f"{METHODS[comparison['method']]}; of the reward, Student's t over tasks.",
            "soft",
        ),
        *(
            folded(f"{len(comparison[key])} tasks {word}", [block("\n".join(comparison[key]))])
            for key, word in (("gained", "solved more often than by the baseline"), ("lost", "solved less often"))
            if comparison[key]
        ),
    ]


def _success_table(figures: Figures, baseline: Figures | None) -> Html:
    headers = ["", "tasks", "episodes", *(["baseline %"] if baseline else []), "solved %"]
    rows = []
    for name, success, other in group_rows(figures, baseline):
        before = [] if baseline is None else [percent(other) if other else ""]
        rows.append([name, success["num_tasks"], success["num_episodes"], *before, percent(success)])
    return table(headers, rows)


def _failures(
    figures: Figures, baseline: Figures | None, pictures: Mapping[str, Html], meanings: Mapping[str, str]
) -> list[Html]:
    """The table and the plot of failure modes; none where nothing failed."""
    if "failure_modes" not in pictures:
        return []
    modes = dict(figure_rows(figures, baseline))[FAILURE_MODES]
    headers = ["mode", "meaning", *(["baseline"] if baseline else []), "episodes"]
    rows = [(name, meanings.get(name, ""), *counts) for name, *counts in modes]
    return [heading("Why episodes failed"), table(headers, rows, num_text=2), pictures["failure_modes"]]


def _figures(figures: Figures, baseline: Figures | None) -> list[Html]:
    """What has no section of its own, in small tables."""
    headers = ["", "baseline", "this model"] if baseline else ["", ""]
    sections = [
        (heading(title, 3), table(headers, rows))
        for title, rows in figure_rows(figures, baseline)
        if title != FAILURE_MODES
    ]
    return [heading("Figures"), grid(sections)]


def _settings_table(settings: Mapping[str, Any]) -> Html:
    rows = [(key, value) for part in ("model", "protocol") for key, value in settings[part].items()]
    return table(["setting", "value"], rows, num_text=2)


def _environment(report: Report) -> list[Html]:
    found = report.get("environment")
    return [table(["machine", ""], list(found.items()), num_text=2)] if found else []


def _transcripts(episodes: Sequence[Episode]) -> list[Html]:
    """Best, worst and failed episodes by mode, each once, until the page has enough."""
    parts: list[Html] = [heading("Conversations")]
    room, num_left_out = MAX_TRANSCRIPT_CHARS, 0
    for title, chosen in choose(episodes):
        shown: list[Html] = []
        for episode in chosen:
            part = _transcript(episode)
            if len(part) > room:
                num_left_out += 1
                continue
            room -= len(part)
            shown.append(part)
        if shown:
            parts += [heading(title, 3), *shown]
    if num_left_out:
        parts.append(paragraph(f"{num_left_out} more are left out to keep the page small; see episodes.jsonl", "soft"))
    return parts


def choose(episodes: Sequence[Episode]) -> list[tuple[str, list[Episode]]]:
    """Titles with the episodes to show, no episode twice: first ones of each failure mode, best, worst."""
    scored = sorted((e for e in episodes if e.reward is not None), key=lambda e: e.reward or 0.0, reverse=True)
    by_mode: dict[str, list[Episode]] = {}
    for episode in episodes:
        if (mode := episode.failure_mode) is not None:
            by_mode.setdefault(mode, []).append(episode)
    taken: set[tuple[str, int]] = set()
    chosen = []
    ranked = [("Highest rewards", scored), ("Lowest rewards", scored[::-1])]
    for title, group in [*ranked, *((f"Failed: {mode}", group) for mode, group in by_mode.items())]:
        new = [e for e in group if (e.task_id, e.sample) not in taken][:NUM_RANKED]
        taken |= {(e.task_id, e.sample) for e in new}
        chosen.append((title, new))
    return chosen


def _transcript(episode: Episode) -> Html:
    reward = "not scored" if episode.reward is None else f"reward {episode.reward:.3f}"
    mode = episode.failure_mode
    labels = [
        reward,
        *([mode] if mode else ["solved"]),
        *(f"{name} {value}" for name in ("family", "level") if (value := getattr(episode, name)) is not None),
        *([f"sample {episode.sample}"] if episode.sample else []),
        f"{episode.num_turns} turn{'' if episode.num_turns == 1 else 's'}",
    ]
    inside = [
        *([paragraph(f"Ended by {episode.stop_reason}. {episode.error or ''}", "soft")]),
        *([block("\n".join(episode.problems))] if episode.problems else []),
        conversation(episode.messages),
    ]
    return folded(episode.task_id, inside, tag=" · ".join(labels))
