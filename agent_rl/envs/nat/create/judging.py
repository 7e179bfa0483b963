"""Decide what a written project is: accepted by an oracle, built, or rejected; and what the model may be told of it.

With a plan the verdict is the checker's, on hidden cases: `accepted`. Without one nobody knows the right answers, so
the validator can say no more than `built`, and it passes projects that are wrong. What a model is told before a repair
never holds a hidden case. Not here: how the checks work (`judge/`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent_rl.envs.nat.factory.user_test_cases import UserTestCase
from agent_rl.envs.nat.judge.checker import check_project
from agent_rl.envs.nat.judge.report import ValidationReport, point
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.judge.validator.folder import Folder
from agent_rl.envs.nat.judge.validator.validate import validate_files
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.errors import UserError

Verdict = Literal["accepted", "built", "rejected"]
MAX_TOLD = 3
"""Problems that a model is told at once."""
_HERE = Path("the project")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedProject:
    """What became of one project."""

    verdict: Verdict
    report: ValidationReport

    @property
    def rank(self) -> tuple[float, int]:
        """Greater for a better project: by its shares, then by how few problems it has."""
        return sum(self.report.shares.values()), -len(self.report.problems)


class ProjectJudge:
    """The real checks, for the projects of one request."""

    def __init__(
        self, toolkit: NatToolkit, spec: NATSpec | None, cases: Sequence[UserTestCase] = (), *, seed: int
    ) -> None:
        """`seed` chooses the hidden cases. UserError for cases that could not be answered rightly."""
        self.toolkit, self.spec, self.cases, self.seed = toolkit, spec, tuple(cases), seed
        if spec is not None and cases and uses_network(spec):
            raise UserError(
                f"{cases[0].where}: this agent calls an HTTP API, and no network answers cases of your own; leave them "
                "out: the plan's hidden cases bring the API's answers"
            )

    def judge(self, files: Mapping[str, str]) -> JudgedProject:
        """The verdict. Raises SandboxError when the checks themselves fail."""
        if self.spec is None:
            report = self._validated(files, self.cases)
            return JudgedProject(verdict="rejected" if report.problems else "built", report=report)
        report = check_project(self.toolkit, self.spec, files, seed=self.seed)
        if self.cases:
            own = [each for each in self._validated(files, self.cases).points if each.name.endswith("cases")]
            report = report.model_copy(update={"points": (*report.points, *own)})
        return JudgedProject(verdict="accepted" if report.complete else "rejected", report=report)

    def told(self, files: Mapping[str, str]) -> list[str]:
        """The first problems that can be found without the hidden cases: the model may read them."""
        cases = [*self.cases, *(example_cases(self.spec) if self.spec else ())]
        return list(self._validated(files, cases).problems)[:MAX_TOLD]

    def free_check(self, files: Mapping[str, str]) -> list[str]:
        """What the validator finds without any case."""
        return list(self._validated(files, ()).problems)[:MAX_TOLD]

    def _validated(self, files: Mapping[str, str], cases: Sequence[UserTestCase]) -> ValidationReport:
        try:
            return validate_files(self.toolkit, Folder(files=dict(files), left_out={}), _HERE, cases=cases)
        except UserError as error:  # no project at all
            return ValidationReport(points=(point("files", "all parts", 0, str(error)),))


def uses_network(spec: NATSpec) -> bool:
    """Whether a tool of the plan calls an HTTP API."""
    return any(tool.family == "api_client" for tool in spec.tools)


def example_cases(spec: NATSpec) -> tuple[UserTestCase, ...]:
    """The test cases of the plan, which the request shows, as far as the validator can ask them."""
    names = {tool.instance for tool in spec.tools}
    if uses_network(spec):
        return ()
    return tuple(
        UserTestCase(where="the plan", target=case.tool, inputs=dict(case.inputs), expected=case.expected)
        for case in spec.plan.test_cases
        if case.tool in names
    )
