"""Why an episode failed: one label, by rule, from its end, its reward parts, problems and messages.

The first rule of a table that holds gives the label, so that a project whose file is missing is not called wrong for
what follows from that. Rules read what the environments note (`problems` of a NAT project are "stage, point:
evidence", as in `nat/report.py`); text that a model chose is never matched. Not here: judging anything anew.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from agent_rl.reports.episodes import Episode
from agent_rl.tools.answer_tool import AnswerTool

NOT_SCORED = "environment error"
"""The label of an episode that could not be scored: no failure of the model's, and not counted among failures."""
OTHER = "other"
_PROBLEM = re.compile(r"(?P<stage>[a-z]+), (?P<point>[^:]+): (?P<evidence>.*)", re.DOTALL)


@dataclass(frozen=True)
class _Facts:
    """What the rules ask about a failed episode."""

    episode: Episode

    @cached_property
    def points(self) -> dict[tuple[str, str], str]:
        """(stage, point) -> evidence, of the points of a NAT project that are not full."""
        found = [match for text in self.episode.problems if (match := _PROBLEM.match(text))]
        return {(match["stage"], match["point"]): match["evidence"] for match in found}

    def lost(self, stage: str, *points: str) -> bool:
        """Whether any of these points of a stage is not full; without names, any at all."""
        return any(s == stage and (not points or p in points) for s, p in self.points)

    def lost_part_of(self, stage: str, ending: str) -> bool:
        """The same for points whose names end so, behind the name of a tool."""
        return any(s == stage and p.endswith(ending) for s, p in self.points)

    def misses(self, *endings: str) -> bool:
        """Whether a file whose path ends so was not written."""
        said = self.points.get(("files", "all files"), "")
        return any(path.endswith(endings) for path in said.removeprefix("missing ").split(", ") if path)

    def failed_at(self, stage: str) -> bool:
        """Whether the toolkit got no further with the project than to import, load or build it."""
        return self.points.get(("build", "loads and builds"), "").startswith(f"at {stage}:")

    def share(self, name: str) -> float:
        """A component's share, 1 where none is reported."""
        return self.episode.reward_parts.get(f"share/{name}", 1.0)

    @property
    def had_unreadable_call(self) -> bool:
        return any(message.get("tool_errors") for message in self.episode.messages)

    @property
    def used_a_tool(self) -> bool:
        """Whether any was called but `answer`, which hands in what others found."""
        calls = [call for message in self.episode.messages for call in message.get("tool_calls", ())]
        return any(call.get("name") != AnswerTool.name for call in calls)

    @property
    def had_failed_call(self) -> bool:
        return any(info.get("tool_errors") for info in self._infos)

    @property
    def _infos(self) -> list[Mapping[str, object]]:
        return [info for message in self.episode.messages if isinstance(info := message.get("info"), Mapping)]

    def noted(self, name: str) -> object:
        """What the environment noted last under this name, or None."""
        return next((info[name] for info in reversed(self._infos) if name in info), None)


Rule = tuple[str, str, Callable[[_Facts], bool]]
"""Label, what it means, when it holds."""

_ENDS: tuple[Rule, ...] = (
    (
        "ran out of tokens",
        "a reply or the conversation hit its token limit",
        lambda f: f.episode.stop_reason in ("max_tokens", "context_full"),
    ),
    ("timeout", "the episode's deadline passed", lambda f: f.episode.stop_reason == "timeout"),
    (
        "unreadable call",
        "the episode ended by calls that could not be read",
        lambda f: f.episode.stop_reason == "invalid_calls",
    ),
    ("too many calls", "the budget of tool calls was used up", lambda f: f.episode.stop_reason == "tool_budget"),
)
"""Ends that explain a failure whatever the task."""

