"""The verdict as a structured report: points with evidence, component shares, JSON and a table.

A point is one question with an answer in [0, 1] and what was seen. The report adds points up and gates them; it does
not look at a project (`checker.py`, `validate.py` do) and knows no reward (`reward.py`).
"""

from typing import Literal

from pydantic import Field, computed_field
from rich.table import Table
from rich.text import Text

from agent_rl.envs.nat.spec import Record
from agent_rl.sandbox.freeze import Flag

Stage = Literal["files", "code", "config", "build", "behaviour", "workflow", "mcp", "tests"]
Component = Literal["static", "behaviour", "tests", "config", "mcp", "workflow"]
COMPONENT_OF: dict[Stage, Component] = {
    "files": "static",
    "code": "static",
    "config": "config",
    "build": "config",
    "behaviour": "behaviour",
    "workflow": "workflow",
    "mcp": "mcp",
    "tests": "tests",
}
EVIDENCE_CHARS = 300


class Point(Record):
    """One thing that was looked at."""

    stage: Stage
    name: str
    score: float = Field(ge=0.0, le=1.0)
    evidence: str


def point(stage: Stage, name: str, score: float | bool, evidence: str) -> Point:
    """A point with its evidence cut to a readable length; a candidate's control characters stay out of terminals."""
    printable = "".join(char if char.isprintable() else " " for char in evidence[:EVIDENCE_CHARS])
    return Point(stage=stage, name=name, score=float(score), evidence=printable)


class ValidationReport(Record):
    """What was found. A component's share is the mean of its points, 0 where a gate is closed or nothing was seen."""

    points: tuple[Point, ...]
    gates: dict[Component, str] = Field(default_factory=dict)
    """Components that earn nothing regardless of their points, and why."""
    skipped: tuple[Stage, ...] = ()
    """Stages that were not requested, so not run; never counted as passed."""
    flags: tuple[Flag, ...] = ()
    """Signs of reward hacking; for metrics, they cost nothing."""
    seconds: dict[str, float] = Field(default_factory=dict)
    """Wall time by stage that ran in a process of its own."""

    def share(self, component: Component) -> float:
        scores = [each.score for each in self.points if COMPONENT_OF[each.stage] == component]
        return 0.0 if component in self.gates or not scores else sum(scores) / len(scores)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def shares(self) -> dict[str, float]:
        return {name: self.share(name) for name in dict.fromkeys(COMPONENT_OF.values())}

    @property
    def tools(self) -> float:
        return 0.2 * self.share("static") + 0.5 * self.share("behaviour") + 0.3 * self.share("tests")

    @property
    def integration(self) -> float:
        return 0.5 * self.share("config") + 0.5 * self.share("mcp")

    @property
    def workflow(self) -> float:
        return self.share("workflow")

    @property
    def complete(self) -> bool:
        """Every component is full; a skipped one is not."""
        return not self.gates and all(each.score == 1.0 for each in self.points) and min(self.shares.values()) == 1.0

    @property
    def problems(self) -> tuple[str, ...]:
        """What cost points, in words."""
        lost = [f"{each.stage}, {each.name}: {each.evidence}" for each in self.points if each.score < 1.0]
        return (*lost, *(f"{name} earns nothing: {why}" for name, why in self.gates.items()))

    def table(self) -> Table:
        """Stage, point, score and evidence, for a terminal."""
        table = Table(title_justify="left", header_style="bold")
        for column in ("stage", "point", "score", "evidence"):
            table.add_column(column, overflow="fold", justify="right" if column == "score" else "left")
        for each in self.points:
            style = "green" if each.score == 1.0 else "red" if each.score == 0.0 else "yellow"
            table.add_row(each.stage, each.name, Text(f"{each.score:.2f}", style), Text(each.evidence))
        return table
