"""What a creation gives: its state, the files, the evidence, and where everything came from.

Not here: how it is made (`creator.py`), how it is written to disk (`package.py`).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agent_rl.envs.nat.create.writing import ProjectReply
from agent_rl.envs.nat.judge.report import ValidationReport
from agent_rl.envs.nat.spec import NATSpec

State = Literal["accepted", "built", "rejected", "refused"]
"""`accepted`: an oracle's hidden cases are all right. `built`: there was no plan, and the validator found nothing,
which wrong projects pass too. `rejected`: written and not good enough. `refused`: not written."""
MAX_PROBLEMS = 12
"""Most problems shown of one project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One project that was written, and its verdict."""

    number: int
    """From 0, in the order of preference."""
    kind: Literal["greedy", "sampled", "repair"]
    seed: int
    temperature: float
    num_prompt_tokens: int
    num_tokens: int
    """Sampled for it; a repair counts those of the project that it repairs too."""
    write_s: float
    check_s: float
    verdict: Literal["accepted", "built", "rejected"]
    shares: dict[str, float]
    problems: tuple[str, ...]
    lost_stages: tuple[str, ...]
    """Stages of the checks that lost points."""
    why_ended: str
    """Why it was not submitted; empty where it was."""
    replies: tuple[ProjectReply, ...] = ()
    """With ids and log-probs, where they were asked for."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON, without ids."""
        names = ("number", "kind", "seed", "temperature", "num_prompt_tokens", "num_tokens", "write_s", "check_s")
        shown = {name: getattr(self, name) for name in (*names, "verdict", "shares", "why_ended")}
        return {**shown, "problems": list(self.problems), "lost_stages": list(self.lost_stages)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """The whole answer to one request."""

    state: State
    request: str
    """In the person's words."""
    seed: int
    reason: str = ""
    """Why it was refused or rejected, in a sentence; empty otherwise."""
    spec: NATSpec | None = None
    """The plan; None where there was none."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Of the best project, by path; the same that was judged."""
    report: ValidationReport | None = None
    """Of the best project."""
    chosen: int | None = None
    """Number of the candidate whose files these are."""
    candidates: tuple[Candidate, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    """`plan`, `create` (the writing and checking), and `all`."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """The model with the checksum of its weights, the planner, versions."""
    created_at: float = field(default_factory=time.time)
    """UNIX seconds."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON: everything but the ids of tokens."""
        return {
            "state": self.state,
            "reason": self.reason,
            "request": self.request,
            "seed": self.seed,
            "plan": self.spec.model_dump(mode="json") if self.spec else None,
            "files": dict(self.files),
            "report": self.report.model_dump(mode="json") if self.report else None,
            "chosen": self.chosen,
            "candidates": [each.to_dict() for each in self.candidates],
            "seconds": self.seconds,
            "provenance": self.provenance,
            "created_at": self.created_at,
        }
