"""The findings about a run, as one record, as plain data and on a terminal.

`report.json` has the keys of `as_data`: `run` (what ran, and how far), `held_out` (before and after by temperature),
`recommendations`, `alarms` (null when unknown), `metrics` (means over the first and the last steps), `reward_parts`
(these, and the correlation of each part with success), `compared_with`, `episodes` (those that are worth reading, with
the fragment of their address), `notes`.
Not here: the page (`page.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_rl.config import flatten
from agent_rl.redacted import redacted
from agent_rl.reports.run.changes import BeforeAfter, compare, left_out_notes
from agent_rl.reports.run.data import HeldOutEvaluation, Run
from agent_rl.reports.run.evidence import Recommendation, measured
from agent_rl.reports.run.links import EpisodeLinks
from agent_rl.reports.run.parts import RewardParts, reward_parts
from agent_rl.reports.run.recommendations import recommend
from agent_rl.telemetry.files import finite
from agent_rl.telemetry.statistics import rate_text, wilson_interval

_FILES = (("trained on", "train_path"), ("held out", "eval_path"))
_NOT_COMPARED = ("run.name", "run.output_dir", "checkpoint.resume")
"""Settings that say nothing about what two runs do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A run and the findings about it."""

    run: Run
    held_out: tuple[BeforeAfter, ...]
    """First against last evaluation, by temperature."""
    recommendations: tuple[Recommendation, ...]
    alarms: tuple[str, ...]
    """Sentences of the alarms that fired, those of steps that a rollback undid too."""
    other: Run | None
    against: tuple[BeforeAfter, ...]
    """Last evaluation of `other` against the run's, by temperature."""
    reward_parts: RewardParts | None
    """None where no part besides success is recorded."""
    notes: tuple[str, ...]
    """What could not be read or is not counted: sentences without a full stop."""


def make_report(run: Run, other: Run | None = None) -> RunReport:
    """Judge a run, beside another one where given."""
    own = [run.at(temperature) for temperature in run.temperatures]
    last = [[*other.at(t)[-1:], *run.at(t)[-1:]] for t in run.temperatures] if other is not None else []
    notes = [*run.notes, *(note for each in own for note in left_out_notes(each))]
    if other is not None:
        notes += [f"compared with {other.name}, {note}" for each in last for note in left_out_notes(each)]
    return RunReport(
        run=run,
        held_out=tuple(filter(None, map(compare, own))),
        recommendations=tuple(recommend(run.evidence())),
        alarms=tuple(str(event.facts.get("sentence")) for event in run.events if event.kind == "alarm"),
        other=other,
        against=tuple(filter(None, map(compare, last))),
        reward_parts=reward_parts(run),
        notes=tuple(dict.fromkeys(notes)),
    )


def status(run: Run) -> str:
    """How far the run is: `100 of 100 steps: finished`."""
    if not run.steps:
        return "no step is done"
    plan = "" if run.planned_steps is None else f" of {run.planned_steps}"
    if run.is_finished:
        return f"{run.steps[-1]}{plan} steps: finished"
    written = datetime.fromtimestamp((run.path / "metrics.jsonl").stat().st_mtime, UTC)
    last = run.events[-1] if run.events else None
    if last is not None and last.kind == "end":
        reason, error = last.facts.get("reason"), last.facts.get("error")
        if reason == "finished":  # before the last step
            error = "eval.stop_at is reached" if run.settings.get("eval.stop_at") is not None else None
        return f"{run.steps[-1]}{plan} steps: {reason}{'' if error is None else f' ({error})'}"
    return f"{run.steps[-1]}{plan} steps: running or killed, last written {written:%Y-%m-%d %H:%M} UTC"


def history(run: Run) -> str:
    """How often the run was continued and rolled back."""
    if not run.events:
        return "unknown: the run has no events.jsonl"
    counts = {"continued": run.num_events("resume"), "rolled back by alarms": run.num_events("rollback")}
    return ", ".join(f"{what} {n} time{'s' * (n > 1)}" for what, n in counts.items() if n) or "in one go"


