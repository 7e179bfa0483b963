"""Rollouts: the groups of each step, whose episodes run one after the other or in threads, shared out over processes.

The tokens of an episode depend on the seed, the step, the task and its place among the step's tasks alone, so tasks may
be split over processes in any way. With `rollout.max_attempts` above 1, more tasks are rolled out while too few groups
have rewards that differ (dynamic sampling). Not here: one episode (`episode.py`), rewards, training, rollouts in the
background (`async_source.py`).
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from agent_rl.config import Config
from agent_rl.data.curriculum import make_curriculum
from agent_rl.data.tasks import ENV_COLUMN
from agent_rl.distributed.backend import Backend
from agent_rl.distributed.processes import Processes
from agent_rl.envs.base import EnvFactory, Task
from agent_rl.errors import EnvLostError, EpisodesFailedError, SandboxError
from agent_rl.failures import FailedCall
from agent_rl.modeling.openmp import release_openmp_threads
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import StopReason, Trajectory, TrajectoryGroup
from agent_rl.rollout.agents import AgentFactory, EpisodePlan
from agent_rl.rollout.episode import ENVIRONMENT, EnvFailureError, in_env, run_episode
from agent_rl.rollout.outcomes import is_trainable, success_rates
from agent_rl.rollout.tally import EpisodeTally
from agent_rl.rollout.turns import EpisodeCancelledError, EpisodeLimits
from agent_rl.seeds import derive_seed

MAX_PLAYS = 5
"""An episode that lost its environment this many times fails: it may be the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """Groups to roll out: `RolloutRequest(tasks=tasks, group_size=8, step=1, temperature=1.0)`."""

    tasks: Sequence[Task]
    group_size: int
    """Episodes of every task."""
    step: int
    """Of the run; the seeds depend on it. Below 1 in evaluations, which always have the same hidden cases."""
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
                case_seed=derive_seed(seed, "cases", self.step) if self.step > 0 else None,
            )
            for position, task in zip(self._positions(), self.tasks, strict=True)
        ]

    def _positions(self) -> Sequence[int]:
        return range(len(self.tasks)) if self.positions is None else self.positions


