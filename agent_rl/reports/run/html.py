"""The page of a run: verdict first, then what to change, curves, what turned, what ran. One file, nothing fetched.

Not here: what is said (`run_report.py`), the plots (`run_curves.py`), markup (`html_parts.py`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import yaml

from agent_rl.reports.html_parts import (
    Html,
    block,
    conversation,
    element,
    folded,
    heading,
    image,
    page,
    paragraph,
    table,
    text,
)
from agent_rl.reports.plots import count_bars, svg_uri
from agent_rl.reports.redacted import redacted
from agent_rl.reports.run.changes import BeforeAfter, TaskPair
from agent_rl.reports.run.curves import PANELS, Panel, draw, is_zero, part_panels, series_of, smoothing
from agent_rl.reports.run.data import Run
from agent_rl.reports.run.evidence import MIN_STEPS, Recommendation, measured
from agent_rl.reports.run.report import (
    RunReport,
    clock,
    different_settings,
    facts,
    solved_text,
    status,
    turns,
    verdicts,
)

MAX_PAIRS = 6
"""Tasks of each kind whose conversations are shown: enough for one of most failure modes, and a page of a few MB."""
MAX_ALARMS = 10
"""Sentences of alarms that stand open; the rest is folded."""

_STYLE = """
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); gap: .6rem 1rem; }
.grid figure { margin: 0; } .grid img { width: 100%; }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 0 1.2rem; }
.sides > div { min-width: 0; } td:first-child { min-width: 8rem; }
ul.advice { list-style: none; padding: 0; margin: .4rem 0; }
ul.advice li { border-left: 3px solid var(--line); padding: .1rem 0 .1rem .8rem; margin: .7rem 0; }
ul.advice li.problem { border-left-color: var(--bad); }
code { font: .86em ui-monospace, "DejaVu Sans Mono", "Liberation Mono", monospace; background: var(--back);
  border-radius: 3px; padding: .05rem .25rem; overflow-wrap: anywhere; }
