"""Helpers of the graders: select files, check arguments, compare ids. Runs nothing by itself."""

from collections.abc import Collection, Mapping, Sequence

from agent_rl.errors import UserError
from agent_rl.sandbox.freeze import Flag, freeze, is_reserved
from agent_rl.sandbox.limits import JobResult, Limits, Status
from agent_rl.sandbox.run_files import Call
from agent_rl.sandbox.verdict import Outcome, Verdict
from agent_rl.sandbox.workspace import WorkspaceError, validate_files

Files = Mapping[str, str | bytes]
_JUDGE_SHARE = 0.4
"""Part of the wall-clock limit that a candidate cannot use up, so that the judge always gets to its verdict."""


def judge_call(
    tests: Files,
    modules: Sequence[str],
    limits: Limits,
    call_s: float,
    exports: Mapping[str, Collection[str]] | None,
    *,
    by_file: bool = False,
) -> Call:
    """The client's side of a linked run: pytest on every test file of `tests`.

    With `exports` a star import takes those names of a module alone, without it those that the other side tells. With
    `by_file` the tests are run although a file failed to load.
    """
    targets = sorted(path for path in tests if path.endswith(".py") and path.rpartition("/")[2].startswith("test_"))
    request = {
        "targets": targets,
        "modules": list(modules),
        "call_s": call_s,
        "total_s": limits.wall_s * (1 - _JUDGE_SHARE),
        "by_file": by_file,
        "exports": None if exports is None else {module: sorted(names) for module, names in exports.items()},
    }
    return Call(job="judge_suite", files=tests, request=request)


def check_modules(modules: Sequence[str]) -> None:
    """Raise UserError for names that are no modules, or that the standard library or pytest has."""
    for name in modules:
        if not all(part.isidentifier() for part in name.split(".")) or is_reserved(name.replace(".", "/") + ".py"):
            raise UserError(f"{name!r} cannot be the module of a task; use a dotted name that no other package has")


def take(files: Files, keep: Collection[str] | None) -> tuple[dict[str, str | bytes], tuple[Flag, ...], str]:
    """The frozen files, flags, and why the files are refused, if they are."""
    allowed, flags = freeze(files, keep)
    try:
        validate_files(allowed)
    except WorkspaceError as error:
        return {}, flags, str(error)
    return allowed, flags, ""


def all_with(ids: Collection[str], outcome: Outcome, status: Status, flags: tuple[Flag, ...], evidence: str) -> Verdict:
    return Verdict(per_test=dict.fromkeys(ids, outcome), status=status, flags=flags, evidence=evidence)


def outcomes_of(run: JobResult) -> dict[str, str]:
    """Outcome by id as reported; nothing for a report of another shape."""
    outcomes = run.result.get("outcomes") if isinstance(run.result, dict) else None
    return {name: str(outcome) for name, outcome in outcomes.items()} if isinstance(outcomes, dict) else {}


def by_file(outcomes: Mapping[str, str]) -> dict[str, str]:
    """The outcome of each file: of what does not pass in it the first, `passed` where all of it does."""
    found: dict[str, str] = {}
    for name, outcome in outcomes.items():
        path = name.partition("::")[0]
        if found.get(path, Outcome.PASSED) == Outcome.PASSED:
            found[path] = outcome
    return found


def compare_ids(
    expected: Collection[str], outcomes: Mapping[str, str], status: Status, flags: tuple[Flag, ...], evidence: str
) -> Verdict:
    """Compare expected and reported ids. An unexpected test voids the rest; a file that fails to load does not."""
    strays = set(outcomes) - set(expected) - {name.partition("::")[0] for name in expected}
    known = set(Outcome)
    per_test = {
        name: Outcome(outcomes[name]) if outcomes.get(name) in known and not strays else Outcome.MISSING
        for name in sorted(expected)
    }
    flags += (Flag.UNEXPECTED_TESTS,) if strays else ()
    return Verdict(per_test=per_test, status=status, flags=flags, evidence=evidence)
