"""The learning curves of a run: which plots there are, and how one is made.

Raw values are pale, their running mean is in front; lines differ by dashes and areas by hatches, so that colours are
not needed. A metric that a run does not have is left out, and so is a plot without any. Not here: the page.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agent_rl.reports.plots import ACCENT, INK, SECOND, new_figure
from agent_rl.reports.run.data import Run
from agent_rl.reports.run.evidence import ALARM_LIMITS, measured
from agent_rl.telemetry.statistics import wilson_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SMOOTHED_STEPS = 10
"""Steps of a running mean at most; of a short run a fifth."""
NEAR_LIMIT = 0.1
"""An alarm's limit is shown when values come as near to it as this factor; else it would flatten the curve."""
_LINES = ((ACCENT, "-"), (SECOND, "--"), (INK, ":"), ("#7a4f9a", "-."), ("#4d7c4a", (0, (4, 1, 1, 1, 1, 1))))
_AREAS = (("#2c6e9b", ""), ("#a9cbe0", "///"), ("#e6b17e", "..."), ("#8a8f94", "xxx"), ("#f1e3c4", "\\\\\\"))


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: `Panel("Entropy", "nats/token", {"policy/entropy": ""})`."""

    title: str
    unit: str
    names: Mapping[str, str]
    """Metric -> what the legend calls it; empty without a legend."""
    kind: str = "lines"
    """`lines`, or `stack`: areas on top of each other."""
    is_log: bool = False
    is_smoothed: bool = True
    """Show the running mean; False for what follows a plan."""
    scale: str = ""
    """Plots with the same one, which show alike quantities, have the same limits."""
    held_out: str | None = None
    """`success` or `reward`: evaluations as points, with 95 % intervals for success."""


PANELS: Mapping[str, tuple[Panel, ...]] = {
    "Reward and success": (
        Panel("Success", "share", {"success/mean": "training"}, scale="success/mean", held_out="success"),
        Panel("Mean reward", "reward", {"reward/mean": "training"}, scale="reward/mean", held_out="reward"),
    ),
    "Signal": (
        Panel(
            "Zero-variance groups",
            "share of groups",
            {
                "group/frac_no_signal": "zero variance",
                "group/frac_minor_signal": "one outcome, nearly one reward",
                "group/frac_all_good": "all solved",
                "group/frac_all_bad": "all failed",
            },
            scale="group/frac_no_signal",
        ),
        Panel("Highest open level", "level", {"curriculum/max_level": ""}),
        Panel("Reward hacking", "episodes", {"hacks/*": ""}),
    ),
    "Policy and updates": (
        Panel("Entropy", "nats/token", {"policy/entropy": ""}),
        Panel(
            "Divergence",
            "nats/token",
            {"mismatch/k3": "trainer from sampler", "policy/kl": "after updates", "loss/kl": "from the start"},
            is_log=True,
        ),
        Panel("Clipped tokens", "share", {"loss/clip_frac": ""}),
        Panel("Gradient norm", "before clipping", {"optim/grad_norm": ""}),
        Panel("Learning rate", "per step", {"optim/learning_rate": ""}, is_smoothed=False),
        Panel("Staleness", "steps", {"async/staleness_mean": "mean", "async/staleness_max": "most"}),
    ),
    "Episodes": (
        Panel("Generated tokens", "tokens/episode", {"rollout/tokens_mean": ""}, scale="rollout/tokens_mean"),
        Panel("Turns", "turns/episode", {"rollout/turns_mean": ""}),
        Panel("How episodes end", "share", {"rollout/stop/*": ""}, kind="stack"),
        Panel(
            "Calls that went wrong",
            "share",
            {"rollout/tool_error_share": "failed or unreadable", "rollout/parse_error_share": "turns, unreadable"},
        ),
    ),
    "Time": (
        Panel(
            "Time of a step",
            "seconds",
            {"time/rollout_s": "rollouts", "time/update_s": "updates", "other": "other"},
            kind="stack",
        ),
        Panel("Speed", "generated tokens/s", {"perf/tokens_per_s": ""}),
    ),
}
"""Section -> plots, in the order of the page. A name that ends with `/*` means all metrics with that prefix."""
_BY_ENVIRONMENT = (
    ("Success by environment", "share", "success/mean"),
    ("Mean reward by environment", "reward", "reward/mean"),
    ("Zero-variance groups by environment", "share of groups", "group/frac_no_signal"),
    ("Generated tokens by environment", "tokens/episode", "rollout/tokens_mean"),
)


def running_mean(values: Sequence[float], size: int) -> list[float]:
    """Mean of each value and the `size - 1` before it, what is not finite left out; NaN where nothing is left.

    `running_mean([1, nan, 3], 2)` is [1, 1, 3].
    """
    windows = (measured(values[max(0, end - size) : end]) for end in range(1, len(values) + 1))
    return [sum(window) / len(window) if window else math.nan for window in windows]


def smoothing(num_steps: int) -> int:
    """Steps of the running mean of a run: 100 -> 10, 20 -> 4, 3 -> 1."""
    return max(1, min(SMOOTHED_STEPS, num_steps // 5))


def with_other_time(metrics: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    """The metrics, and as `other` what of a step was neither rollouts nor updates."""
    stages = [metrics.get(f"time/{stage}_s", ()) for stage in ("step", "rollout", "update")]
    rest = [max(0.0, step - rollout - update) for step, rollout, update in zip(*stages, strict=False)]
    return {**metrics, "other": rest}


def series_of(panel: Panel, metrics: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    """Label -> values of what the run has of a panel; of many (`/*`) those that are not 0 throughout."""
    found: dict[str, Sequence[float]] = {}
    for name, label in panel.names.items():
        if name.endswith("/*"):
            prefix = name[:-1]
            those = {key.removeprefix(prefix): values for key, values in metrics.items() if key.startswith(prefix)}
            found |= {key: values for key, values in those.items() if any(measured(values))}
        elif measured(metrics.get(name, ())):
            found[label] = metrics[name]
    return found


def env_panels(metrics: Mapping[str, Sequence[float]]) -> tuple[Panel, ...]:
    """Plots with a line for each environment of a mixture; none where there is one environment."""
    found = []
    for title, unit, name in _BY_ENVIRONMENT:
        parts = (key.split("/", 2) for key in metrics if key.startswith("env/"))
        if names := {"/".join(part): part[1] for part in parts if part[2] == name}:
            found.append(Panel(title, unit, names, scale=name))
    return tuple(found)


def part_panels(metrics: Mapping[str, Sequence[float]]) -> tuple[tuple[Panel, ...], dict[str, float]]:
    """A plot for each reward part that moved, and the value of each that never did."""
    panels, constant = [], {}
    for name, values in metrics.items():
        if not name.startswith("reward_parts/") or not (numbers := measured(values)):
            continue
        label = name.removeprefix("reward_parts/").removesuffix("/mean")
        if min(numbers) == max(numbers) and len(numbers) > 1:
            constant[label] = numbers[0]
        else:
            panels.append(Panel(label, "mean", {name: ""}))
    return tuple(panels), constant


def is_zero(panel: Panel, run: Run) -> bool:
    """Whether all values of a panel are 0, which one sentence says as well."""
    return not any(any(measured(values)) for values in series_of(panel, run.metrics).values())


def plot(panel: Panel, run: Run, other: Run | None = None) -> "Figure":
    """The plot of a run that has series for the panel, with the running mean of another one behind it where given."""
    metrics = with_other_time(run.metrics)
    series = series_of(panel, metrics)
    figure, axes = new_figure(2.5, width_in=4.4, x="step", y=panel.unit, grid_width=0.5)
    if panel.kind == "stack":
        _stack(axes, run.steps, series)
    else:
        if other is not None:
            _behind(axes, panel, other)
        _lines(axes, run.steps, series, size=smoothing(len(run.steps)) if panel.is_smoothed else 1)
        _limit(axes, panel, metrics)
        if panel.held_out:
            _held_out(axes, run, panel.held_out)
    if panel.is_log and any(value > 0 for values in series.values() for value in values):
        axes.set_yscale("log")
    axes.set_title(panel.title.replace("$", r"\$"), fontsize=10, color=INK, loc="left")
    axes.xaxis.get_major_locator().set_params(integer=True)
    if len(run.steps) == 1 and not (panel.held_out and run.evaluations) and other is None:
        axes.set_xticks(run.steps)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8, frameon=panel.kind == "stack", framealpha=0.85, labelcolor=INK)
    return figure


def share_scales(plots: Iterable[tuple[Panel, "Figure"]]) -> None:
    """Give the plots of panels with the same `scale` the limits that show all of them."""
    alike: dict[str, list[Axes]] = {}
    for panel, figure in plots:
        if panel.scale:
            alike.setdefault(panel.scale, []).append(figure.axes[0])
    for group in alike.values():
        lows, highs = zip(*(axes.get_ylim() for axes in group), strict=True)
        for axes in group:
            axes.set_ylim(min(lows), max(highs))


def _lines(axes: "Axes", steps: Sequence[int], series: Mapping[str, Sequence[float]], *, size: int) -> None:
    marker = "o" if len(steps) == 1 else ""
    for place, (label, values) in enumerate(series.items()):
        colour, style = _LINES[place % len(_LINES)]
        if size > 1:
            axes.plot(steps, values, color=colour, alpha=0.3, linewidth=0.8)
        smooth = running_mean(values, size)
        axes.plot(steps, smooth, color=colour, linestyle=style, linewidth=1.8, marker=marker, label=label)


def _stack(axes: "Axes", steps: Sequence[int], series: Mapping[str, Sequence[float]]) -> None:
    """Areas over the running means; of one step, as wide as a bar."""
    if not series:
        return
    size = smoothing(len(steps))
    areas = np.nan_to_num([running_mean(values, size) for values in series.values()])
    if len(steps) == 1:
        steps, areas = [steps[0] - 0.25, steps[0] + 0.25], areas.repeat(2, axis=1)
    colours, hatches = zip(*_AREAS, strict=True)
    axes.stackplot(steps, areas, labels=list(series), colors=colours, hatch=hatches, edgecolor="white", linewidth=0.5)
    axes.set_ylim(bottom=0)
    axes.margins(x=0)


def _behind(axes: "Axes", panel: Panel, other: Run) -> None:
    """The other run's first line, as a grey one."""
    values = next(iter(series_of(panel, other.metrics).values()), None)
    if values is not None:
        smooth = running_mean(values, smoothing(len(other.steps)))
        axes.plot(other.steps, smooth, color="#8a8f94", linewidth=1.4, linestyle=(0, (1, 1)), label=other.name)


