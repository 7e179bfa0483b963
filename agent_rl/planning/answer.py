"""What a question's answer is made of, and its verdict. Not here: arithmetic, tables (`report.py`)."""

from collections.abc import Mapping
from dataclasses import dataclass

from agent_rl.planning.changes import Change, nearest_change
from agent_rl.planning.fit import Fit
from agent_rl.planning.machine import GIB
from agent_rl.planning.question import Question
from agent_rl.planning.time import Assumptions, Times, Tokens, assume, count_tokens, estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """All that was found out."""

    question: Question
    fit: Fit
    change: Change | None
    """None when nothing has to change."""
    assumed: Assumptions
    tokens: Tokens
    times: Times | None
    """None on a CPU, whose peak nobody states."""

    @property
    def fits(self) -> bool:
        return self.fit.is_enough(self.question.headroom)

    @property
    def verdict(self) -> str:
        """One or two sentences."""
        wanted = f"{self.question.headroom:.0%}"
        if self.fits:
            return f"It fits, with {self.fit.lowest:.0%} head-room where it is tightest (wanted: {wanted})."
        reasons = list(self.fit.problems)
        tight = [p for p in self.fit.places if p.headroom is not None and p.headroom < self.question.headroom]
        reasons += [f"{p.name}: {p.need / GIB:.1f} of {p.capacity / GIB:.1f} GiB" for p in tight]
        text = f"It does not fit with {wanted} head-room: {'; '.join(reasons)}."
        if self.change is None:
            return text
        if self.change.fits:
            return f"{text} The nearest change that fits: {self.change.text} ({self.change.lowest:.0%} head-room)."
        return f"{text} No single change fits; the closest is {self.change.text} ({self.change.lowest:.0%} head-room)."


def make_plan(question: Question, assumed: Mapping[str, float | None] | None = None) -> RunPlan:
    """The answer; `assumed` are fields of `Assumptions`, None where its default stands."""
    job = question.job
    assumptions = assume(job.config, num_machines=job.layout.num_machines, **(assumed or {}))
    found = question.answer()
    return RunPlan(
        question=question,
        fit=found,
        change=None if found.is_enough(question.headroom) else nearest_change(question),
        assumed=assumptions,
        tokens=count_tokens(job.config, assumptions, num_processes=job.layout.num_processes),
        times=None if question.gpu is None else estimate(job, question.gpu, assumptions),
    )
