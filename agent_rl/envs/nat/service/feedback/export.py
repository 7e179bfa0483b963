"""From what users say of their agents to task files: feedback chooses which plans are trained on, never the verdict.

A job is exported when its user agreed and it had a plan. Where the user's cases contradict the plan, the plan was
misunderstood: the job goes to the disputes and makes no task. Sets are those of the generator, by fingerprint, so what
is held out stays held out. Not here: reading the store and writing files (`commands.py`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_rl.envs.nat.factory.planner.dataset import divided
from agent_rl.envs.nat.service.feedback.evidence import plan_in, right_answer, task_of
from agent_rl.envs.nat.spec import NATSpec

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFeedback:
    """What one key says of one job, with the user's consent, and what is known of the job."""

    job_id: str
    key_name: str
    verdict: str
    comment: str
    cases: Sequence[Mapping[str, Any]]
    created_at: float
    request: str
    spec: Mapping[str, Any] | None
    state: str
    reason: str
    planner: str

    @property
    def about(self) -> Row:
        """What every file of an export says of it."""
        names = ("job_id", "key_name", "verdict", "comment", "created_at", "request", "state", "planner")
        return {name: getattr(self, name) for name in names}


@dataclass(slots=True, kw_only=True)
class FeedbackExport:
    """The files of an export, before they are written."""

    sets: dict[str, list[NATSpec]] = field(default_factory=dict)
    """`train`, `val` and `test_generalisation`; some may be empty."""
    evidence: list[Row] = field(default_factory=list)
    """One row for each feedback behind a task: `task_id`, what was said, the cases that agree with the plan."""
    disputes: list[Row] = field(default_factory=list)
    """Requests whose plan answers a user's case otherwise, with both answers."""
    wanted: list[Row] = field(default_factory=list)
    """Why there was no plan, and how often; requests of users who agreed, where one was written without."""
    counts: dict[str, int] = field(default_factory=dict)


def export(
    feedback: Iterable[JobFeedback], refused: Iterable[str] = (), *, max_share: float = 0.2, terse: bool = False
) -> FeedbackExport:
    """Divide feedback, given in the order of its time, into tasks, disputes and what is wanted.

    `refused` are the reasons of all refused jobs, of which only the kind is kept. No key has more than `max_share` of
    the tasks: its later ones are left out. `terse` is the wording of the shipped small model's tasks.
    """
    found = FeedbackExport()
    counts: Counter[str] = Counter()
    without_plan: list[JobFeedback] = []
    tasks: dict[str, NATSpec] = {}
    key_of: dict[str, str] = {}
    for each in feedback:
        counts["feedback"] += 1
        if each.spec is None:
            without_plan.append(each)
            continue
        plan = plan_in(each.spec)
        agreed, disputed = _compared(plan, each.cases) if plan else ([], [])
        if disputed:
            found.disputes.append({**each.about, "plan": dict(each.spec), "cases": disputed})
            continue
        known = plan and tasks.get(plan.fingerprint)
        task = known or (plan and task_of(plan, terse=terse))
        if task is None:
            counts["unsound_plans"] += 1
            continue
        counts["duplicates"] += known is not None
        tasks.setdefault(task.fingerprint, task)
        key_of.setdefault(task.fingerprint, each.key_name)
        found.evidence.append({"task_id": task.task_id, **each.about, "cases": agreed})
    kept = _capped(key_of, max_share)
    found.sets = divided([spec for fingerprint, spec in tasks.items() if fingerprint in kept], exact=False)
    found.evidence = [row for row in found.evidence if row["task_id"].removeprefix("feedback-") in kept]
    found.wanted = _wanted(without_plan, refused)
    counts["tasks"], counts["over_share"] = len(kept), len(tasks) - len(kept)
    counts["disputes"], counts["without_plan"] = len(found.disputes), len(without_plan)
    names = ("feedback", "tasks", "duplicates", "over_share", "unsound_plans", "disputes", "without_plan")
    found.counts = {name: counts[name] for name in names}
    return found


def _compared(spec: NATSpec, cases: Sequence[Mapping[str, Any]]) -> tuple[list[Row], list[Row]]:
    """Cases that the plan answers as the user does, and those that it answers otherwise, with its answer."""
    agreed, disputed = [], []
    for case in cases:
        right = right_answer(spec, case)
        if right is not None and right == case["expected"]:
            agreed.append(dict(case))
        elif right is not None:
            disputed.append({**case, "plan_says": right})
    return agreed, disputed


def _capped(key_of: Mapping[str, str], max_share: float) -> set[str]:
    """The fingerprints that stay: as many as can be, the first of each key, with no key above its share of them."""
    left = Counter(key_of.values())
    num_kept = len(key_of)
    while True:
        most = int(max_share * num_kept + 1e-9)
        fewer = sum(min(count, most) for count in left.values())
        if fewer == num_kept:
            break
        num_kept = fewer
    taken: Counter[str] = Counter()
    kept = set()
    for fingerprint, key in key_of.items():
        taken[key] += 1
        if taken[key] <= most:
            kept.add(fingerprint)
    return kept


def _wanted(without_plan: Sequence[JobFeedback], refused: Iterable[str]) -> list[Row]:
    """By kind of reason, the most frequent first. Nobody agreed to show refused requests, and behind the colon of a
    reason may be words of one."""
    counts = Counter(reason.partition(":")[0] for reason in refused)
    rows: list[Row] = [{"reason": kind, "count": count, "requests": []} for kind, count in counts.items()]
    if without_plan:
        requests = [{**each.about, "reason": each.reason, "cases": list(each.cases)} for each in without_plan]
        rows.append({"reason": "written without a plan", "count": len(requests), "requests": requests})
    return sorted(rows, key=lambda row: (-row["count"], row["reason"]))