"""


def run_page(report: RunReport) -> str:
    """The whole document."""
    run = report.run
    sections = [
        Html(f"<style>{_STYLE}</style>"),
        heading(run.name, 1),
        paragraph(_subtitle(run), "soft"),
        *(paragraph(f"Note: {note}.", "bad") for note in report.notes),
        *_held_out(report),
        *_advice(report.recommendations, run),
        *_curves(report),
        *_alarms(report.alarms),
        *_failures(report.held_out, run.failures.meanings),
        *_turned(report.held_out),
        *_comparison(report),
        *_what_ran(run),
    ]
    return page(f"{run.name}: report", sections)


def _subtitle(run: Run) -> str:
    model = run.settings.get("model.path")
    time = clock(run.wall_s) if run.steps else None
    return " · ".join(str(part) for part in (status(run), time, model, run.settings.get("env.name")) if part)


def _held_out(report: RunReport) -> Iterator[Html]:
    yield heading("Held-out tasks")
    for sentence in verdicts(report.held_out):
        yield paragraph(sentence, "lead")
    rows = [row for temperature in report.run.temperatures for row in _held_out_rows(report, temperature)]
    if not rows:
        yield paragraph("Nothing was evaluated yet.")
        return
    if not report.held_out:
        yield table(("", "", "so far"), [row[:3] for row in rows], num_text=2)
        yield paragraph("Brackets are 95 % Wilson intervals.", "soft")
        return
    yield table(("", "", "before", "after", "change", "gained / lost", "McNemar p"), rows, num_text=2)
    yield paragraph(
        "Over the tasks that both sides scored. Brackets are 95 % intervals: Wilson's of each side; of the change, "
        "Newcombe's for pairs, as both sides played the same tasks with the same seeds. A change is beyond chance when "
        "its interval leaves 0 out and McNemar's exact test has p below 0.05. Of many intervals, one in twenty misses "
        "what it is for.",
        "soft",
    )


def _held_out_rows(report: RunReport, temperature: float) -> Iterator[tuple[str, ...]]:
    """Success and mean reward at one temperature; one column is empty where there is one evaluation only."""
    found = next((each for each in report.held_out if each.after.temperature == temperature), None)
    if found is None:
        for each in report.run.at(temperature)[-1:]:
            yield f"T={temperature:g}, step {each.step}", "solved %", solved_text(each), "", "", "", ""
            yield "", "reward", f"{each.mean_reward:.3f}", "", "", "", ""
        return
    turned = f"{len(found.gained)} / {len(found.lost)}"
    p_value = f"{found.change.p_value:.2g}"
    rates = solved_text(found.before), solved_text(found.after), found.change.points
    before, after = found.before.mean_reward, found.after.mean_reward
    steps = f"T={temperature:g}, steps {found.before.step} and {found.after.step}"
    yield steps, "solved %", *rates, turned, p_value
    yield "", "reward", f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}", "", ""


def _advice(recommendations: Sequence[Recommendation], run: Run) -> Iterator[Html]:
    yield heading("What to change")
    if not recommendations:
        few = "Too few steps to say." if len(run.steps) < MIN_STEPS else "No rule found anything to change."
        yield paragraph(few)
        return
    items = []
    for said in recommendations:
        keys = " ".join(element("code", turn) for turn in turns(said))
        figure = element("strong", _sentence(said.figure))
        tag = element("span", said.severity, css="tag")
        items.append(f'<li class="{said.severity}">{figure}{tag}<br>{text(_sentence(said.advice))} {keys}</li>')
    yield Html('<ul class="advice">' + "\n".join(items) + "</ul>")


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _curves(report: RunReport) -> Iterator[Html]:
    run, other = report.run, report.other
    if not run.steps:
        return
    yield heading("Learning curves")
    size = smoothing(len(run.steps))
    said = f"Pale: each step. Bold: mean of the last {size} steps." if size > 1 else "One point a step."
    dotted = f" Grey dots: {other.name}." if other is not None else ""
    yield paragraph(f"{said} Hollow marks: held-out tasks.{dotted} docs/metrics.md explains every name.", "soft")
    for title, panels in PANELS.items():
        yield from _grid(title, panels, report)
        if title == "Reward and success":
            parts, constant = part_panels(run.metrics)
            yield from _grid("Reward by part", parts, report)
            if constant:
                values = ", ".join(f"{name} ({value:g})" for name, value in constant.items())
                yield paragraph(f"The same in every step: {values}.", "soft")
        if title == "Signal" and not any(measured(run.metrics.get("hacks/episodes", ()))):
            yield paragraph("No attempt on the verdict was noticed (hacks/* is 0).", "soft")


def _grid(title: str, panels: Iterable[Panel], report: RunReport) -> Iterator[Html]:
    present = [panel for panel in panels if series_of(panel, report.run.metrics)]
    zero = [panel.title for panel in present if is_zero(panel, report.run)]
    figures = [
        f'<figure><img src="{svg_uri(draw(panel, report.run, report.other))}" '
        f'alt="{text(f"{panel.title} over steps")}"></figure>'
        for panel in present
        if panel.title not in zero
    ]
    if present:
        yield heading(title, 3)
        yield Html('<div class="grid">' + "\n".join(figures) + "</div>")
    if zero:
        yield paragraph(f"0 in every step: {', '.join(zero)}.", "soft")


def _alarms(alarms: Sequence[str]) -> Iterator[Html]:
    yield heading("Alarms")
    yield paragraph(
        "The run's rules, asked again of its metrics: alarms of steps that a rollback undid are not among them, and "
        "infinite values, which the metrics hold as null, are not seen.",
        "soft",
    )
    if not alarms:
        yield paragraph("None went off.")
        return
    lines = [element("li", alarm) for alarm in alarms]
    yield Html("<ul>" + "\n".join(lines[:MAX_ALARMS]) + "</ul>")
    if rest := lines[MAX_ALARMS:]:
        yield folded(f"{len(rest)} more", ["<ul>", *rest, "</ul>"])


def _failures(compared: Sequence[BeforeAfter], meanings: Mapping[str, str]) -> Iterator[Html]:
    """Tables and bars of failure modes before and after."""
    if not any(each.failures_before or each.failures_after for each in compared):
        return
    yield heading("How held-out tasks fail")
    for each in compared:
        before, after = each.failures_before, each.failures_after
        modes = sorted(before | after, key=lambda mode: -max(before.get(mode, 0), after.get(mode, 0)))
        if not modes:
            continue
        total = each.change.num_tasks
        yield heading(f"At temperature {each.after.temperature:g}, of {total} tasks", 3)
        rows = []
        for mode in modes:
            old, new = before.get(mode, 0), after.get(mode, 0)
            rows.append((mode, meanings.get(mode, ""), old, new, f"{new - old:+d}"))
        yield table(("failure", "which means", "before", "after", "change"), rows, num_text=2)
        figure = count_bars(
            {mode: before.get(mode, 0) for mode in modes}, label="tasks", others={m: after.get(m, 0) for m in modes}
        )
        caption = "Failed tasks: the upper bar is before training, the lower, hatched one after."
        yield image(svg_uri(figure), caption)


def _turned(compared: Sequence[BeforeAfter]) -> Iterator[Html]:
    """Conversations of the tasks that turned, before beside after."""
    if not any(each.gained or each.lost for each in compared):
        return
    yield heading("Held-out tasks that turned")
    if not any(pair.after.messages for each in compared for pair in (*each.gained, *each.lost)):
        yield paragraph(
            "The evaluation files of this run hold no conversations, as an earlier version wrote them; agent-rl eval "
            "plays a checkpoint again and keeps them."
        )
    for each in compared:
        name = f"at temperature {each.after.temperature:g}"
        for title, pairs in (
            (f"Failed before, solved after, {name}", each.gained),
            (f"Solved before, failed after, {name}", each.lost),
        ):
            if pairs:
                yield heading(f"{title}: {len(pairs)}", 3)
                yield from (_pair(pair, each) for pair in pairs[:MAX_PAIRS])
                if len(pairs) > MAX_PAIRS:
                    rest = ", ".join(pair.after.task_id for pair in pairs[MAX_PAIRS:])
                    yield folded(f"{len(pairs) - MAX_PAIRS} more", [paragraph(rest)])


def _pair(pair: TaskPair, compared: BeforeAfter) -> Html:
    rewards = f"reward {_reward(pair.before.reward)} to {_reward(pair.after.reward)}"
    tag = " · ".join(str(part) for part in (pair.after.family, pair.failure, rewards) if part)
    asked = shared_start(pair.before.messages, pair.after.messages)
    sides = []
    for episode, step in ((pair.before, compared.before.step), (pair.after, compared.after.step)):
        verdict = "solved" if episode.is_success else "failed"
        ended = f"{episode.stop_reason}, {episode.num_turns} turns"
        said = f"Step {step}: {verdict}, reward {_reward(episode.reward)}, {ended}"
        problems = [paragraph(problem, "bad") for problem in episode.problems]
        parts = [element("h4", said), *problems, conversation(episode.messages[asked:])]
        sides.append("<div>" + "\n".join(parts) + "</div>")
    opening = conversation(pair.before.messages[:asked])
    return folded(pair.after.task_id, [opening, '<div class="sides">', *sides, "</div>"], tag=tag)


def shared_start(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> int:
    """How many messages two conversations open with alike; they are shown once."""
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in alike)


def _comparison(report: RunReport) -> Iterator[Html]:
    """The run beside another one."""
    if report.other is None:
        return
    yield heading(f"Compared with {report.other.name}")
    yield paragraph(f"The other run: {report.other.path}", "soft")
    for sentence in verdicts(report.against):
        yield paragraph(f"From {report.other.name} to {report.run.name}. {sentence}")
    if not report.against:
        yield paragraph("The two runs have no evaluation of the same tasks at the same temperature.")
    rows = different_settings(report.run, report.other)
    yield table(("key", report.other.name, report.run.name), rows, num_text=3) if rows else paragraph("Same settings.")


def _what_ran(run: Run) -> Iterator[Html]:
    yield heading("What ran")
    yield table(("", ""), facts(run), num_text=2)
    if run.config:
        shown = yaml.safe_dump(redacted(run.config), sort_keys=False, allow_unicode=True)
        yield folded("Configuration", [block(shown)])
    if run.environment:
        shown = yaml.safe_dump(redacted(run.environment), sort_keys=False, allow_unicode=True)
        yield folded("Machine, versions, environment", [block(shown)])


def _reward(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"
