"""Several models that were evaluated alike, side by side: a table, a curve over the steps of a run, a page.

`models.json  models.csv  models.html  plots/models_*.png` in a folder whose `models/NAME/` are their evaluations.
Not here: one evaluation (`evaluation.py`), its figures (`summary.py`).
"""

import csv
import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_rl.reports.episodes import Episode, in_common
from agent_rl.reports.evaluation import FORMAT, EvaluationFolder
from agent_rl.reports.page import render
from agent_rl.reports.plots import ACCENT, INK, SECOND, Interval, new_figure, rate_marks, svg_uri
from agent_rl.reports.summary import Figures, percent
from agent_rl.telemetry.files import write_json, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from agent_rl.policies.model_source import ModelSource

_COLUMNS = ("model", "name", "run", "step", "num_tasks", "num_episodes", "num_env_errors", "success", "low", "high",
            "reward", "turns", "tokens", "seconds")  # fmt: skip
_HEADERS = ("solved %", "reward", "turns", "tokens", "seconds")
_LABEL_CHARS = 22
_STYLES = ((ACCENT, "o-"), (SECOND, "s--"), (INK, "^:"))
_ONE_OF_MANY = "The best of several is so by chance in part: evaluate it again on tasks that did not choose it."


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedModel:
    """One of the models, once its evaluation has ended."""

    label: str
    source: "ModelSource"
    report: Mapping[str, Any]
    """What `evaluation.write_report` returned."""
    episodes: Sequence[Episode] = field(repr=False)

    @property
    def name(self) -> str:
        """As the user gave it."""
        return self.source.name

    @property
    def step(self) -> int | None:
        """Of a checkpoint of `run`; None for any other model."""
        return self.source.step

    @property
    def run(self) -> str | None:
        """Name of its folder."""
        return None if self.source.run_folder is None else self.source.run_folder.name

    @property
    def figures(self) -> Figures:
        return self.report["summary"]


def labels_of(names: Sequence[str]) -> list[str]:
    """Names of folders for models: the shortest ends of their paths that tell them apart.

    `["a/checkpoints/step_00010", "b/checkpoints/step_00010"]` are `a-step_00010` and `b-step_00010`.
    """
    paths = [os.path.abspath(name) if os.path.exists(name) else name.partition("@http")[0] for name in names]
    parts = [[part for part in Path(path).parts if part != "checkpoints"] for path in paths]
    made: list[str] = []
    for depth in range(1, max(map(len, parts), default=1) + 1):
        made = [re.sub(r"[^\w.=-]+", "-", "-".join(each[-depth:])).strip("-.") for each in parts]
        if len(set(made)) == len(made) and all(made):
            return made
    return [f"{number}-{label}" for number, label in enumerate(made, start=1)]


def write_models(folder: EvaluationFolder, models: Sequence[EvaluatedModel], *, num_models: int) -> None:
    """Write the files of those of `num_models` that were evaluated so far, one at least. DataError when that fails."""
    first = models[0].report
    rows = [
        {"model": each.label, "name": each.name, "run": each.run, "step": each.step, **_plain_keys(each)}
        for each in models
    ]
    content = {
        "format": FORMAT,
        "protocol": first["settings"]["protocol"],
        "num_models": num_models,
        "models": rows,
        "change": change(models),
        "baseline_name": first["baseline_name"],
        "baseline": first["baseline"],
    }
    folder.save("models.json", write_json, content)
    folder.save("models.csv", write_text, _as_csv(models))
    plots = model_plots(models, first["baseline_name"], first["baseline"])
    cells = [(_link(each), *_cells(each.figures)) for each in models]
    if first["baseline"]:
        cells.insert(0, (f"baseline {first['baseline_name']}", *_cells(first["baseline"])))
    page = render(
        "models.html",
        title="Evaluations of several models",
        num_models=num_models,
        num_evaluated=len(models),
        protocol=first["settings"]["protocol"],
        tasks=first["settings"]["model"]["tasks"],
        table_of_models=(["", *_HEADERS], cells),
        change=content["change"],
        comparisons=[(each.label, each.report["comparison"]["sentence"]) for each in models if first["baseline"]],
        baseline_name=first["baseline_name"],
        note=_ONE_OF_MANY if len(models) > 1 else "",
        plots=[(svg_uri(figure), caption) for figure, caption in plots.values()],
    )
    folder.write_page(page, plots, file="models.html")


def print_models(folder: EvaluationFolder, models: Sequence[EvaluatedModel]) -> None:
    """The table, the change from the first to the last, and where the page is; fits 80 columns."""
    console = Console()
    console.print(models_table(models))
    lines = [change(models), _ONE_OF_MANY if len(models) > 1 else None, f"Report: {folder.path / 'models.html'}"]
    for line in filter(None, lines):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def models_table(models: Sequence[EvaluatedModel]) -> Table:
    """A row a model, a baseline first."""
    table = Table(title="Solved % (95 % intervals); means of an episode", box=SIMPLE, title_justify="left")
    table.add_column("", no_wrap=True, max_width=_LABEL_CHARS, overflow="ellipsis")
    for header in _HEADERS:
        table.add_column(header, justify="right", no_wrap=True)
    rows = [(each.label, each.figures) for each in models]
    if baseline := models[0].report["baseline"]:
        rows.insert(0, ("baseline", baseline))
    for label, figures in rows:
        table.add_row(Text(label), *map(Text, _cells(figures)))
    return table