def plan_group(
    task: Task,
    *,
    group_id: str,
    seed_parts: Sequence[int | str],
    group_size: int,
    temperature: float,
    with_greedy: bool,
    case_seed: int | None,
) -> list[EpisodePlan]:
    """The episodes of one group, the greedy one last; the seed of episode i is `derive_seed(*seed_parts, i)`."""
    return [
        EpisodePlan(
            task=task,
            group_id=group_id,
            seed=derive_seed(*seed_parts, sample),
            temperature=0.0 if sample == group_size else temperature,
            case_seed=case_seed,
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
        self.tally = EpisodeTally()
        """Of the episodes of this process."""

    def collect(self, request: RolloutRequest) -> list[TrajectoryGroup]:
        """The groups of a request, in task order. Errors of `require_scored` when not one episode could be scored."""
        return require_scored(self.roll_out(request))

    def roll_out(self, request: RolloutRequest) -> list[TrajectoryGroup]:
        """As `collect`, also when no episode could be scored."""
        plans = request.plans(self._seed)
        self.tally.begin(sum(map(len, plans)))
        episodes = iter(self._run_all([plan for group in plans for plan in group]))
        return [
            make_group(task, [next(episodes) for _ in group], group_size=request.group_size)
            for task, group in zip(request.tasks, plans, strict=True)
        ]

    def _run_all(self, plans: Sequence[EpisodePlan]) -> list[Trajectory]:
        return [self.run(plan) for plan in plans]

    def run(self, plan: EpisodePlan, cancelled: threading.Event | None = None) -> Trajectory:
        """One episode; EpisodeCancelledError at its next token or turn once `cancelled` is set.

        When the machine of its environment is lost it runs again from its start, with the same seeds.
        """
        episode = self._play_again(plan, cancelled)
        self.tally.add()
        return replace(episode, env=plan.task[ENV_COLUMN]) if self._env_factory.environments else episode

    def _play_again(self, plan: EpisodePlan, cancelled: threading.Event | None) -> Trajectory:
        lost = ""
        for _ in range(MAX_PLAYS):
            try:
                return self._play(plan, cancelled)
            except EnvLostError as error:
                lost = str(error)
        error = f"its environment was lost {MAX_PLAYS} times, at last with: {lost}"
        return _failed(plan, FailedCall(source=ENVIRONMENT, error=error, is_infrastructure=True))

    def _play(self, plan: EpisodePlan, cancelled: threading.Event | None) -> Trajectory:
        if cancelled is not None and cancelled.is_set():
            raise EpisodeCancelledError
        factory, task = self._env_factory.factory_of(plan.task)
        if isinstance(factory, AgentFactory):
            own = replace(plan, task=task)
            return factory.play_episode(self._policy, own, limits=self._limits, cancelled=cancelled)
        try:
            env = in_env(factory)
        except EnvFailureError as failure:
            return _failed(plan, failure.failed)
        env.case_seed = plan.case_seed
        return run_episode(
            self._policy,
            env,
            task,
            group_id=plan.group_id,
            seed=plan.seed,
            limits=self._limits,
            temperature=plan.temperature,
            cancelled=cancelled,
        )


def _failed(plan: EpisodePlan, failed: FailedCall) -> Trajectory:
    """An episode without a turn."""
    return Trajectory(
        task_id=plan.task["task_id"],
        group_id=plan.group_id,
        turns=(),
        stop_reason=StopReason.ENV_ERROR,
        reward=None,
        error=failed.sentence,
        failures=(failed,),
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
        self.tally = worker.tally

    def collect(self, request: RolloutRequest) -> list[TrajectoryGroup]:
        """As `RolloutWorker.collect`; every process passes the same request."""
        return require_scored(self.roll_out(request))

    def roll_out(self, request: RolloutRequest) -> list[TrajectoryGroup]:
        """As `collect`, also when no episode could be scored. A signal that one of several processes has noted ends its
        share; all of them raise AgreedInterrupt then."""
        num_processes = self._backend.num_processes
        own = partial(self._worker.roll_out, request.share_of(self._backend.rank, num_processes))
        gathered = self._backend.all_gather_object(self._backend.stop.cut_short(own))
        shares = [share for share in gathered if share is not None]
        if len(shares) < num_processes:
            self._backend.stop.leave()
        return [shares[index % num_processes][index // num_processes] for index in range(len(request.tasks))]


def require_scored(groups: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """The groups, unless there are episodes and not one could be scored.

    EpisodesFailedError then, or SandboxError where what failed first is no code of the user; `failed_calls` of either
    are the failures of all episodes.
    """
    episodes = [episode for group in groups for episode in group.trajectories]
    if not episodes or any(episode.stop_reason is not StopReason.ENV_ERROR for episode in episodes):
        return groups
    first, failed = episodes[0], tuple(failure for episode in episodes for failure in episode.failures)
    is_ours = any(failure.is_infrastructure for failure in first.failures)
    error = (SandboxError if is_ours else EpisodesFailedError)(
        f"all {len(episodes)} episodes failed in their environment, the first with: {first.error}"
    )
    error.failed_calls = failed
    raise error


def make_worker(config: Config, policy: BasePolicy, env_factory: EnvFactory) -> RolloutWorker:
    """Runs `config.rollout.async_workers` episodes at the same time; 0 is one after the other."""
    limits, seed, num_workers = EpisodeLimits.from_config(config), config.run.seed, config.rollout.async_workers
    if not num_workers:
        return RolloutWorker(policy, env_factory, limits=limits, seed=seed)
    return ThreadedRolloutWorker(policy, env_factory, limits=limits, seed=seed, num_workers=num_workers)


def make_rollout(config: Config, policy: BasePolicy, env_factory: EnvFactory, backend: Backend) -> DistributedRollout:
    """A rollout with the configured workers, shared out over the processes of `backend`."""
    return DistributedRollout(make_worker(config, policy, env_factory), backend)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """The groups of one step."""

    groups: list[TrajectoryGroup]
    """All of them, in the order they were started."""
    train_groups: list[TrajectoryGroup]
    """Those to train on; with more than one attempt only groups whose rewards differ."""
    metrics: dict[str, float]


class RolloutSource(Protocol):
    """Where the trainer gets its groups. A checkpoint has the state of the last step that was committed."""

    def collect(self, *, step: int) -> RolloutBatch:
        """The groups of a step; the first step of a run is 1."""

    def commit(self) -> None:
        """The groups collected last were trained on."""

    def rewind(self, step: int) -> None:
        """The weights go back to those after `step` updates; the tasks that come next stay the next ones."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def close(self) -> None:
        """Cancel what is running."""


SourceMaker = Callable[[BasePolicy, Processes], RolloutSource]
"""Makes a source once there are the policy and the processes of a run."""


class SyncSource:
    """Rolls out the tasks of a step when the step needs them."""

    def __init__(
        self,
        config: Config,
        tasks: Sequence[Task],
        rollout: DistributedRollout,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """`weights` are `EnvFactory.environments`."""
        self._config = config
        self._tasks = tasks
        self._rollout = rollout
        self._curriculum = make_curriculum(tasks, config.data.curriculum, seed=config.run.seed, weights=weights)
        self._committed = self._curriculum.state_dict()

    def collect(self, *, step: int) -> RolloutBatch:
        """Roll out until there are `groups_per_step` groups to train on, or `max_attempts` times.

        Errors of `require_scored` when no episode of all attempts could be scored.
        """
        rollout, num_attempts = self._config.rollout, 0
        indices: list[int] = []
        groups: list[TrajectoryGroup] = []
        train_groups: list[TrajectoryGroup] = []
        while len(train_groups) < rollout.groups_per_step and num_attempts < rollout.max_attempts:
            num_attempts += 1
            selected = self._curriculum.next(rollout.groups_per_step - len(train_groups), step=step)
            request = RolloutRequest(
                tasks=[self._tasks[index] for index in selected],
                group_size=rollout.group_size,
                step=step,
                temperature=self._config.policy.temperature,
                positions=range(len(groups), len(groups) + len(selected)),
                with_greedy=self._config.algorithm.advantage == "remax",
            )
            new_groups = self._rollout.roll_out(request)
            indices += selected
            groups += new_groups
            train_groups += [group for group in new_groups if is_trainable(group, self._config)]
        # Not for each attempt: the last ones may be of a task or two, whose failure is not that of the environment.
        metrics = self._curriculum.observe(indices, success_rates(require_scored(groups)))
        if rollout.max_attempts > 1:
            metrics |= {"rollout/num_attempts": float(num_attempts), "rollout/num_groups": float(len(groups))}
        return RolloutBatch(groups=groups, train_groups=train_groups, metrics=metrics)

    def commit(self) -> None:
        self._committed = self._curriculum.state_dict()

    def state_dict(self) -> dict[str, Any]:
        return self._committed

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """CheckpointError when it is of other tasks or another curriculum.

        An asynchronous run's state gives the curriculum alone: its groups are of older weights.
        """
        self._curriculum.load_state_dict(state.get("curriculum", state))
        self._committed = self._curriculum.state_dict()

    def rewind(self, step: int) -> None:
        """Nothing to do: no group outlives its step."""

    def close(self) -> None:
        """Nothing to do: between calls of `collect` nothing runs."""