_NAT: tuple[Rule, ...] = (
    ("not submitted", "turns ran out before submit", lambda f: f.episode.stop_reason == "max_turns"),
    (
        "unreadable call",
        "files are missing, and a call of the episode could not be read",
        lambda f: f.misses("") and f.had_unreadable_call,
    ),
    (
        "missing YAML",
        "the workflow configuration was not written or is no YAML mapping",
        lambda f: f.misses(".yml", ".yaml") or f.lost("config", "mapping"),
    ),
    ("no MCP server", "mcp_server.py was not written", lambda f: f.misses("mcp_server.py")),
    (
        "project does not import",
        "Python of the project is missing, cannot be read or fails on import",
        lambda f: (
            f.misses("logic.py", "register.py", "__init__.py")
            or f.lost("code", "valid Python")
            or f.failed_at("import")
        ),
    ),
    ("no MCP server", "the server does not come up", lambda f: f.lost("mcp", "handshake")),
    (
        "wrong NAT pattern",
        "config class, builder, entry point or configuration are not as the toolkit wants them",
        lambda f: (
            f.lost("code", "config class", "builder", "inner function", "config fields")
            or f.lost("config")
            or f.misses("pyproject.toml")
        ),
    ),
    (  # before the build, which fails too where the project is a client of its own server
        "wrong MCP server",
        "it offers other tools than those asked for",
        lambda f: f.lost("mcp", "tools and schemas"),
    ),
    (
        "wrong NAT pattern",
        "the project does not load or build, or with other names, arguments or settings",
        lambda f: f.failed_at("load") or f.failed_at("build") or f.lost("build", "workflow", "functions", "settings"),
    ),
    (
        "wrong behaviour",
        "a function answers valid inputs wrong",
        lambda f: f.lost_part_of("behaviour", ", valid inputs") or f.lost("code", "logic"),
    ),
    (
        "bad input not handled",
        "valid inputs are right, and errors are not those that were asked for",
        lambda f: f.lost_part_of("behaviour", ", bad inputs"),
    ),
    ("wrong workflow", "the functions are right, and the workflow is not", lambda f: f.lost("workflow")),
    ("wrong MCP server", "it comes up, and has another name or answers wrong", lambda f: f.lost("mcp")),
    (
        "incomplete tests",
        "the project's own tests are missing, fail on right code or let wrong code pass",
        lambda f: f.lost("tests") or f.misses(".py"),
    ),
    ("careless code", "type hints, docstrings or error handling are missing", lambda f: f.lost("code")),
)
"""From what keeps a project from running at all, over what it does, to how it is made."""

_NAT_SHARES: tuple[tuple[str, str], ...] = (
    ("behaviour", "wrong behaviour"),
    ("workflow", "wrong workflow"),
    ("mcp", "wrong MCP server"),
    ("tests", "incomplete tests"),
    ("config", "wrong NAT pattern"),
    ("static", "careless code"),
)
"""Component -> label, where the problems do not say: only the first ones of a project are noted."""

_CODE: tuple[Rule, ...] = (
    ("no program", "nothing was run or handed in", lambda f: f.noted("programs") == 0),
    ("no test passes", "the last program passes no test", lambda f: f.share("tests") == 0.0),
    ("some tests fail", "the last program passes some tests", lambda f: f.share("tests") < 1.0),
)
_ANSWERS: tuple[Rule, ...] = (
    ("no answer", "the last reply holds no answer", lambda f: f.noted("prediction") == ""),
    ("wrong answer, no tool used", "no tool was called", lambda f: not f.used_a_tool and bool(f.episode.messages)),
    ("wrong answer, a call failed", "a tool answered with an error", lambda f: f.had_failed_call),
    ("wrong answer", "tools were called and answered", lambda f: True),
)
_TURNS: Rule = ("ran out of turns", "the turn budget was used up", lambda f: f.episode.stop_reason == "max_turns")


def failure_mode(episode: Episode) -> str | None:
    """The label of an episode that failed; None for a success, `NOT_SCORED` for one without a score."""
    if not episode.is_scored:
        return NOT_SCORED
    if episode.is_success:
        return None
    facts = _Facts(episode)
    return next((label for label, _, holds in _rules(episode) if holds(facts)), _by_share(episode))


def _rules(episode: Episode) -> tuple[Rule, ...]:
    """The tables for an episode's environment, which its reward parts tell."""
    if "integration" in episode.reward_parts:
        return (*_ENDS, *_NAT)
    if "tests_passed" in episode.reward_parts:
        return (*_ENDS, *_CODE, _TURNS)
    is_question = any("prediction" in message.get("info", ()) for message in episode.messages)
    return (*_ENDS, _TURNS, *(_ANSWERS if is_question else ()))


def _by_share(episode: Episode) -> str:
    parts = episode.reward_parts
    return next((label for name, label in _NAT_SHARES if parts.get(f"share/{name}", 1.0) < 1.0), OTHER)


def failure_counts(episodes: Iterable[Episode]) -> dict[str, int]:
    """Failed episodes by label, most frequent first; those without a score are left out."""
    labels = (failure_mode(episode) for episode in episodes)
    return dict(Counter(label for label in labels if label not in (None, NOT_SCORED)).most_common())


def _meanings() -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for label, meaning, _ in (*_ENDS, *_NAT, *_CODE, *_ANSWERS, _TURNS):
        found.setdefault(label, []).append(meaning)
    return {label: "; or ".join(meanings) for label, meanings in found.items()} | {OTHER: "none of the rules tells"}


MEANINGS = _meanings()
"""Label -> what it means, for reports."""
