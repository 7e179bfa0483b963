"""Why a NAT project failed: rules over its problems, which are "stage, point: evidence" (`judge/report.py`).

Rules run from what keeps a project from running at all, over what it does, to how it is written.
"""

import re

from agent_rl.envs.failure_modes import FailedEpisode, FailureRule

_PROBLEM = re.compile(r"(?P<stage>[a-z]+), (?P<point>[^:]+): (?P<evidence>.*)", re.DOTALL)


def _points(episode: FailedEpisode) -> dict[tuple[str, str], str]:
    """(stage, point) -> evidence of the points that are not full."""
    found = [match for text in episode.problems if (match := _PROBLEM.match(text))]
    return {(match["stage"], match["point"]): match["evidence"] for match in found}


def _lost(episode: FailedEpisode, stage: str, *points: str) -> bool:
    """Whether any of these points of a stage is not full; without names, any point of the stage."""
    return any(s == stage and (not points or p in points) for s, p in _points(episode))


def _lost_part(episode: FailedEpisode, stage: str, ending: str) -> bool:
    """The same for points whose names end with `ending`, after the name of a tool."""
    return any(s == stage and p.endswith(ending) for s, p in _points(episode))


def _misses(episode: FailedEpisode, *endings: str) -> bool:
    """Whether a file whose path ends so was not written."""
    evidence = _points(episode).get(("files", "all files"), "")
    return any(path.endswith(endings) for path in evidence.removeprefix("missing ").split(", ") if path)


def _failed_at(episode: FailedEpisode, stage: str) -> bool:
    """Whether the toolkit failed to import, load or build the project."""
    return _points(episode).get(("build", "loads and builds"), "").startswith(f"at {stage}:")


NAT_RULES = (
    FailureRule("not submitted", "turns ran out before submit", lambda e: e.stop_reason == "max_turns"),
    FailureRule(
        "unreadable call",
        "files are missing, and a call of the episode could not be parsed",
        lambda e: _misses(e, "") and e.has_unreadable_call,
    ),
    FailureRule(
        "missing YAML",
        "the workflow configuration was not written or is no YAML mapping",
        lambda e: _misses(e, ".yml", ".yaml") or _lost(e, "config", "mapping"),
    ),
    FailureRule("no MCP server", "mcp_server.py was not written", lambda e: _misses(e, "mcp_server.py")),
    FailureRule(
        "project does not import",
        "Python of the project is missing, cannot be parsed or fails on import",
        lambda e: (
            _misses(e, "logic.py", "register.py", "__init__.py")
            or _lost(e, "code", "valid Python")
            or _failed_at(e, "import")
        ),
    ),
    FailureRule("no MCP server", "the server does not start", lambda e: _lost(e, "mcp", "handshake")),
    FailureRule(
        "wrong NAT pattern",
        "config class, builder, entry point or configuration do not follow the toolkit",
        lambda e: (
            _lost(e, "code", "config class", "builder", "inner function", "config fields")
            or _lost(e, "config")
            or _misses(e, "pyproject.toml")
        ),
    ),
    FailureRule(  # before the build, which fails too when the project is a client of its own server
        "wrong MCP server",
        "it offers other tools than the task requires",
        lambda e: _lost(e, "mcp", "tools and schemas"),
    ),
    FailureRule(
        "wrong NAT pattern",
        "the project does not load or build, or with other names, arguments or settings",
        lambda e: (
            _failed_at(e, "load") or _failed_at(e, "build") or _lost(e, "build", "workflow", "functions", "settings")
        ),
    ),
    FailureRule(
        "wrong behaviour",
        "a function returns wrong results for valid inputs",
        lambda e: _lost_part(e, "behaviour", ", valid inputs") or _lost(e, "code", "logic"),
    ),
    FailureRule(
        "bad input not handled",
        "valid inputs are right, errors are not those that the task requires",
        lambda e: _lost_part(e, "behaviour", ", bad inputs"),
    ),
    FailureRule("wrong workflow", "the functions are right, the workflow is not", lambda e: _lost(e, "workflow")),
    FailureRule("wrong MCP server", "it starts, but has another name or wrong results", lambda e: _lost(e, "mcp")),
    FailureRule(
        "incomplete tests",
        "the project's own tests are missing, fail on right code or pass on wrong code",
        lambda e: _lost(e, "tests") or _misses(e, ".py"),
    ),
    FailureRule("incomplete code", "type hints, docstrings or error handling are missing", lambda e: _lost(e, "code")),
    # Only the first problems of a project are noted; the shares of its reward cover the rest.
    FailureRule("wrong behaviour", "behaviour lost reward", lambda e: e.share("behaviour") < 1.0),
    FailureRule("wrong workflow", "the workflow lost reward", lambda e: e.share("workflow") < 1.0),
    FailureRule("wrong MCP server", "the server lost reward", lambda e: e.share("mcp") < 1.0),
    FailureRule("incomplete tests", "the tests lost reward", lambda e: e.share("tests") < 1.0),
    FailureRule("wrong NAT pattern", "the configuration lost reward", lambda e: e.share("config") < 1.0),
    FailureRule("incomplete code", "the code lost reward", lambda e: e.share("static") < 1.0),
)
