"""Check the data of an environment: run scripted solutions whose outcome is known, without a model.

A reference that does not succeed, or a negative solution that does, is a fault of the data or of the grader. A
solution that names evidence succeeds only if a reply of the environment holds it. Does not: make solutions.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from agent_rl.data.tasks import Task
from agent_rl.envs.base import EnvFactory, Solution, StepResult
from agent_rl.envs.step_result import read_opening, read_step
from agent_rl.records import StopReason
from agent_rl.rewards.answers import normalize_answer
from agent_rl.tools.passages import words_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SolutionOutcome:
    """The outcome of one scripted episode."""

    task_id: str
    group: str
    """The key that outcomes are counted by, such as the task's family."""
    solution: str
    succeeds: bool
    """The expected outcome."""
    succeeded: bool
    reward_parts: dict[str, float] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def is_as_expected(self) -> bool:
        return self.succeeds == self.succeeded


def check_data(
    factory: EnvFactory, tasks: Sequence[Task], *, workers: int, group_by: Callable[[Task], str]
) -> Iterator[SolutionOutcome]:
    """Run every solution of every task, `workers` at a time, and yield outcomes in the order of the tasks.

    The factory must have been started. Raises SandboxError when the grader itself failed.
    """
    with ThreadPoolExecutor(max_workers=workers) as pool:
        pending = [
            pool.submit(_run, factory, task, solution, group_by(task))
            for task in tasks
            for solution in factory.solutions(task)
        ]
        try:
            for each in pending:
                yield each.result()
        finally:
            for each in pending:
                each.cancel()


def check_reference(factory: EnvFactory, task: Task) -> tuple[str, ...]:
    """Why the reference of a task does not succeed here; empty when it does. The factory must have been started."""
    reference = next(solution for solution in factory.solutions(task) if solution.succeeds)
    outcome = _run(factory, task, reference, "")
    return () if outcome.succeeded else outcome.problems or ("no reason is given",)


def _run(factory: EnvFactory, task: Task, solution: Solution, group: str) -> SolutionOutcome:
    env = factory()
    replies: list[str] = []
    try:
        read_opening(env.reset(task), env)
        result = StepResult()
        for message in solution.messages:
            result = read_step(env.step(message), env)
            replies += [each.content for each in result.messages]
            if result.terminated:
                break
        else:
            result = env.truncate(StopReason.MAX_TURNS)
    finally:
        env.close()
    missing = _missing(solution.evidence, replies)
    return SolutionOutcome(
        task_id=task["task_id"],
        group=group,
        solution=solution.name,
        succeeds=solution.succeeds,
        succeeded=result.reward_parts.get("success", 0.0) == 1.0 and not missing,
        reward_parts=result.reward_parts,
        problems=(*missing, *result.info.get("problems", ())),
    )


def _missing(evidence: Sequence[str], replies: Sequence[str]) -> tuple[str, ...]:
    """A sentence where there is evidence, and none of it stands in a reply, compared word by word."""
    texts = [_words(reply) for reply in replies]
    if not evidence or any(_words(answer) in text for answer in evidence for text in texts):
        return ()
    return (f"no reply of the tools holds {' or '.join(map(repr, evidence))}",)


def _words(text: str) -> str:
    """` mount velm ` of "The Mount Velm.": without case, articles and punctuation, with spaces around."""
    return f" {' '.join(words_of(normalize_answer(text)))} "
