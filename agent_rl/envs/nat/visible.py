"""What may be said of a project before the hidden cases: whether files are there, the example comes out, tests pass.

All of it follows from the request and from the project's own tests, so a model may read it. Used for the report on a
submission, the reward of progress, and the proof that a planted fault can be found. Not here: the verdict (`judge/`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.envs.nat.tools import NatCheckTool, PytestRunTool


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleChecks:
    """What the tools of an episode find in a project."""

    passed: Mapping[str, bool]
    """`files`, `built`, `example`, `served`, `tests`."""
    texts: Mapping[str, str]
    """What each of them says, as the model reads it; by the name of the tool, or `files`."""

    @property
    def all_passed(self) -> bool:
        return all(self.passed.values())

    @property
    def share(self) -> float:
        return sum(self.passed.values()) / len(self.passed)

    @property
    def report(self) -> str:
        return "\n".join(f"{name}: {text}" for name, text in self.texts.items())


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
    return VisibleChecks(passed={"files": not missing, **passed, "tests": tested.ok}, texts=texts)
