"""What an evaluation ends with: `report.json`, `report.csv`, the page, the plots, and tables in the terminal.

Not here: figures (`summary.py`), comparison (`comparison.py`), the page (`evaluation_html.py`).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.console import Console

from agent_rl.envs.base import EnvFactory
from agent_rl.envs.failure_modes import FailureModes
from agent_rl.reports.comparison import compare
from agent_rl.reports.episodes import Episode
from agent_rl.reports.evaluation_files import EvaluationFolder
from agent_rl.reports.evaluation_html import draw, render, write_plots
from agent_rl.reports.evaluation_settings import FORMAT
from agent_rl.reports.summary import dropped, figure_table, group_table, percent, summarize


def write_report(
    folder: EvaluationFolder,
    episodes: Sequence[Episode],
    factory: EnvFactory,
    *,
    baseline: EvaluationFolder | None = None,
    name: str | None = None,
) -> dict[str, Any]:
    """Write everything beside the episodes and print the tables; returns what is in `report.json`.

    That is `format`; `settings` as in settings.json, `environment` as in environment.json; `summary` as
    `summary.summarize` makes it; `baseline_name`, `baseline` (the other's summary) and `comparison`
    (`comparison.compare`), null without one. `baseline` is an evaluation that is over, `name` what it is called.
    DataError when its tasks are others, or when something cannot be written.
    """
    failures = FailureModes(factory.failure_rules)
    weights = factory.part_weights()
    others = baseline.episodes(failures) if baseline else None
    report = {
        "format": FORMAT,
        "settings": folder.settings(),
        "environment": folder.environment(),
        "summary": summarize(episodes, part_weights=weights),
        "baseline_name": name,
        "baseline": summarize(others, part_weights=weights) if others else None,
        "comparison": compare(others, episodes, str(name)) if others else None,
    }
    folder.write_data(report, episodes)
    _print(report)
    plots = draw(report, episodes)
    folder.write_page(render(report, episodes, plots, failures.meanings), partial(write_plots, plots))
    Console().print(f"Report: {folder.path / 'report.html'}", highlight=False, soft_wrap=True, markup=False)
    return report


def _print(report: dict[str, Any]) -> None:
    figures, protocol, baseline = report["summary"], report["settings"]["protocol"], report["baseline"]
    console = Console()
    console.print(group_table(figures, baseline))
    console.print(figure_table(figures, baseline))
    lines = [
        f"Solved {percent(figures['success'])} % of {figures['success']['num_tasks']} tasks, {protocol['samples']} "
        f"episode{'s' * (protocol['samples'] > 1)} each, temperature {protocol['temperature']:g}.",
        *dropped(figures, baseline),
    ]
    if report["comparison"]:
        lines.append(f"Against {report['baseline_name']}: {report['comparison']['sentence']}")
    for line in lines:
        console.print(line, highlight=False, markup=False)
