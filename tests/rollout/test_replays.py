"""Episodes whose environment's machine is lost: they run again from their start, and are the same."""

import threading
from typing import Any

import pytest
from fakes import EchoEnv, ScriptedPolicy

from agent_rl.agent.messages import Message
from agent_rl.envs.base import EnvFactory, StepResult
from agent_rl.errors import ClusterError, EnvLostError
from agent_rl.records import StopReason, TrajectoryGroup
from agent_rl.rollout.rollout import MAX_PLAYS, EpisodePlan, RolloutRequest, RolloutWorker
from agent_rl.rollout.turns import EpisodeCancelledError, EpisodeLimits

TASKS = [{"task_id": f"t{i}", "question": f"q{i}"} for i in range(2)]
LIMITS = EpisodeLimits(max_new_tokens=1000, timeout_s=60.0)


class LosingEnv(EchoEnv):
    """Lost at the places that are left in `losses`: reset, step or truncate."""

    losses: list[str] = []
    made: list["LosingEnv"] = []

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)

    def _maybe(self, place: str) -> None:
        if self.losses and self.losses[0] == place:
            self.losses.pop(0)
            raise EnvLostError(f"lost in {place}")

    def reset(self, task: Any) -> list[Message]:
        self._maybe("reset")
        return super().reset(task)

    def step(self, message: Message) -> StepResult:
        self._maybe("step")
        return super().step(message)

    def truncate(self, reason: StopReason) -> StepResult:
        self._maybe("truncate")
        return super().truncate(reason)


def reply(turn: int, sampling: Any) -> str:
    return "done" if turn == 2 else str(sampling.seed % 1000)


def rolled_out(losses: list[str], limits: EpisodeLimits = LIMITS) -> tuple[list[TrajectoryGroup], ScriptedPolicy]:
    policy = ScriptedPolicy(reply)
    LosingEnv.losses, LosingEnv.made = losses, []
    worker = RolloutWorker(policy, EnvFactory(LosingEnv), limits=limits, seed=0)
    return worker.collect(RolloutRequest(tasks=TASKS, group_size=3, step=1, temperature=1.0)), policy


def ids(groups: list[TrajectoryGroup]) -> list[Any]:
    return [
        (e.task_id, e.group_id, [t.completion.token_ids for t in e.turns], e.reward, e.stop_reason)
        for group in groups
        for e in group.trajectories
    ]


@pytest.mark.parametrize("losses", [["reset"], ["step"], ["step", "reset", "step"], ["truncate"]])
def test_a_lost_episode_runs_again_and_is_the_same(losses: list[str]) -> None:
    limits = EpisodeLimits(max_new_tokens=1000, max_turns=2) if losses == ["truncate"] else LIMITS
    expected, _ = rolled_out([], limits)
    num_losses = len(losses)
    groups, _ = rolled_out(losses, limits)
    assert ids(groups) == ids(expected) and len(ids(groups)) == 6
    assert losses == []
    assert len(LosingEnv.made) == 6 + num_losses
    assert {env.num_closed for env in LosingEnv.made} == {1}


def test_an_episode_that_loses_every_machine_fails_and_the_others_go_on() -> None:
    groups, _ = rolled_out(["step"] * MAX_PLAYS)
    first, *others = [episode for group in groups for episode in group.trajectories]
    assert (first.stop_reason, first.reward, first.turns) == (StopReason.ENV_ERROR, None, ())
    assert f"{MAX_PLAYS} times" in first.error and "lost in step" in first.error
    assert {episode.stop_reason for episode in others} == {StopReason.FINISHED}


def test_a_run_without_machines_ends() -> None:
    class Nowhere(EchoEnv):
        def reset(self, task: Any) -> list[Message]:
            raise ClusterError("no actor was there")

    worker = RolloutWorker(ScriptedPolicy(reply), EnvFactory(Nowhere), limits=LIMITS, seed=0)
    with pytest.raises(ClusterError):
        worker.collect(RolloutRequest(tasks=TASKS, group_size=1, step=1, temperature=1.0))


def test_a_cancelled_episode_does_not_run_again() -> None:
    cancelled = threading.Event()

    class Cancelling(EchoEnv):
        def step(self, message: Message) -> StepResult:
            cancelled.set()
            raise EnvLostError("lost")

    policy = ScriptedPolicy(reply)
    worker = RolloutWorker(policy, EnvFactory(Cancelling), limits=LIMITS, seed=0)
    plan = EpisodePlan(task=TASKS[0], group_id="g", seed=1, temperature=1.0, case_seed=None)
    with pytest.raises(EpisodeCancelledError):
        worker.run(plan, cancelled)
    assert len(policy.prompts) == 1
