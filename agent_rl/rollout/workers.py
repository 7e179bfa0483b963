"""Rollouts: the episodes of a step, one after the other or in threads, shared out over processes.

The tokens of an episode depend on the seed, the step, the task and its place among the step's tasks alone, so tasks may
be split over processes in any way. Not here: one episode (`episode.py`), rewards, training, rollouts in the
background (`async_source.py`).
"""

import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from agent_rl.config import Config
from agent_rl.distributed.backend import Backend
from agent_rl.envs.base import EnvFactory, Task
from agent_rl.errors import SandboxError
from agent_rl.modeling.openmp import release_openmp_threads
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import StopReason, Trajectory, TrajectoryGroup
from agent_rl.rollout.episode import EnvFailureError, EpisodeCancelledError, EpisodeLimits, in_env, run_episode
from agent_rl.seeds import derive_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """Groups to roll out: `RolloutRequest(tasks=tasks, group_size=8, step=1, temperature=1.0)`."""

    tasks: Sequence[Task]
    group_size: int
    """Episodes of every task."""
    step: int
    """Of the run; the seeds depend on it."""
    temperature: float
    positions: Sequence[int] | None = None
    """Places of `tasks` among the tasks of the step, which the seeds depend on; None is 0, 1, ..."""
    with_greedy: bool = False
    """One greedy episode of every task in addition."""

    def share_of(self, rank: int, num_processes: int) -> "RolloutRequest":
        """The part of one process: every `num_processes`-th task."""
        part = slice(rank, None, num_processes)
        return replace(self, tasks=self.tasks[part], positions=self._positions()[part])

    def plans(self, seed: int) -> "list[list[EpisodePlan]]":
        """The episodes of every task."""
        return [
            plan_group(
                task,
                group_id=f"{self.step}/{position}",
                seed_parts=(seed, self.step, task["task_id"], position),
                group_size=self.group_size,
                temperature=self.temperature,
                with_greedy=self.with_greedy,
            )
            for position, task in zip(self._positions(), self.tasks, strict=True)
        ]

    def _positions(self) -> Sequence[int]:
        return range(len(self.tasks)) if self.positions is None else self.positions


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodePlan:
    """One episode to run."""

    task: Task
    group_id: str
    seed: int
    temperature: float


def plan_group(
    task: Task,
    *,
    group_id: str,
    seed_parts: Sequence[int | str],
    group_size: int,
    temperature: float,
    with_greedy: bool,
) -> list[EpisodePlan]:
    """The episodes of one group, the greedy one last; the seed of episode i is `derive_seed(*seed_parts, i)`."""
    return [
        EpisodePlan(
            task=task,
            group_id=group_id,
            seed=derive_seed(*seed_parts, sample),
            temperature=0.0 if sample == group_size else temperature,
        )
        for sample in range(group_size + with_greedy)
    ]


def make_group(task: Task, episodes: Sequence[Trajectory], *, group_size: int) -> TrajectoryGroup:
    """The group of the episodes that `plan_group` planned."""
    return TrajectoryGroup(
        task_id=task["task_id"],
        trajectories=tuple(episodes[:group_size]),
        greedy=episodes[group_size] if len(episodes) > group_size else None,
    )


class RolloutWorker:
    """Runs episodes one after the other."""

    def __init__(self, policy: BasePolicy, env_factory: EnvFactory, *, limits: EpisodeLimits, seed: int) -> None:
        self._policy = policy
        self._env_factory = env_factory
        self._limits = limits
        self._seed = seed

    def collect(self, request: RolloutRequest) -> list[TrajectoryGroup]:
        """The groups of a request, in task order. SandboxError when not one episode could be scored."""
        return require_scored(self.roll_out(request))

    def roll_out(self, request: RolloutRequest) -> list[TrajectoryGroup]:
        """As `collect`, also when no episode could be scored."""
        plans = request.plans(self._seed)
        episodes = iter(self._run_all([plan for group in plans for plan in group]))
        return [
            make_group(task, [next(episodes) for _ in group], group_size=request.group_size)
            for task, group in zip(request.tasks, plans, strict=True)
        ]

    def _run_all(self, plans: Sequence[EpisodePlan]) -> list[Trajectory]:
        return [self.run(plan) for plan in plans]

    def run(self, plan: EpisodePlan, cancelled: threading.Event | None = None) -> Trajectory:
        """One episode; EpisodeCancelledError at its next token or turn once `cancelled` is set."""
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


class ThreadedRolloutWorker(RolloutWorker):
    """Runs the episodes of all groups at once, `num_workers` at a time, each in a thread of its own."""

    def __init__(
        self, policy: BasePolicy, env_factory: EnvFactory, *, limits: EpisodeLimits, seed: int, num_workers: int
    ) -> None:
        super().__init__(policy, env_factory, limits=limits, seed=seed)
        self._num_workers = num_workers

    def _run_all(self, plans: Sequence[EpisodePlan]) -> list[Trajectory]:
        cancelled = threading.Event()
        executor = ThreadPoolExecutor(self._num_workers, thread_name_prefix="episode")
        try:
            futures = [executor.submit(self.run, plan, cancelled) for plan in plans]
            release_openmp_threads()
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
            return [future.result() for future in futures]
        except BaseException:
            # Ctrl-C or a failing engine: waiting episodes never start, running ones end before their next turn.
            cancelled.set()
            raise
        finally:
            executor.shutdown(wait=False, cancel_futures=True)


class DistributedRollout:
    """One rollout over all processes: each runs its share of the tasks, all of them get every group."""

    def __init__(self, worker: RolloutWorker, backend: Backend) -> None:
        self._worker = worker
        self._backend = backend

    def collect(self, request: RolloutRequest) -> list[TrajectoryGroup]:
        """As `RolloutWorker.collect`; every process passes the same request."""
        num_processes = self._backend.num_processes
        own = self._worker.roll_out(request.share_of(self._backend.rank, num_processes))
        shares = self._backend.all_gather_object(own)
        return require_scored(
            [shares[index % num_processes][index // num_processes] for index in range(len(request.tasks))]
        )


def require_scored(groups: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """The groups; SandboxError when there are episodes and not one could be scored."""
    episodes = [episode for group in groups for episode in group.trajectories]
    if episodes and all(episode.stop_reason is StopReason.ENV_ERROR for episode in episodes):
        raise SandboxError(
            f"all {len(episodes)} episodes failed in their environment, the first with: {episodes[0].error}"
        )
    return groups


def make_worker(config: Config, policy: BasePolicy, env_factory: EnvFactory) -> RolloutWorker:
    """Runs `config.rollout.async_workers` episodes at the same time; 0 is one after the other."""
    limits, seed, num_workers = EpisodeLimits.from_config(config), config.run.seed, config.rollout.async_workers
    if not num_workers:
        return RolloutWorker(policy, env_factory, limits=limits, seed=seed)
    return ThreadedRolloutWorker(policy, env_factory, limits=limits, seed=seed, num_workers=num_workers)


def make_rollout(config: Config, policy: BasePolicy, env_factory: EnvFactory, backend: Backend) -> DistributedRollout:
    """A rollout with the configured workers, shared out over the processes of `backend`."""
    return DistributedRollout(make_worker(config, policy, env_factory), backend)
