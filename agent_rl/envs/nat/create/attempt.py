"""The projects of one request: the greedy one, more only where it is rejected, then repairs of the best.

Of several right ones the first by number is taken, so a seed gives the same answer whatever the timing. Not here: what
comes before (the plan) and after (the answer), in `creator.py`.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

from agent_rl.envs.nat.create.judging import JudgedProject, ProjectJudge
from agent_rl.envs.nat.create.result import MAX_PROBLEMS, Candidate
from agent_rl.envs.nat.create.scope import too_long
from agent_rl.envs.nat.create.settings import CreationConfig, ServeConfig
from agent_rl.envs.nat.create.writing import CreationCancelledError, Deadline, ProjectSession, ProjectWriter
from agent_rl.policies.policy import BasePolicy
from agent_rl.seeds import derive_seed

Event = Mapping[str, Any]
"""`{"event": "plan" | "check" | "candidate" | "repair" | "end", ...}`, JSON values only.

`check`: a project was written and is being judged; `candidate`: its verdict; `repair`: the best one is given back."""


@dataclass(slots=True, kw_only=True)
class WrittenProject:
    """One candidate with what is needed to go on with it."""

    writer: ProjectWriter
    files: dict[str, str]
    judged: JudgedProject
    candidate: Candidate

    @property
    def is_good(self) -> bool:
        return self.judged.verdict != "rejected"


class CreationAttempt:
    """The projects of one request."""

    def __init__(
        self,
        policy: BasePolicy,
        config: ServeConfig,
        judge: ProjectJudge,
        *,
        request: str,
        limits: CreationConfig,
        seed: int,
        deadline: Deadline,
        on_event: Callable[[Event], None],
    ) -> None:
        self._policy, self._config, self._judge, self._request = policy, config, judge, request
        self._limits, self._seed, self._on_event = limits, seed, on_event
        self._deadline = deadline
        self._telling = threading.Lock()
        """Events come one after the other."""

    def too_long(self, trained_context: int | None) -> str | None:
        """Why the request leaves no room in the model's window, or in what it was trained on, or None."""
        window = min(self._policy.max_context, trained_context or self._policy.max_context)
        return too_long(self._writer(0, self._deadline).num_prompt_tokens, window)

    def run(self) -> list[WrittenProject]:
        """All that was written and judged; the last one is good, or none is."""
        first = self._written(0, self._deadline)
        if first.is_good or self._deadline.is_set():
            return [first]
        written = [first, *self._more()]
        if written[-1].is_good:
            return written
        best = max(written, key=lambda each: each.judged.rank)
        for _ in range(self._limits.repairs):
            repaired = None if self._deadline.is_set() else self._repaired(best, len(written))
            if repaired is None:
                break
            written.append(repaired)
            if repaired.is_good:
                break
            best = repaired
        return written

    def _more(self) -> list[WrittenProject]:
        """The sampled ones, written at the same time; those behind the first good one are given up."""
        count = self._limits.candidates - 1
        if not count:
            return []
        beaten = threading.Event()
        shared = replace(self._deadline, beaten=beaten)
        done: list[WrittenProject] = []
        with ThreadPoolExecutor(count, thread_name_prefix="candidate") as pool:
            pending: list[Future[WrittenProject]] = [
                pool.submit(self._written, number, shared) for number in range(1, count + 1)
            ]
            try:
                for future in pending:
                    done.append(future.result())
                    if done[-1].is_good:
                        break
            finally:
                beaten.set()  # also when this thread is interrupted: the pool waits for its threads
        return done

    def _writer(self, number: int, deadline: Deadline) -> ProjectWriter:
        return ProjectWriter(
            self._policy,
            ProjectSession(self._judge.spec, self._judge.toolkit, self._judge.free_check),
            request=self._request,
            style=self._config.writes.prompt,
            seed=derive_seed(self._seed, "candidate", number),
            temperature=self._limits.temperature if number else 0.0,
            max_new_tokens=self._config.policy.max_new_tokens,
            max_turns=self._limits.max_turns,
            deadline=deadline,
        )

    def _written(self, number: int, deadline: Deadline) -> WrittenProject:
        start_s = time.monotonic()
        writer = self._writer(number, deadline)
        files = dict(writer.write())
        if deadline.is_beaten():
            raise CreationCancelledError
        return self._judged(writer, files, number, "sampled" if number else "greedy", start_s)

    def _repaired(self, best: WrittenProject, number: int) -> WrittenProject | None:
        """The best one after another turn; None where its window is full."""
        start_s = time.monotonic()
        self._tell({"event": "repair", "number": number, "of": best.candidate.number})
        files = best.writer.repair(self._judge.told(best.files))
        return None if files is None else self._judged(best.writer, dict(files), number, "repair", start_s)

    def _judged(
        self,
        writer: ProjectWriter,
        files: dict[str, str],
        number: int,
        kind: Literal["greedy", "sampled", "repair"],
        start_s: float,
    ) -> WrittenProject:
        checked_s = time.monotonic()
        self._tell({"event": "check", "number": number, "kind": kind, "num_tokens": writer.num_tokens})
        judged = self._judge.judge(files)
        candidate = Candidate(
            number=number,
            kind=kind,
            seed=writer.seed,
            temperature=writer.temperature,
            num_prompt_tokens=writer.num_prompt_tokens,
            num_tokens=writer.num_tokens,
            write_s=round(checked_s - start_s, 3),
            check_s=round(time.monotonic() - checked_s, 3),
            verdict=judged.verdict,
            shares=judged.report.shares,
            problems=tuple(judged.report.problems[:MAX_PROBLEMS]),
            lost_stages=tuple(dict.fromkeys(each.stage for each in judged.report.points if each.score < 1.0)),
            why_ended=writer.why_ended,
            replies=tuple(writer.replies),
        )
        self._tell({"event": "candidate", **candidate.to_dict()})
        return WrittenProject(writer=writer, files=files, judged=judged, candidate=candidate)

    def _tell(self, event: Event) -> None:
        with self._telling:
            self._on_event(event)
