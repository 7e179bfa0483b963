"""What may be said of a project before the hidden cases: whether files are there, the example comes out, tests pass.

All of it follows from the request and from the project's own tests, so a model may read it. Used for the report on a
submission, the reward of progress, and the proof that a planted fault can be found. Not here: the verdict (`judge/`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.envs.nat.tools import NatCheckTool, PytestRunTool, test_files

_FAILURE = re.compile(r"^_{3,} .+ _{3,}$", re.MULTILINE)
_FAILED_LINE = re.compile(r"^> +(?P<line>.+)$", re.MULTILINE)
_UNREAD_LINES = [
    re.compile(each, re.MULTILINE)
    for each in (r"^E +File .+\nE +(?P<line>.+)$", r"^ +(?P<line>[^\s^].*)\n(?:[ ^~]+\n)?(?=E )")
]
"""The line that Python cannot parse, or else where an import fails: of these pytest prints none with `>`."""
_SAID = re.compile(r"^E +(?:AssertionError: )?(\S.*)$", re.MULTILINE)
_MOST_FAILURES, _MOST_CHARACTERS = 2, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleChecks:
    """What the tools of an episode find in a project."""

    passed: Mapping[str, bool]
    """`files`, `built`, `example`, `served`, `tests`."""
    texts: Mapping[str, str]
    """What each of them says, as the model reads it; by the name of the tool, or `files`."""
    compared: Sequence[str] = ()
    """What came out beside what the request says: a line for the example, and one for each other thing that differs."""

    @property
    def all_passed(self) -> bool:
        return all(self.passed.values())

    @property
    def share(self) -> float:
        return sum(self.passed.values()) / len(self.passed)


def visible_checks(toolkit: NatToolkit, spec: NATSpec, files: Mapping[str, str]) -> VisibleChecks:
    """Run `nat_check` and `pytest_run`. Raises SandboxError when the sandbox itself fails."""
    known = dict(files)
    checked = NatCheckTool(known, lambda: toolkit, spec)()
    tested = PytestRunTool(known, lambda: toolkit)()
    missing = [path for path in spec.files if path not in known]
    texts = {"nat_check": checked.text, "pytest_run": tested.text}
    if missing:
        texts = {"files": f"missing {', '.join(missing)}", **texts}
    facts = checked.facts
    passed = {name: bool(facts[name]) for name in ("built", "example", "served")}
    passed = {"files": not missing, **passed, "tests": tested.ok}
    return VisibleChecks(passed=passed, texts=texts, compared=facts["compared"])


def report_on(toolkit: NatToolkit, files: Mapping[str, str], found: VisibleChecks) -> str:
    """What was found, what came out beside what the request says, and the failed lines of tests as pytest prints them.

    The project's tests run once more where they fail. Raises SandboxError when the sandbox itself fails.
    """
    lines = [f"{name}: {text}" for name, text in found.texts.items()]
    targets = [] if found.passed["tests"] else test_files(files)
    failed = failed_lines(toolkit.printed_by_tests(files, targets=targets)) if targets else []
    return "\n".join([*lines, *found.compared, *failed])


def failed_lines(printed: str) -> list[str]:
    """Of the first failures that pytest printed, the line of the test, with `>`, and what it says first, with `E`.

    Where it compares texts and cuts them, both whole; where a module cannot be imported, the line that is to blame.
    """
    said = [pair for failure in _FAILURE.split(printed)[1:] if (pair := _failed(failure))]
    return [f"{sign} {text[:_MOST_CHARACTERS]}" for pair in said[:_MOST_FAILURES] for sign, text in pair]


def _failed(failure: str) -> list[tuple[str, str]]:
    """One failure's lines, each with its sign."""
    said = _SAID.findall(failure)
    if not said:
        return []
    if found := _FAILED_LINE.search(failure):
        compared = [each for each in said[1:] if each.startswith(("- ", "+ ")) and "..." in said[0]]
        return [(">", found["line"]), ("E", said[0]), *(("E", each) for each in compared)]
    found = next(filter(None, (each.search(failure) for each in _UNREAD_LINES)), None)
    return [(">", found["line"]), ("E", said[-1])] if found else []
