"""What an evaluation ends with: `report.json`, `report.csv`, the page, the plots, and tables in the terminal.

Not here: figures (`summary.py`), comparison (`comparison.py`), the page (`evaluation_html.py`).
"""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from agent_rl.config import Config
from agent_rl.reports.comparison import compare
from agent_rl.reports.episodes import Episode
from agent_rl.reports.evaluation_files import EvaluationFolder
from agent_rl.reports.evaluation_html import draw, render, write_plots
from agent_rl.reports.evaluation_settings import FORMAT, part_weights
from agent_rl.reports.summary import figure_table, group_table, percent, summarize


def write_report(
    folder: EvaluationFolder,
    episodes: Sequence[Episode],
    config: Config,
    *,
    baseline: EvaluationFolder | None = None,
    name: str | None = None,
) -> dict[str, Any]:
    """Write everything beside the episodes and print the tables; returns what is in `report.json`.

    That is `format`; `settings` as in settings.json; `summary` as `summary.summarize` makes it; `baseline_name`,
    `baseline` (the other's summary) and `comparison` (`comparison.compare`), null without one. `baseline` is an
    evaluation that is over, `name` what it is called. DataError when its tasks are others.
    """
    weights = part_weights(config)
    others = baseline.episodes() if baseline else None
    report = {
        "format": FORMAT,
        "settings": folder.settings(),
        "summary": summarize(episodes, part_weights=weights),
        "baseline_name": name,
        "baseline": summarize(others, part_weights=weights) if others else None,
        "comparison": compare(others, episodes, str(name)) if others else None,
    }
    plots = draw(report, episodes)
    write_plots(plots, folder.path / "plots")
    folder.write_report(report, episodes, render(report, episodes, plots))
    _print(report, folder)
    return report


def _print(report: dict[str, Any], folder: EvaluationFolder) -> None:
    figures, protocol = report["summary"], report["settings"]["protocol"]
    console = Console()
    console.print(group_table(figures, report["baseline"]))
    console.print(figure_table(figures, report["baseline"]))
    console.print(
        f"Solved {percent(figures['success'])} % of {figures['success']['num_tasks']} tasks, {protocol['samples']} "
        f"episode{'s' * (protocol['samples'] > 1)} each, temperature {protocol['temperature']:g}.",
        highlight=False,
    )
    if figures["num_env_errors"]:
        console.print(f"{figures['num_env_errors']} episodes dropped by environment errors.", highlight=False)
    if report["comparison"]:
        console.print(f"Against {report['baseline_name']}: {report['comparison']['sentence']}", highlight=False)
    console.print(f"Report: {folder.path / 'report.html'}", highlight=False, soft_wrap=True)
