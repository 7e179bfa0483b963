"""The record a grader returns. Does not: turn the score into a reward."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from agent_rl.sandbox.freeze import Flag
from agent_rl.sandbox.limits import Status


class Outcome(StrEnum):
    """What became of one expected test. Only PASSED counts."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    """Skipped, or failed as expected."""
    MISSING = "missing"
    """Never reported: not collected, or the run ended before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Outcomes of the tests that were expected: `Verdict(per_test={"a": Outcome.PASSED}).score == 1.0`."""

    per_test: Mapping[str, Outcome] = field(default_factory=dict)
    """Outcome by test id (for mutants: passed = killed), exactly the expected ids."""
    status: Status = Status.OK
    """How the candidate's run ended; for a linked run, the run of the tests."""
    holds: bool = True
    """For tests that were judged by mutants: whether they passed, consistently, on right code."""
    flags: tuple[Flag, ...] = ()
    evidence: str = ""
    """A line or two for people; not for the model when tests are hidden."""

    is_settled: bool = True
    """Whether it is worth keeping for equal files, see `JobResult.is_settled`."""

    @property
    def passed(self) -> int:
        return sum(outcome is Outcome.PASSED for outcome in self.per_test.values())

    @property
    def total(self) -> int:
        return len(self.per_test)

    @property
    def score(self) -> float:
        """Share of the expected tests that passed, 0 to 1."""
        return self.passed / self.total if self.total else 0.0

    @property
    def full(self) -> bool:
        """Whether every expected test passed."""
        return 0 < self.total == self.passed