def facts(run: Run) -> list[tuple[str, str]]:
    """What ran, as pairs to be read."""
    settings, environment = run.settings, run.environment
    packages = environment.get("packages") or {}
    cpus = f"{number} CPUs" if (number := environment.get("num_cpus")) is not None else None
    episodes = [settings.get(f"rollout.{key}") for key in ("groups_per_step", "group_size")]
    found = [
        ("Model", settings.get("model.path")),
        *environment_facts(settings),
        ("Episodes a step", f"{episodes[0]} tasks x {episodes[1]}" if None not in episodes else None),
        ("Estimator, loss", _joined(settings.get("algorithm.advantage"), settings.get("algorithm.loss"))),
        ("Steps", status(run)),
        ("Time", f"{clock(run.wall_s)} in steps and evaluations" if run.steps else None),
        ("Cost", _cost(run)),
        ("Memory at most", _memory(run)),
        ("Continued", history(run)),
        ("Seed", settings.get("run.seed")),
        ("Command", " ".join(environment.get("command") or ())),
        ("Commit", _commit(environment)),
        ("Machine", _joined(environment.get("platform"), environment.get("cpu"), cpus, _gpus(environment),
                            environment.get("device"))),
        ("Versions", _joined(f"Python {environment.get('python')}", *(f"{k} {v}" for k, v in packages.items()))
         if packages else None),
    ]  # fmt: skip
    return [(name, str(value)) for name, value in found if value not in (None, "")]


