"""The plot of a race: held-out success over minutes of training, a panel for each task and model. Not here: figures."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from racing.figures import SIDES, TRL, Result, mean_curve

from agent_rl.reports.plots import ACCENT, FAINT, INK, SECOND


def save_plot(results: Sequence[Result], path: Path) -> None:
    """Thin lines are seeds, thick ones their means; TRL's are dashed."""
    panels = list(dict.fromkeys((result.turn.task, result.turn.model) for result in results))
    figure = Figure(figsize=(6.4, 2.6 * len(panels)), layout="constrained")
    for axes, (task, model) in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        for side in SIDES:
            own = [r.curve for r in results if (r.turn.task, r.turn.model, r.turn.side) == (task, model, side)]
            colour, style = (SECOND, "--") if side == TRL else (ACCENT, "-")
            for curve in own:
                axes.plot(*_points(curve), style, color=colour, linewidth=0.8, alpha=0.45)
            if own:
                axes.plot(*_points(mean_curve(own)), style, color=colour, linewidth=2.0, label=side)
        axes.set_title(f"{task}, {model}", color=INK, fontsize=9, loc="left")
        axes.set_xlabel("minutes of training", color=INK, fontsize=9)
        axes.set_ylabel("solved %", color=INK, fontsize=9)
        axes.set(ylim=(0, 100), xlim=(0, None))
        axes.grid(axis="y", color=FAINT)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="best")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def _points(curve: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [seconds / 60 for seconds, _ in curve], [100 * success for _, success in curve]
