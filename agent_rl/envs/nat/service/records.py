"""What the service keeps of a job and of feedback, and the words for the states of a job.

Not here: how they are kept (`store.py`), how they are shown to clients (`shown.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

UnderWay = Literal["queued", "planning", "sampling", "checking", "repairing"]
Ended = Literal["accepted", "built", "rejected", "refused", "failed", "cancelled", "expired"]
UNDER_WAY: tuple[UnderWay, ...] = get_args(UnderWay)
ENDED: tuple[Ended, ...] = get_args(Ended)
"""`accepted`, `built`, `rejected` and `refused` are those of a creation. `failed`: the machinery did, not the project.
`cancelled`: by its owner. `expired`: its deadline passed before there was a verdict."""
WITH_PROJECT: tuple[Ended, ...] = ("accepted", "built", "rejected")
"""Only these have files."""
Verdict = Literal["works", "fails", "partly"]
PARTIAL = ".partial"
"""Behind the name of a package's folder that is being written."""
MAX_ATTEMPTS = 2
"""Times that a job is begun: again after a crash or a failure of the machinery, then it has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentJob:
    """One accepted request for an agent."""

    id: str
    key_name: str
    """Whose it is; the name of the key, never the key."""
    state: UnderWay | Ended
    request: str
    """In the person's words; the plan's where only a plan was given."""
    options: Mapping[str, Any]
    """What was asked besides: `cases`, `candidates`, `repairs`."""
    seed: int
    deadline_s: float
    """From `created_at` on."""
    attempts: int = 0
    planner: str = ""
    """`given`, `gemini`, `openai` or `none`; empty before it is planned."""
    spec: Mapping[str, Any] | None = None
    """The plan: a row as in `dataset/nat_tasks`; None before it is planned, and where there is none."""
    reason: str = ""
    """Why it was refused, rejected, failed or expired: one sentence."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """`name`, `sha256` and more of the weights that wrote the project."""
    result: Mapping[str, Any] = field(default_factory=dict)
    """`candidates`, `chosen`, `report`, `provenance`, `package`, and `files`: path -> bytes."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds: `queue_s`, `plan_s`, `sample_s`, `check_s`, `package_s`, `all_s`."""
    created_at: float
    """UNIX seconds, as the other times."""
    started_at: float | None = None
    ended_at: float | None = None
    num_bytes: int = 0
    """Of its folder."""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """Something that happened to a job, as clients are told."""

    number: int
    """From 1 on, without a gap."""
    event: str
    """`state`, `plan`, `check`, `candidate`, `repair`, `end`."""
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What the owner of a job says about its project; the last word of each key counts."""

    job_id: str
    key_name: str
    verdict: Verdict
    comment: str
    cases: Sequence[Mapping[str, Any]]
    """As the validator takes them: `target`, `input`, `expected`."""
    consent: bool
    """Whether it, the request and the plan may be used for training."""
    created_at: float
