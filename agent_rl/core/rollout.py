"""Rollouts: the episodes of a step, one after the other or in threads.

What is drawn depends on the seed, the step, the task and its place among the step's tasks alone, so that tasks may be
spread over processes in any way. Not here: one episode (`episode.py`), rewards, training.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

from agent_rl.config import Config
from agent_rl.core.episode import (
    EnvFailureError,
    EpisodeCancelledError,
    EpisodeLimits,
    derive_seed,
    in_env,
    run_episode,
)
from agent_rl.core.policy import BasePolicy
from agent_rl.distributed.backend import Backend
from agent_rl.envs.base import EnvFactory, Task
from agent_rl.errors import SandboxError
from agent_rl.generation.threads import give_back_openmp_threads
from agent_rl.records import StopReason, Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """One episode to be played."""

    task: Task
    group_id: str
    seed: int
    temperature: float


class RolloutWorker:
    """Plays episodes one after the other."""

    def __init__(self, policy: BasePolicy, env_factory: EnvFactory, *, limits: EpisodeLimits, seed: int) -> None:
        self._policy = policy
        self._env_factory = env_factory
        self._limits = limits
        self._seed = seed

    def collect(
        self,
        tasks: Sequence[Task],
        *,
        group_size: int,
        step: int,
        temperature: float,
        positions: Sequence[int] | None = None,
        with_greedy: bool = False,
    ) -> list[TrajectoryGroup]:
        """Play `group_size` episodes of every task, and a greedy one besides `with_greedy`; groups in task order.

        `positions` are the places of `tasks` among the tasks of the step (default: 0, 1, ...). Raises SandboxError when
        not one episode could be scored.
        """
        return checked(
            self.play(
                tasks,
                group_size=group_size,
                step=step,
                temperature=temperature,
                positions=range(len(tasks)) if positions is None else positions,
                with_greedy=with_greedy,
            )
        )

    def play(
        self,
        tasks: Sequence[Task],
        *,
        group_size: int,
        step: int,
        temperature: float,
        positions: Sequence[int],
        with_greedy: bool,
    ) -> list[TrajectoryGroup]:
        """As `collect`, whatever becomes of the episodes."""
        plans = [
            _Plan(
                task=task,
                group_id=f"{step}/{position}",
                seed=derive_seed(self._seed, step, task["task_id"], position, sample),
                temperature=0.0 if sample == group_size else temperature,
            )
            for position, task in zip(positions, tasks, strict=True)
            for sample in range(group_size + with_greedy)
        ]
        episodes = self._play_all(plans)
        groups = zip(*[iter(episodes)] * (group_size + with_greedy), strict=True)
        return [
            TrajectoryGroup(
                task_id=task["task_id"],
                trajectories=group[:group_size],
                greedy=group[group_size] if with_greedy else None,
            )
            for task, group in zip(tasks, groups, strict=True)
        ]

    def _play_all(self, plans: Sequence[_Plan]) -> list[Trajectory]:
        return [self._play(plan) for plan in plans]

    def _play(self, plan: _Plan, cancelled: threading.Event | None = None) -> Trajectory:
        if cancelled is not None and cancelled.is_set():
            raise EpisodeCancelledError
        try:
            env = in_env(self._env_factory)
        except EnvFailureError as failure:
            return Trajectory(
                task_id=plan.task["task_id"],
                group_id=plan.group_id,
                turns=(),
                stop_reason=StopReason.ENV_ERROR,
                reward=None,
                error=str(failure),
            )
        return run_episode(
            self._policy,
            env,
            plan.task,
            group_id=plan.group_id,
            seed=plan.seed,
            limits=self._limits,
            temperature=plan.temperature,
            cancelled=cancelled,
        )


class AsyncRolloutExecutor(RolloutWorker):
    """Plays the episodes of all groups at once, `num_workers` at a time, each in a thread of its own."""

    def __init__(
        self, policy: BasePolicy, env_factory: EnvFactory, *, limits: EpisodeLimits, seed: int, num_workers: int
    ) -> None:
        super().__init__(policy, env_factory, limits=limits, seed=seed)
        self._num_workers = num_workers

    def _play_all(self, plans: Sequence[_Plan]) -> list[Trajectory]:
        cancelled = threading.Event()
        executor = ThreadPoolExecutor(self._num_workers, thread_name_prefix="episode")
        try:
            futures = [executor.submit(self._play, plan, cancelled) for plan in plans]
            give_back_openmp_threads()
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
            return [future.result() for future in futures]
        except BaseException:
            # Ctrl-C or a failing engine: waiting episodes never start, running ones end before their next turn.
            cancelled.set()
            raise
        finally:
            executor.shutdown(wait=False, cancel_futures=True)


class SpreadRollout:
    """One rollout over all processes: each plays its share of the tasks, all of them get every group."""

    def __init__(self, worker: RolloutWorker, backend: Backend) -> None:
        self._worker = worker
        self._backend = backend

    def collect(
        self,
        tasks: Sequence[Task],
        *,
        group_size: int,
        step: int,
        temperature: float,
        first_position: int = 0,
        with_greedy: bool = False,
    ) -> list[TrajectoryGroup]:
        """As `RolloutWorker.collect`, for tasks that stand at `first_position` and after it in the step."""
        rank, num_processes = self._backend.rank, self._backend.num_processes
        mine = self._worker.play(
            tasks[rank::num_processes],
            group_size=group_size,
            step=step,
            temperature=temperature,
            positions=range(first_position + rank, first_position + len(tasks), num_processes),
            with_greedy=with_greedy,
        )
        shares = self._backend.all_gather_object(mine)
        return checked([shares[index % num_processes][index // num_processes] for index in range(len(tasks))])


def checked(groups: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """The groups; SandboxError when there are episodes and not one could be scored."""
    episodes = [episode for group in groups for episode in group.trajectories]
    if episodes and all(episode.stop_reason is StopReason.ENV_ERROR for episode in episodes):
        raise SandboxError(
            f"all {len(episodes)} episodes failed in their environment, the first with: {episodes[0].error}"
        )
    return groups


def make_rollout(config: Config, policy: BasePolicy, env_factory: EnvFactory, backend: Backend) -> SpreadRollout:
    """The rollout that `config.rollout.async_workers` asks for, spread over the processes of `backend`."""
    limits, seed, num_workers = EpisodeLimits.from_config(config), config.run.seed, config.rollout.async_workers
    worker = (
        AsyncRolloutExecutor(policy, env_factory, limits=limits, seed=seed, num_workers=num_workers)
        if num_workers
        else RolloutWorker(policy, env_factory, limits=limits, seed=seed)
    )
    return SpreadRollout(worker, backend)
