"""Plots of reports: shares with intervals, counts, a histogram, a curve; as PNG files and as SVG inside a page.

Readable in black and white. matplotlib is imported when a plot is made; no window system is needed and no global
state is changed. Not here: what is plotted.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agent_rl.reports.summary import Figures, group_rows, left_out
from agent_rl.telemetry.trajectory_json import Episode

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, ACCENT, SECOND, FAINT = "#333333", "#2c6e9b", "#d98032", "#c9d3da"
"""Text and lines, the value, the value it is compared with, the background. Readable without colours too."""
Interval = tuple[float, float, float]
"""Value, low, high."""


def new_figure(
    height_in: float,
    *,
    x: str,
    y: str = "",
    grid: Literal["x", "y"] = "y",
    grid_width: float = 0.6,
    width_in: float = 6.4,
) -> tuple["Figure", "Axes"]:
    """An empty figure with one plain pair of axes, their labels, and lines across the axis `grid`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    axes = figure.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9, length=0)
    axes.set_axisbelow(True)
    axes.set_xlabel(x, color=INK, fontsize=9)
    axes.set_ylabel(y, color=INK, fontsize=9)
    axes.grid(axis=grid, color=FAINT, linewidth=grid_width)
    return figure, axes


def save_png(path: Path, figure: "Figure") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=150)


def svg_uri(figure: "Figure") -> str:
    """The figure as a `data:` address of an SVG image, for `<img src=...>`: nothing is fetched, no ids collide."""
    held = io.BytesIO()
    figure.savefig(held, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(held.getvalue()).decode()


def rate_marks(groups: Mapping[str, Interval], *, label: str, others: Mapping[str, Interval] | None = None) -> "Figure":
    """Shares in [0, 1] as marks with their intervals, first on top; `others` (a baseline) as hollow ones below each."""
    others = others or {}
    shift = 0.16 if others else 0.0
    figure, axes = new_figure(0.7 + (0.36 if others else 0.27) * max(1, len(groups)), x=label, grid="x")
    for place, name in enumerate(groups):
        _mark(axes, place - shift, groups[name], colour=ACCENT, filled=True)
        if name in others:
            _mark(axes, place + shift, others[name], colour=SECOND, filled=False)
    axes.set_yticks(range(len(groups)), [_plain(name) for name in groups])
    axes.set_ylim(len(groups) - 0.4, -0.6)
    axes.set_xlim(-2, 102)
    return figure


def _mark(axes: "Axes", at: float, interval: Interval, *, colour: str, filled: bool) -> None:
    value, low, high = (100 * share for share in interval)
    axes.plot([low, high], [at, at], color=colour, linewidth=1.4)
    axes.plot([value], [at], "o", color=colour, markerfacecolor=colour if filled else "white", markersize=5.5)


def count_bars(counts: Mapping[str, int], *, label: str, others: Mapping[str, int] | None = None) -> "Figure":
    """Horizontal bars of counts with the number behind each, first on top; `others` beside them where given."""
    height = 0.6 if others is None else 0.38
    figure, axes = new_figure(0.7 + (0.3 if others is None else 0.42) * max(1, len(counts)), x=label, grid="x")
    shift = 0.0 if others is None else height / 2
    sides = [(counts, -shift, ACCENT, ""), *([] if others is None else [(others, shift, SECOND, "//")])]
    for side, below, colour, hatch in sides:
        places = [place + below for place in range(len(counts))]
        numbers = [side.get(name, 0) for name in counts]
        bars = axes.barh(places, numbers, height=height, color=colour, alpha=0.85, hatch=hatch, edgecolor="white")
        axes.bar_label(bars, fmt="%d", padding=2, fontsize=8, color=INK)
    axes.set_yticks(range(len(counts)), [_plain(name) for name in counts])
    axes.invert_yaxis()
    axes.margins(x=0.08)
    axes.set_xlim(left=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return figure


def histogram(values: Sequence[float], *, label: str, unit: str) -> "Figure":
    """How often values fall where; `unit` is what is counted."""
    figure, axes = new_figure(2.4, x=label, y=unit)
    axes.hist(values, bins=24, color=ACCENT, alpha=0.85, edgecolor="white", linewidth=0.6)
    axes.yaxis.get_major_locator().set_params(integer=True)
    return figure


def pass_curve(curves: Mapping[str, Mapping[int, Interval]]) -> "Figure":
    """pass@k over k with intervals, one line per name."""
    figure, axes = new_figure(2.6, x="k", y="pass@k in %")
    styles = ((ACCENT, "o-"), (SECOND, "s--"))
    for (name, curve), (colour, style) in zip(curves.items(), styles, strict=False):
        values, lows, highs = ([100 * each for each in side] for side in zip(*curve.values(), strict=True))
        axes.plot(list(curve), values, style, color=colour, label=_plain(name))
        axes.fill_between(list(curve), lows, highs, color=colour, alpha=0.15, linewidth=0)
    ticks = sorted({k for curve in curves.values() for k in curve})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(k) for k in ticks])
    axes.set_ylim(0, 100)
    if len(curves) > 1:
        axes.legend(frameon=False, fontsize=9)
    return figure


def _plain(text: str) -> str:
    """A label as plain text: matplotlib reads text between two dollar signs as a formula."""
    return text.replace("$", r"\$")


def evaluation_plots(
    figures: Figures, baseline: Figures | None, episodes: Sequence[Episode]
) -> dict[str, tuple["Figure", str]]:
    """The plots of an evaluation by file name, each with its caption."""
    rows = group_rows(figures, baseline)
    success = {name: (s["rate"], s["low"], s["high"]) for name, s, _ in rows}
    others = {name: (o["rate"], o["low"], o["high"]) for name, _, o in rows if o is not None}
    note = "; hollow marks: the baseline" if others else ""
    caption = "; ".join(filter(None, (f"Success with 95 % intervals{note}", left_out(figures))))
    plots = {"success": (rate_marks(success, label="solved in %", others=others), caption)}
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
        points = {
            name: {int(k): (rate, *each["pass_at_k_intervals"][k]) for k, rate in each["pass_at_k"].items()}
            for name, each in curves.items()
        }
        caption = "pass@k with 95 % intervals, unbiased estimator of Chen et al. 2021"
        plots["pass_at_k"] = (pass_curve(points), caption)
    rewards = [episode.reward for episode in episodes if episode.reward is not None]
    plots["rewards"] = (histogram(rewards, label="reward", unit="episodes"), "Rewards of all scored episodes")
    return plots
