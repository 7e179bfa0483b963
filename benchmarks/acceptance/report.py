"""The results as one Markdown table: figure, what was measured, what was expected, whether it is an alarm.

A figure that no result has is "not measured". Not here: measuring, what is expected (`expectations.py`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from acceptance.expectations import alarm, rows
from acceptance.figures import DONE, Result, read_result, shown
from acceptance.runner import PARTS

NOT_MEASURED = "not measured"


def read_all(folder: Path) -> dict[str, Result]:
    """Results by part."""
    found = {part: read_result(folder, part) for part in PARTS}
    return {part: result for part, result in found.items() if result is not None}


def alarms(results: Mapping[str, Result]) -> list[str]:
    """A line for each figure outside its limits."""
    lines = []
    for row in rows():
        if row.part in results and (why := alarm(row, results[row.part])):
            value = shown(results[row.part].figures[row.figure])
            lines.append(
                f"{row.part}/{row.figure}: {value}" if why == value else f"{row.part}/{row.figure}: {value}, {why}"
            )
    return lines


def make_report(results: Mapping[str, Result]) -> str:
    """Markdown, to be put into a page of docs/."""
    lines = ["## GPU acceptance run", "", *_head(results), ""]
    lines += ["| part | result | seconds |", "| --- | --- | --- |"]
    for part in PARTS:
        result = results.get(part)
        if result is None:
            lines.append(f"| {part} | not run | |")
        else:
            why = f": {result.reason}" if result.reason else ""
            lines.append(f"| {part} | {_cell(result.status + why)} | {result.seconds:.0f} |")
    lines += ["", "| part | figure | measured | expected | |", "| --- | --- | --- | --- | --- |"]
    for row in rows():
        result = results.get(row.part)
        if result is None or row.figure not in result.figures:
            measured, verdict = NOT_MEASURED, ""
        else:
            measured = shown(result.figures[row.figure])
            verdict = "**ALARM**" if alarm(row, result) else ""
        lines.append(f"| {row.part} | {row.name} | {_cell(measured)} | {row.text or 'none given'} | {verdict} |")
    lines += ["", *_rest(results), *_notes(results)]
    return "\n".join(lines).rstrip() + "\n"


def _head(results: Mapping[str, Result]) -> list[str]:
    """Machines, versions and commands; several if parts differ in them."""
    if not results:
        return ["Nothing was run."]
    machines: dict[str, list[str]] = {}
    for part, result in results.items():
        words = dict(result.machine)
        name = words.pop("device", "unknown device")
        text = f"{name}: {', '.join(f'{key} {value}' for key, value in words.items())}"
        machines.setdefault(text, []).append(part)
    commands = dict.fromkeys(f"`{result.command}`" for result in results.values() if result.command)
    lines = [text if len(machines) == 1 else f"{text} ({', '.join(parts)})" for text, parts in machines.items()]
    lines = [f"{line}." for line in lines]
    if commands:
        lines.append(f"Commands: {', '.join(commands)}.")
    if any(result.tiny for result in results.values()):
        lines.append("**Tiny shapes: times and memory say nothing; their limits are not applied.**")
    elif any(result.device == "cpu" for result in results.values()):
        lines.append("**On a CPU: limits of times and memory are not applied.**")
    return lines


def _rest(results: Mapping[str, Result]) -> Sequence[str]:
    """Figures without a row."""
    known = {(row.part, row.figure) for row in rows()}
    found = [
        f"{name} {shown(value)}"
        for result in results.values()
        for figure, value in result.figures.items()
        if (result.part, figure) not in known and (name := f"{result.part}/{figure}")
    ]
    return [f"Other figures: {'; '.join(found)}.", ""] if found else []


def _notes(results: Mapping[str, Result]) -> Sequence[str]:
    lines = [f"- {result.part}: {_cell(note)}" for result in results.values() for note in result.notes]
    for result in results.values():
        if result.traceback:
            lines += ["", f"{result.part} failed:", "", "```text", result.traceback.rstrip(), "```"]
    return lines


def _cell(text: str) -> str:
    """On one line, without what ends a cell."""
    return " ".join(text.replace("|", "\\|").split())


def is_accepted(results: Mapping[str, Result], parts: Sequence[str]) -> bool:
    """Whether every one of these parts has a result, none failed and no figure is an alarm."""
    return (
        all(part in results for part in parts)
        and not alarms(results)
        and not any(result.status not in (DONE, "skipped") for result in results.values())
    )