def environment_facts(settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Environment and task files, of a flat configuration; of a mixture those of each environment."""
    paths = [settings.get(f"data.{split}_path") for split in ("train", "eval")]
    prefix = "env.options.environments."
    names = dict.fromkeys(key.removeprefix(prefix).partition(".")[0] for key in settings if key.startswith(prefix))
    each = []
    for name in names:
        of = {key: settings.get(f"{prefix}{name}.{key}") for key in ("name", "weight", "train_path", "eval_path")}
        own = _joined(of["name"], f"weight {1 if of['weight'] is None else of['weight']}")
        files = _joined(*(f"{what} {of[key]}" for what, key in _FILES if of[key] is not None))
        each.append((f"Environment {name}", _joined(own, files)))
    named = zip(("Training tasks", "Held-out tasks"), paths, strict=True)
    return [("Environment", settings.get("env.name")), *each, *named]


def _gpus(environment: Mapping[str, Any]) -> str | None:
    gpus = environment.get("gpus") or ()
    return f"{len(gpus)} x {gpus[0].get('name')}" if gpus else None


def _cost(run: Run) -> str | None:
    """Tokens that training sampled, evaluations left out, and the time of the GPUs that the machine showed."""
    pairs = zip(run.metrics.get("perf/tokens_per_s", ()), run.metrics.get("time/step_s", ()), strict=False)
    tokens = sum(measured([rate * seconds for rate, seconds in pairs]))
    num_gpus = len(run.environment.get("gpus") or ())
    gpu_time = f"{num_gpus * run.wall_s / 3600:.2f} GPU hours on this machine" if num_gpus else None
    return _joined(f"{tokens:,.0f} tokens sampled in training" if tokens else None, gpu_time) or None


def _memory(run: Run) -> str | None:
    """The most that the main process, and a GPU, had in use at the end of a step."""
    host, share = (measured(run.metrics.get(name, ())) for name in ("host/process_memory_gib", "gpu/memory_share"))
    return (
        _joined(
            f"{max(host):.1f} GiB of the main process" if host else None,
            f"{max(share):.0%} of a GPU" if share else None,
        )
        or None
    )


def _commit(environment: Mapping[str, Any]) -> str | None:
    """Of the library; None where it was in no repository, and in files of earlier versions."""
    state = (environment.get("git") or {}).get("agent_rl") or {}
    return f"{state['commit']}{', changed since' if state.get('changed') else ''}" if "commit" in state else None


def clock(seconds: float) -> str:
    """90 -> `1 min 30 s`, 7200 -> `2 h 0 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def solved_text(evaluation: HeldOutEvaluation) -> str:
    """`54.0 [47.1, 60.8]`: per cent solved with the 95 % Wilson interval."""
    return rate_text(evaluation.counted.num_successes, evaluation.counted.num_scored)


def verdicts(compared: Sequence[BeforeAfter]) -> list[str]:
    """One sentence a temperature: did the success rate move by more than chance explains?"""
    return [
        f"At temperature {each.after.temperature:g} {each.change.sentence[:1].lower()}{each.change.sentence[1:]}"
        for each in compared
    ]


def different_settings(run: Run, other: Run) -> list[tuple[str, str, str]]:
    """Key, the other run's value, this run's; where both have the key or one of them. What is private is left out."""
    theirs, ours = (flatten(redacted(each.config)) for each in (other, run))
    keys = [key for key in theirs | ours if key not in _NOT_COMPARED]
    pairs = [(key, str(theirs.get(key, "-")), str(ours.get(key, "-"))) for key in keys]
    return [row for row in pairs if row[1] != row[2]]


def as_data(report: RunReport, links: EpisodeLinks | None = None) -> dict[str, Any]:
    """The report for programs; what was not measured is null."""
    run, other = report.run, report.other
    evidence = run.evidence()
    ends = {name: evidence.ends(name) for name in run.metrics}
    compared_with = None
    if other is not None:
        differences = [{"key": key, "other": old, "run": new} for key, old, new in different_settings(run, other)]
        held_out = [_compared_data(each) for each in report.against]
        compared_with = {"run": other.name, "path": str(other.path), "settings": differences, "held_out": held_out}
    return {
        "run": {
            "name": run.name,
            "path": str(run.path),
            "steps": run.steps[-1] if run.steps else 0,
            "planned_steps": run.planned_steps,
            "is_finished": run.is_finished,
            "wall_s": run.wall_s,
            "num_resumes": run.num_events("resume"),
            "num_rollbacks": run.num_events("rollback"),
            "facts": dict(facts(run)),
        },
        "held_out": [_compared_data(each) for each in report.held_out],
        "recommendations": [asdict(each) for each in report.recommendations],
        "alarms": list(report.alarms) if run.events else None,
        "metrics": {
            name: None if pair is None else {"first": fmean(pair[0]), "last": fmean(pair[1])}
            for name, pair in ends.items()
        },
        "reward_parts": None if report.reward_parts is None else asdict(report.reward_parts),
        "compared_with": compared_with,
        "episodes": [
            {"kind": title, "num_found": number, "links": [asdict(each) for each in shown]}
            for title, number, shown in (links.kinds if links else ())
        ],
        "notes": list(report.notes),
    }


def show(report: RunReport, console: Console) -> None:
    """The short summary for a terminal of 80 columns."""
    run = report.run
    console.print(Text(f"{run.name}: {status(run)}", "bold"))
    if report.held_out:
        console.print(_table(report.held_out))
    for sentence in verdicts(report.held_out):
        console.print(Text(sentence))
    for sentence in verdicts(report.against):
        console.print(Text(f"Compared with {report.other.name if report.other else ''}. {sentence}"))
    for each in report.recommendations:
        keys = f" ({', '.join(each.changes)})" if each.keys else ""
        console.print(Text(f"{each.severity}: {each.figure}; {each.advice}{keys}"))
    for note in report.notes:
        console.print(Text(f"note: {note}"))


def _table(compared: Sequence[BeforeAfter]) -> Table:
    table = Table(title="Held-out tasks (95 % intervals, the change paired)", box=SIMPLE, title_justify="left")
    table.add_column("")
    for column in ("before", "after", "change"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in compared:
        label = f"T={each.after.temperature:g}"
        for name, part in {"": each, **each.by_env}.items():
            solved, reward = (f"{name}, {what}" if name else f"{what}, {label}" for what in ("solved %", "reward"))
            table.add_row(solved, *map(solved_text, (part.before, part.after)), part.change.points)
            before, after = part.before.mean_reward, part.after.mean_reward
            table.add_row(reward, f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}")
    return table


def _compared_data(each: BeforeAfter) -> dict[str, Any]:
    return {
        "temperature": each.after.temperature,
        "before": _evaluation_data(each.before),
        "after": _evaluation_data(each.after),
        "paired": asdict(each.change) | {"change": each.change.change, "is_real": each.change.is_real},
        "reward": {"before": each.before.mean_reward, "after": each.after.mean_reward},
        "sentence": each.change.sentence,
        "gained": [pair.data for pair in each.gained],
        "lost": [pair.data for pair in each.lost],
        "failure_modes": {"before": each.failures_before, "after": each.failures_after},
        **({"by_env": {name: _compared_data(part) for name, part in parts.items()}} if (parts := each.by_env) else {}),
    }


def _evaluation_data(evaluation: HeldOutEvaluation) -> dict[str, Any]:
    counted = evaluation.counted
    low, high = wilson_interval(counted.num_successes, counted.num_scored)
    return asdict(counted) | {"low": low, "high": high, "mean_reward": finite(evaluation.mean_reward)}


def _joined(*values: object) -> str:
    return ", ".join(str(value) for value in values if value not in (None, ""))
