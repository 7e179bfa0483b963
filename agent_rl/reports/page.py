"""Self-contained HTML pages from the templates beside this file: nothing is fetched and no script runs.

Every value is escaped, so text that a model wrote is shown and never interpreted; `Markup` marks what is HTML already.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from agent_rl.telemetry.trajectory_json import Episode

MAX_MESSAGE_CHARS = 12_000
"""Most characters that are shown of one message."""
NUM_RANKED = 3
"""Conversations shown of the best, of the worst, and of each failure mode."""
MAX_TRANSCRIPT_CHARS = 2_000_000
"""Of all conversations on a page together, which keeps a page at a few megabytes."""


def render(template: str, **values: Any) -> str:
    """The page of a template; half surrogate pairs, which UTF-8 cannot hold, become their escapes."""
    return _plain(_environment().get_template(template).render(values))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("agent_rl.reports"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"shortened": shortened, "call_text": call_text}
    return environment


def _plain(page: str) -> str:
    return page.encode("utf-8", "backslashreplace").decode()


def shortened(text: object) -> str:
    """Text cut to `MAX_MESSAGE_CHARS`."""
    shown = str(text)
    rest = len(shown) - MAX_MESSAGE_CHARS
    return shown if rest <= 0 else f"{shown[:MAX_MESSAGE_CHARS]}\n... {rest} more characters"


def call_text(call: Mapping[str, Any]) -> str:
    """A tool call for reading: the name, then each argument, text with its line breaks."""
    arguments = call.get("arguments") or {}
    if not isinstance(arguments, Mapping):
        return f"{call.get('name')} {arguments!r}"
    lines = [
        f"{key}:\n{value}" if isinstance(value, str) and "\n" in value else f"{key}: {value}"
        for key, value in arguments.items()
    ]
    return "\n".join([f"{call.get('name')}", *lines])


# Conversations


def transcripts(episodes: Sequence[Episode]) -> tuple[list[tuple[str, list[str]]], int]:
    """Titles with conversations as markup, until the page has enough; and how many are left out."""
    found, room, num_left_out = [], MAX_TRANSCRIPT_CHARS, 0
    transcript = _environment().get_template("parts.html").module.transcript
    for title, chosen in choose(episodes):
        shown = []
        for markup in (Markup(_plain(transcript(episode))) for episode in chosen):
            if len(markup) > room:
                num_left_out += 1
            else:
                room -= len(markup)
                shown.append(markup)
        if shown:
            found.append((title, shown))
    return found, num_left_out


def choose(episodes: Sequence[Episode]) -> list[tuple[str, list[Episode]]]:
    """Titles with the episodes to show, no episode twice: first ones of each failure mode, best, worst."""
    scored = sorted((e for e in episodes if e.reward is not None), key=lambda e: e.reward or 0.0, reverse=True)
    by_mode: dict[str, list[Episode]] = {}
    for episode in episodes:
        if (mode := episode.failure_mode) is not None:
            by_mode.setdefault(mode, []).append(episode)
    taken: set[tuple[str, int]] = set()
    chosen = []
    ranked = [("Highest rewards", scored), ("Lowest rewards", scored[::-1])]
    for title, group in [*ranked, *((f"Failed: {mode}", group) for mode, group in by_mode.items())]:
        new = [e for e in group if (e.task_id, e.sample) not in taken][:NUM_RANKED]
        taken |= {(e.task_id, e.sample) for e in new}
        chosen.append((title, new))
    return chosen