def _limit(axes: "Axes", panel: Panel, metrics: Mapping[str, Sequence[float]]) -> None:
    """The limit of a default alarm, where the values come near it."""
    for name in panel.names:
        limit, values = ALARM_LIMITS.get(name), measured(metrics.get(name, ()))
        if limit and values and min(values) < limit / NEAR_LIMIT and max(values) > limit * NEAR_LIMIT:
            axes.axhline(limit, color=INK, linewidth=0.8, linestyle=(0, (1, 3)))
            where = ("axes fraction", "data")
            axes.annotate("alarm", (1, limit), xycoords=where, fontsize=7, color=INK, ha="right", va="bottom")


def _held_out(axes: "Axes", run: Run, what: str) -> None:
    for place, temperature in enumerate(run.temperatures):
        evaluations = run.at(temperature)
        if not evaluations:
            continue
        marker, colour = ("s", INK) if place == 0 else ("^", SECOND)
        counts = [each.counted for each in evaluations]
        values, spread = [each.mean_reward for each in evaluations], None
        if what == "success":
            values = [each.rate for each in counts]
            ends = np.transpose([wilson_interval(each.num_successes, each.num_scored) for each in counts])
            spread = np.abs(ends - values)
        axes.errorbar(
            [each.step for each in evaluations],
            values,
            yerr=spread,
            fmt=f"{marker}--" if len(evaluations) > 2 else marker,
            color=colour,
            markersize=5,
            linewidth=0.8,
            markerfacecolor="white",
            label=f"held out, T={temperature:g}",
        )
