"""Rollouts: the episodes of a step, one after the other or in threads, or in the background.

What is drawn depends on the seed, the step, the task and its place among the step's tasks alone, so that tasks may be
spread over processes in any way. Not here: one episode (`episode.py`), rewards, training.
"""

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

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
class EpisodePlan:
    """One episode to be played."""

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
    """The episodes of one group, the greedy one last; episode i is drawn by `derive_seed(*seed_parts, i)`."""
    return [
        EpisodePlan(
            task=task,
            group_id=group_id,
            seed=derive_seed(*seed_parts, sample),
            temperature=0.0 if sample == group_size else temperature,
        )
        for sample in range(group_size + with_greedy)
    ]


def as_group(task: Task, episodes: Sequence[Trajectory], *, group_size: int) -> TrajectoryGroup:
    """The episodes that `plan_group` planned, played."""
    return TrajectoryGroup(
        task_id=task["task_id"],
        trajectories=tuple(episodes[:group_size]),
        greedy=episodes[group_size] if len(episodes) > group_size else None,
    )


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
            plan
            for position, task in zip(positions, tasks, strict=True)
            for plan in plan_group(
                task,
                group_id=f"{step}/{position}",
                seed_parts=(self._seed, step, task["task_id"], position),
                group_size=group_size,
                temperature=temperature,
                with_greedy=with_greedy,
            )
        ]
        episodes = self._play_all(plans)
        groups = zip(*[iter(episodes)] * (group_size + with_greedy), strict=True)
        return [as_group(task, group, group_size=group_size) for task, group in zip(tasks, groups, strict=True)]

    def _play_all(self, plans: Sequence[EpisodePlan]) -> list[Trajectory]:
        return [self.play_episode(plan) for plan in plans]

    def play_episode(self, plan: EpisodePlan, cancelled: threading.Event | None = None) -> Trajectory:
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


class AsyncRolloutExecutor(RolloutWorker):
    """Plays the episodes of all groups at once, `num_workers` at a time, each in a thread of its own."""

    def __init__(
        self, policy: BasePolicy, env_factory: EnvFactory, *, limits: EpisodeLimits, seed: int, num_workers: int
    ) -> None:
        super().__init__(policy, env_factory, limits=limits, seed=seed)
        self._num_workers = num_workers

    def _play_all(self, plans: Sequence[EpisodePlan]) -> list[Trajectory]:
        cancelled = threading.Event()
        executor = ThreadPoolExecutor(self._num_workers, thread_name_prefix="episode")
        try:
            futures = [executor.submit(self.play_episode, plan, cancelled) for plan in plans]
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


class BackgroundPlayer:
    """Plays groups of episodes in threads while its owner does something else: `start`, later `fetch`, in one thread.

    Episodes are begun in the order in which their groups were started.
    """

    def __init__(self, worker: RolloutWorker, *, num_workers: int) -> None:
        self._worker = worker
        self._executor = ThreadPoolExecutor(num_workers, thread_name_prefix="episode")
        self._groups: dict[int, tuple[threading.Event, list[Future[Trajectory]]]] = {}
        self._ending: list[Future[Trajectory]] = []
        self._has_news = threading.Event()

    def start(self, group: int, plans: Sequence[EpisodePlan]) -> None:
        """Play these episodes as soon as threads are free; `group` is how `fetch` and `cancel` call them."""
        cancelled = threading.Event()
        futures = [self._executor.submit(self._worker.play_episode, plan, cancelled) for plan in plans]
        self._groups[group] = (cancelled, futures)
        for future in futures:
            future.add_done_callback(partial(self._on_done, futures))

    def _on_done(self, futures: Sequence[Future[Trajectory]], future: Future[Trajectory]) -> None:
        if _failure(future) is not None or all(other.done() for other in futures):
            self._has_news.set()

    def wait(self, timeout_s: float) -> None:
        """Until a group is over, an episode failed or time is up."""
        self._has_news.wait(timeout_s)
        self._has_news.clear()

    def fetch(self) -> dict[int, list[Trajectory]]:
        """The groups that are over, each once; one with a failed episode never is."""
        over = {
            group: [future.result() for future in futures]
            for group, (_, futures) in self._groups.items()
            if all(future.done() and _failure(future) is None for future in futures)
        }
        for group in over:
            del self._groups[group]
        return over

    def failure(self) -> BaseException | None:
        """What the policy raised in one of the episodes."""
        futures = [future for _, futures in self._groups.values() for future in futures]
        return next((error for future in futures if (error := _failure(future)) is not None), None)

    def cancel(self, groups: Iterable[int]) -> None:
        """Give up those of these groups that are here: waiting episodes never start, others end at a token or turn."""
        self._ending = [future for future in self._ending if not future.done()]
        for group in self._groups.keys() & set(groups):
            cancelled, futures = self._groups.pop(group)
            cancelled.set()
            self._ending += futures

    def cancel_all(self, timeout_s: float) -> None:
        """Give all groups up, and wait so long for their episodes to end."""
        self.cancel(self._groups)
        wait(self._ending, timeout_s)

    def close(self, timeout_s: float) -> None:
        """As `cancel_all`; nothing can be started any more."""
        self.cancel_all(timeout_s)
        self._executor.shutdown(wait=False)


def _failure(future: Future[Trajectory]) -> BaseException | None:
    return future.exception() if future.done() else None


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


def make_worker(config: Config, policy: BasePolicy, env_factory: EnvFactory) -> RolloutWorker:
    """Plays as many episodes at the same time as `config.rollout.async_workers` says; 0 is one after the other."""
    limits, seed, num_workers = EpisodeLimits.from_config(config), config.run.seed, config.rollout.async_workers
    if not num_workers:
        return RolloutWorker(policy, env_factory, limits=limits, seed=seed)
    return AsyncRolloutExecutor(policy, env_factory, limits=limits, seed=seed, num_workers=num_workers)


def make_rollout(config: Config, policy: BasePolicy, env_factory: EnvFactory, backend: Backend) -> SpreadRollout:
    """The rollout that `config.rollout.async_workers` asks for, spread over the processes of `backend`."""
    return SpreadRollout(make_worker(config, policy, env_factory), backend)
