"""The values of a run's page: verdict, recommendations, curves, changed tasks, what ran. Markup: `templates/run.html`.

Not here: what is reported (`report.py`), the plots (`curves.py`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from agent_rl.config.yaml_text import dump_settings
from agent_rl.redacted import redacted
from agent_rl.reports.page import render
from agent_rl.reports.plots import count_bars, svg_uri
from agent_rl.reports.run.curves import (
    PANELS,
    Panel,
    env_panels,
    is_zero,
    part_panels,
    plot,
    series_of,
    share_scales,
    smoothing,
)
from agent_rl.reports.run.evidence import MIN_STEPS, measured
from agent_rl.reports.run.links import EpisodeLinks
from agent_rl.reports.run.parts import RewardParts
from agent_rl.reports.run.report import RunReport, clock, different_settings, facts, solved_text, status, verdicts

MAX_PAIRS = 6
"""Tasks of each kind whose conversations are shown: enough for one of most failure modes, and a page of a few MB."""
MAX_ALARMS = 10
"""Sentences of alarms that are shown at once; the rest is folded."""


def run_page(report: RunReport, links: EpisodeLinks | None = None, episodes_file: str = "") -> str:
    """The whole document; `links` lead into the file `episodes_file` beside it."""
    run, other = report.run, report.other
    return render(
        "run.html",
        title=f"{run.name}: report",
        report=report,
        links=links,
        episodes_file=episodes_file,
        run=run,
        status=status(run),
        time=clock(run.wall_s) if run.steps else "",
        verdicts=verdicts(report.held_out),
        held_out=[row for temperature in run.temperatures for row in _held_out_rows(report, temperature)],
        has_few_steps=len(run.steps) < MIN_STEPS,
        smoothed=smoothing(len(run.steps)),
        curves=_curves(report) if run.steps else [],
        max_alarms=MAX_ALARMS,
        parts=list(_part_rows(report.reward_parts)),
        failures=list(_failures(report)),
        max_pairs=MAX_PAIRS,
        shared_start=shared_start,
        against=verdicts(report.against),
        settings=different_settings(run, other) if other else [],
        facts=facts(run),
        config=_yaml(run.config),
        environment=_yaml(run.environment),
    )


def _held_out_rows(report: RunReport, temperature: float) -> Iterator[tuple[str, ...]]:
    """Success and mean reward at one temperature; with one evaluation, that alone."""
    found = next((each for each in report.held_out if each.after.temperature == temperature), None)
    if found is None:
        for each in report.run.at(temperature)[-1:]:
            more = ("",) * 4 if report.held_out else ()
            for name, part in {f"T={temperature:g}, step {each.step}": each, **each.by_env}.items():
                yield name, "solved %", solved_text(part), *more
                yield "", "reward", f"{part.mean_reward:.3f}", *more
        return
    steps = f"T={temperature:g}, steps {found.before.step} and {found.after.step}"
    for name, part in {steps: found, **found.by_env}.items():
        turned, p_value = f"{len(part.gained)} / {len(part.lost)}", f"{part.change.p_value:.2g}"
        rates = solved_text(part.before), solved_text(part.after), part.change.points
        before, after = part.before.mean_reward, part.after.mean_reward
        yield name, "solved %", *rates, turned, p_value
        yield "", "reward", f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}", "", ""


def _part_rows(found: RewardParts | None) -> Iterator[tuple[str, ...]]:
    """Success, the reward and each of its parts: first and last steps, change, correlation with success."""
    if found is None:
        return
    if found.success:
        yield ("success", *_moved(*found.success), "")
    for each in found.parts:
        known = each.with_success
        yield (each.name, *_moved(each.first, each.last), "none" if known is None else f"{known:+.2f}")


def _moved(first: float, last: float) -> tuple[str, ...]:
    return f"{first:.3f}", f"{last:.3f}", f"{last - first:+.3f}"


def _curves(report: RunReport) -> list[dict[str, Any]]:
    """Sections of the learning curves, their plots as images."""
    found = list(_sections(report))
    share_scales(pair for section in found for pair in section["figures"])
    for section in found:
        section["figures"] = [(panel.title, svg_uri(figure)) for panel, figure in section["figures"]]
    return found


def _sections(report: RunReport) -> Iterator[dict[str, Any]]:
    metrics = report.run.metrics
    for title, panels in PANELS.items():
        section = _section(title, panels, report)
        if title == "Signal" and not any(measured(metrics.get("hacks/episodes", ()))):
            section["notes"].append("No reward hacking was noticed (hacks/* is 0)")
        yield section
        if title == "Reward and success":
            if by_env := env_panels(metrics):
                yield _section("By environment", by_env, report)
            parts, constant = part_panels(metrics)
            section = _section("Reward by part", parts, report)
            if constant:
                values = ", ".join(f"{name} ({value:g})" for name, value in constant.items())
                section["notes"].append(f"The same in every step: {values}")
            yield section


def _section(title: str, panels: Iterable[Panel], report: RunReport) -> dict[str, Any]:
    present = [panel for panel in panels if series_of(panel, report.run.metrics)]
    zero = [panel.title for panel in present if is_zero(panel, report.run)]
    figures = [(panel, plot(panel, report.run, report.other)) for panel in present if panel.title not in zero]
    notes = [f"0 in every step: {', '.join(zero)}"] if zero else []
    return {"title": title, "figures": figures, "zero": zero, "notes": notes}


def _failures(report: RunReport) -> Iterator[dict[str, Any]]:
    """Table and bars of failure modes before and after."""
    meanings = report.run.failures.meanings
    for each in report.held_out:
        before, after = each.failures_before, each.failures_after
        modes = sorted(before | after, key=lambda mode: -max(before.get(mode, 0), after.get(mode, 0)))
        if not modes:
            continue
        counts = [(mode, before.get(mode, 0), after.get(mode, 0)) for mode in modes]
        rows = [(mode, meanings.get(mode, ""), old, new, f"{new - old:+d}") for mode, old, new in counts]
        figure = count_bars({mode: old for mode, old, _ in counts}, label="tasks", others=after)
        yield {
            "temperature": f"{each.after.temperature:g}",
            "num_tasks": each.change.num_tasks,
            "rows": rows,
            "uri": svg_uri(figure),
        }


def shared_start(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> int:
    """How many messages two conversations open with alike; they are shown once."""
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in alike)


def _yaml(tree: Mapping[str, Any]) -> str:
    return dump_settings(redacted(tree), allow_unicode=True) if tree else ""