def change(models: Sequence[EvaluatedModel]) -> str | None:
    """How success moved from the first to the last model, as a sentence; None for one, or without a common task."""
    if len(models) < 2:
        return None
    found = in_common(models[0].episodes, models[-1].episodes).change
    return f"From {models[0].label} to {models[-1].label}: {found.sentence}" if found else None


def one_line(model: EvaluatedModel) -> str:
    """`step_00010: solved 54.0 [47.1, 60.8] %, reward 0.612`, and what was not scored."""
    figures = model.figures
    lost = f", {figures['num_env_errors']} not scored" if figures["num_env_errors"] else ""
    return f"{model.label}: solved {percent(figures['success'])} %, reward {figures['reward']['mean']:.3f}{lost}"


def _plain_keys(model: EvaluatedModel) -> dict[str, Any]:
    comparison = model.report["comparison"]
    return {
        "sha256": model.report["settings"]["model"]["sha256"],
        "summary": model.figures,
        **({"comparison": comparison} if comparison else {}),
    }


def _cells(figures: Figures) -> tuple[str, ...]:
    means = (figures["turns"], figures["tokens"], figures["seconds"])
    shown = ("" if mean is None else f"{mean:.1f}" for mean in means)
    return percent(figures["success"]), f"{figures['reward']['mean']:.3f}", *shown


def _link(model: EvaluatedModel) -> Markup:
    return Markup('<a href="models/{0}/report.html">{0}</a>').format(model.label)


def _as_csv(models: Sequence[EvaluatedModel]) -> str:
    held = io.StringIO()
    writer = csv.writer(held, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for each in models:
        figures, success = each.figures, each.figures["success"]
        counts = (figures[name] for name in ("num_tasks", "num_episodes", "num_env_errors"))
        means = (figures[name] for name in ("turns", "tokens", "seconds"))
        rate = (success["rate"], success["low"], success["high"], figures["reward"]["mean"])
        writer.writerow([each.label, each.name, each.run, each.step, *counts, *rate, *means])
    return held.getvalue()


# Plots


def model_plots(
    models: Sequence[EvaluatedModel], baseline_name: str | None, baseline: Figures | None
) -> dict[str, tuple["Figure", str]]:
    """Success and reward over steps where two models at least are checkpoints, else success by model.

    A model that is no checkpoint, as the baseline, is a horizontal line in the curves.
    """
    others = [("baseline", baseline)] if baseline else []
    if sum(each.step is not None for each in models) < 2:
        marks = {label: _interval(figures) for label, figures in [*others, *((m.label, m.figures) for m in models)]}
        caption = f"Success with 95 % intervals{_named(baseline_name)}"
        return {"models_success": (rate_marks(marks, label="solved in %"), caption)}
    steps = [each for each in models if each.step is not None]
    flat = [*others, *((each.label, each.figures) for each in models if each.step is None)]
    success = _curves(steps, flat, label="solved in %")
    success.axes[0].set_ylim(-2, 102)
    reward = _curves(steps, flat, label="mean reward", is_reward=True)
    return {
        "models_success": (success, f"Success over steps, with 95 % intervals{_named(baseline_name)}"),
        "models_reward": (reward, f"Mean reward over steps{_named(baseline_name)}"),
    }


def _named(baseline_name: str | None) -> str:
    return f"; baseline: {baseline_name}" if baseline_name else ""


def _interval(figures: Figures) -> Interval:
    success = figures["success"]
    return success["rate"], success["low"], success["high"]


def _curves(
    steps: Sequence[EvaluatedModel], flat: Sequence[tuple[str, Figures]], *, label: str, is_reward: bool = False
) -> "Figure":
    """A line a run, and a horizontal one for each of `flat`."""
    figure, axes = new_figure(3.0, x="step", y=label)
    folders = list(dict.fromkeys(each.source.run_folder for each in steps))
    names = [str(folder and folder.name) for folder in folders]
    runs = names if len(set(names)) == len(names) else [str(folder) for folder in folders]
    for number, (folder, run) in enumerate(zip(folders, runs, strict=True)):
        own = sorted((each for each in steps if each.source.run_folder == folder), key=lambda each: each.step or 0)
        colour, style = _STYLES[number % len(_STYLES)]
        at = [each.step or 0 for each in own]
        if is_reward:
            axes.plot(at, [each.figures["reward"]["mean"] for each in own], style, color=colour, label=run)
            continue
        values, lows, highs = zip(*((100 * n for n in _interval(each.figures)) for each in own), strict=True)
        spread = [[v - low for v, low in zip(values, lows, strict=True)],
                  [high - v for v, high in zip(values, highs, strict=True)]]  # fmt: skip
        axes.errorbar(at, values, yerr=spread, fmt=style, color=colour, markersize=5, capsize=2, label=run)
    for number, (name, figures) in enumerate(flat):
        height = figures["reward"]["mean"] if is_reward else 100 * figures["success"]["rate"]
        axes.axhline(height, color=INK, linewidth=1, linestyle=(0, (1 + 2 * number, 2)), label=name.replace("$", r"\$"))
    axes.xaxis.get_major_locator().set_params(integer=True)
    if len(runs) + len(flat) > 1:
        axes.legend(frameon=False, fontsize=8)
    return figure
