"""Checking data with scripted solutions: on an environment that can be read at a glance, then on real NAT tasks."""

from collections.abc import Iterator
from typing import Any

import pytest
from nat_projects import SharedFactory, row, spec_of

from agent_rl.agent.messages import Message
from agent_rl.data.tasks import Task
from agent_rl.envs.base import AgentEnv, EnvFactory, Solution, StepResult
from agent_rl.envs.check_data import SolutionOutcome, check_data
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.errors import SandboxError
from agent_rl.records import StopReason


class SumEnv(AgentEnv):
    """`reset({"sum": 5})`, then the assistant must say the sum; a second turn ends it."""

    closed: list[str] = []

    def reset(self, task: Task) -> list[Message]:
        self.task = task
        self.turn = 0
        return [Message.user(task["question"])]

    def step(self, message: Message) -> StepResult:
        self.turn += 1
        if message.content == "wait":
            return StepResult(messages=(Message.user("well?"),))
        if message.content == "crash":
            raise SandboxError("the grader is gone")
        right = float(message.content == str(self.task["sum"]))
        return StepResult(reward=right, terminated=True, reward_parts={"success": right}, info={"problems": ["sum"]})

    def truncate(self, reason: StopReason) -> StepResult:
        return StepResult(terminated=True, reward_parts={"success": 0.0}, info={"problems": [str(reason)]})

    def close(self) -> None:
        self.closed.append(self.task["task_id"])


class SumFactory(EnvFactory):
    def __init__(self) -> None:
        super().__init__(SumEnv)

    def solutions(self, task: Task) -> list[Solution]:
        answer, wrong = str(task["answer"]), str(task["answer"] + 1)
        return [
            Solution(name="reference", messages=(Message.assistant("wait"), Message.assistant(answer)), succeeds=True),
            Solution(name="one more", messages=(Message.assistant(wrong),), succeeds=False),
            Solution(name="silent", messages=(Message.assistant("wait"),), succeeds=False),
        ]


def task(name: str, right: int, answer: int, kind: str = "sums") -> Task:
    return {"task_id": name, "question": "?", "sum": right, "answer": answer, "kind": kind}


def outcomes_of(*tasks: Task, workers: int = 2) -> list[SolutionOutcome]:
    return list(check_data(SumFactory(), tasks, workers=workers, group_by=lambda each: each["kind"]))


def test_valid_data_runs_as_expected_in_the_order_of_the_tasks() -> None:
    rows = outcomes_of(task("a", 5, 5), task("b", 7, 7, "other"))
    assert [(each.task_id, each.group, each.solution) for each in rows] == [
        ("a", "sums", "reference"), ("a", "sums", "one more"), ("a", "sums", "silent"),
        ("b", "other", "reference"), ("b", "other", "one more"), ("b", "other", "silent"),
    ]  # fmt: skip
    assert [each.succeeded for each in rows] == [True, False, False] * 2
    assert all(each.is_as_expected for each in rows)


def test_a_reference_that_fails_is_a_fault() -> None:
    reference, *_ = outcomes_of(task("a", 5, 9))
    assert (reference.succeeds, reference.succeeded, reference.is_as_expected) == (True, False, False)
    assert reference.reward_parts == {"success": 0.0} and reference.problems == ("sum",)


def test_a_wrong_solution_that_succeeds_is_a_fault() -> None:
    _, one_more, silent = outcomes_of(task("a", 6, 5))
    assert (one_more.succeeds, one_more.succeeded, one_more.is_as_expected) == (False, True, False)
    assert silent.is_as_expected


def test_a_solution_that_ends_without_a_last_word_is_cut_off() -> None:
    *_, silent = outcomes_of(task("a", 5, 5))
    assert silent.problems == (str(StopReason.MAX_TURNS),) and not silent.succeeded


def test_every_environment_is_closed_also_when_the_grader_fails() -> None:
    class Broken(SumFactory):
        def solutions(self, task: Task) -> list[Solution]:
            return [Solution(name="crash", messages=(Message.assistant("crash"),), succeeds=False)]

    SumEnv.closed.clear()
    with pytest.raises(SandboxError, match="the grader is gone"):
        list(check_data(Broken(), [task("a", 1, 1)], workers=1, group_by=str))
    assert SumEnv.closed == ["a"]
    outcomes_of(task("b", 1, 1), task("c", 1, 1), workers=3)
    assert sorted(SumEnv.closed) == ["a", *"bbb", *"ccc"]


def test_outcomes_come_while_others_still_run() -> None:
    outcomes: Iterator[SolutionOutcome] = check_data(
        SumFactory(), [task("a", 1, 1), task("b", 1, 1)], workers=1, group_by=lambda each: each["kind"]
    )
    assert next(outcomes).solution == "reference"
    outcomes.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("family", "level"), [("unit_converter", 2), ("tool_workflow", 3)])
def test_real_tasks_are_as_expected(nat_toolkit: NatToolkit, family: str, level: int) -> None:
    factory: Any = SharedFactory(nat_toolkit)
    spec = spec_of(family, level)
    rows = list(check_data(factory, [row(spec)], workers=2, group_by=lambda each: each["family"]))
    assert [each.succeeded for each in rows] == [True, False, False, False]
    assert all(each.is_as_expected and each.group == family for each in rows)
    assert rows[0].problems == () and all(each.problems for each in rows[1:])


def test_a_real_task_with_a_wrong_rule_is_found_out(nat_toolkit: NatToolkit) -> None:
    """The rules decide hidden cases and reference alike, so the reports must differ: here the name of the server."""
    spec = spec_of("unit_converter", 2)

    class Other(SharedFactory):
        def solutions(self, task: Task) -> list[Solution]:
            return super().solutions(row(spec))[:1]

    renamed = {**row(spec), "server": {"name": "another", "raises": False}}
    (reference,) = check_data(Other(nat_toolkit), [renamed], workers=1, group_by=lambda each: each["family"])
    assert not reference.is_as_expected
    assert any("'another'" in problem for problem in reference.problems)
