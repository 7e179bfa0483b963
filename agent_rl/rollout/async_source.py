"""Asynchronous rollouts with bounded staleness: groups run while the trainer updates.

No token that is trained on is more than `rollout.max_staleness` updates old.

Every process runs its share in background threads. All processes decide alike which groups are started, trained on and
dropped: in `collect`, at points where they exchange which groups are finished, each calls its own copy of one staleness
manager (`staleness.py`) and of the curriculum. The threads communicate with no other process. The tokens of a group are
sampled by the weights of its slot's version, and by later ones; seeds depend on the run's seed, the slot, the task and
the sample alone. Not here: when a group may be started, how the policy changes weights in the middle of a completion.
"""

import math
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from agent_rl.config import Config
from agent_rl.data.curriculum import make_curriculum
from agent_rl.data.tasks import Task
from agent_rl.distributed.processes import Processes
from agent_rl.envs.base import EnvFactory
from agent_rl.errors import EngineError
from agent_rl.modeling.openmp import release_openmp_threads
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import Completion, Trajectory, TrajectoryGroup
from agent_rl.rollout.agents import EpisodePlan
from agent_rl.rollout.outcomes import is_trainable, success_rates
from agent_rl.rollout.rollout import (
    DistributedRollout,
    RolloutBatch,
    RolloutSource,
    RolloutWorker,
    SyncSource,
    make_group,
    plan_group,
    require_scored,
)
from agent_rl.rollout.staleness import GroupSlot, StalenessManager
from agent_rl.rollout.tally import EpisodeTally
from agent_rl.rollout.turns import EpisodeLimits
from agent_rl.seeds import derive_seed
from agent_rl.telemetry.trajectory_json import decode_group, encode_group

POLL_S = 0.05
"""Longest time between two exchanges of a process that waits."""
SETTLE_S = 10.0
"""How long to wait for cancelled episodes to end."""


class AsyncSource:
    """A `RolloutSource` whose groups are already running when `collect` is called, and run on after it has returned.

    The curriculum observes the groups that `collect` returns and not the dropped ones: most of those are still running
    and have no result, and their tasks come again in the next epoch.
    """

    def __init__(
        self,
        config: Config,
        tasks: Sequence[Task],
        *,
        policy: BasePolicy,
        env_factory: EnvFactory,
        processes: Processes,
        tally: EpisodeTally | None = None,
    ) -> None:
        """`tally` shows how many groups of a step are there while it waits."""
        self._config = config
        self._tasks = tasks
        self._tally = tally or EpisodeTally()
        self._processes = processes
        self._curriculum = make_curriculum(
            tasks, config.data.curriculum, seed=config.run.seed, weights=env_factory.environments
        )
        self._staleness = self._new_staleness()
        worker = RolloutWorker(policy, env_factory, limits=EpisodeLimits.from_config(config), seed=config.run.seed)
        self._background = BackgroundRollout(worker, num_workers=config.rollout.async_workers)
        self._task_of: dict[int, int] = {}
        """Position of the task of each group that was started and not yet returned, by slot."""
        self._finished: dict[int, TrajectoryGroup] = {}
        """Those of them that are finished."""
        self._to_restart: list[GroupSlot] = []
        """Groups that were running when the checkpoint was saved."""
        self._num_late_reported = 0
        self._committed = self._snapshot()

    def _new_staleness(self) -> StalenessManager:
        rollout = self._config.rollout
        return StalenessManager(
            groups_per_step=rollout.groups_per_step,
            max_staleness=rollout.max_staleness,
            max_attempts=rollout.max_attempts,
        )

    def collect(self, *, step: int) -> RolloutBatch:
        """The oldest finished groups that are fresh enough for `step` (the first is 1); waits until there are enough.

        That is `groups_per_step` groups to train on, or fewer when `max_attempts` times as many were rolled out. The
        policy's weights are those of `step - 1` updates. Raises, on all processes, what the policy raised in an
        episode (on other processes as EngineError), those of `require_scored`, and EngineError
        when a token was sampled by weights that are older than its group.
        """
        release_openmp_threads()
        self._drop(self._staleness.advance_to(step - 1))
        for slot in self._to_restart:
            if slot.id in self._task_of:
                self._start_group(slot)
        self._to_restart = []
        wait_s = 0.0
        self._exchange()
        while (slots := self._staleness.pop_batch()) is None:
            self._start(step)
            started = time.perf_counter()
            self._tally.show(len(self._staleness.finished), self._config.rollout.groups_per_step, "groups")
            self._background.wait(POLL_S)
            self._exchange()
            wait_s += time.perf_counter() - started
        batch = self._make_batch(slots)
        if step < self._config.train.steps:
            self._start(step)
        else:  # no step would use them, and the last evaluation needs the inference engine
            unused = self._staleness.running
            self._staleness.drop(unused)
            self._num_late_reported += len(unused)
            self._drop(unused)
        return replace(batch, metrics=batch.metrics | self._metrics(slots, batch) | {"async/wait_s": wait_s})

    def commit(self) -> None:
        """The groups collected last were trained on; groups that are too old now are dropped."""
        self._drop(self._staleness.advance_to(self._staleness.version + 1))
        self._committed = self._snapshot()

    def rewind(self, step: int) -> None:
        """The weights are about to go back to those after `step` updates: groups of later weights are dropped.

        The tasks that come next stay the next ones.
        """
        self._background.cancel_all(SETTLE_S)
        self._staleness.rewind(step)
        self._task_of, self._finished, self._to_restart = {}, {}, []
        self._num_late_reported = self._staleness.num_dropped
        self._committed = self._snapshot()

    def close(self) -> None:
        """Cancel all running groups; to be called before the policy is closed."""
        self._background.close(SETTLE_S)

    def state_dict(self) -> dict[str, Any]:
        """As of the last commit, the same on all processes: curriculum, staleness manager, the finished groups.

        Of a group that was running, as far as all processes knew, only the task is in it.
        """
        groups = {slot: encode_group(group) for slot, group in self._committed["groups"].items()}
        return self._committed | {"groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`; running groups are cancelled. CheckpointError when it is of other tasks.

        Finished groups are restored. Those that were running are started again, by the present weights and as groups
        of this version, when `collect` is called next. A synchronous run's state has only the curriculum.
        """
        self._background.cancel_all(SETTLE_S)
        self._curriculum.load_state_dict(state.get("curriculum", state))
        self._staleness = self._new_staleness()
        self._task_of, self._finished, self._to_restart = {}, {}, []
        if "staleness" in state:
            self._staleness.load_state_dict(state["staleness"])
            self._task_of = dict(state["tasks"])
            self._finished = {slot: decode_group(text) for slot, text in state["groups"].items()}
            self._to_restart = self._staleness.restart()
        self._num_late_reported = self._staleness.num_dropped
        self._committed = self._snapshot()

    def _snapshot(self) -> dict[str, Any]:
        return {
            "curriculum": self._curriculum.state_dict(),
            "staleness": self._staleness.state_dict(),
            "tasks": dict(self._task_of),
            "groups": dict(self._finished),
        }

    def _start(self, step: int) -> None:
        """Select tasks and start groups while slots are free."""
        for index in self._curriculum.next(self._staleness.num_free, step=step):
            slot = self._staleness.start()
            self._task_of[slot.id] = index
            self._start_group(slot)

    def _start_group(self, slot: GroupSlot) -> None:
        """Start the episodes of a group, if it is this process's."""
        if slot.id % self._processes.num_processes != self._processes.rank:
            return
        task = self._tasks[self._task_of[slot.id]]
        plans = plan_group(
            task,
            group_id=f"async/{slot.id}",
            seed_parts=(self._config.run.seed, "async", slot.id, task["task_id"]),
            group_size=self._config.rollout.group_size,
            temperature=self._config.policy.temperature,
            with_greedy=self._config.algorithm.advantage == "remax",
            case_seed=derive_seed(self._config.run.seed, "cases", slot.id),
        )
        self._background.start(slot.id, plans)

    def _exchange(self) -> None:
        """Exchange between processes which groups are finished, and what failed."""
        failure, size = self._background.failure(), self._config.rollout.group_size
        own = {
            slot: make_group(self._tasks[self._task_of[slot]], episodes, group_size=size)
            for slot, episodes in self._background.fetch().items()
        }
        # A sum of one number is cheap; episodes are sent only when there are any.
        is_stopped = self._processes.stop.is_noted
        if self._processes.sum(float(len(own) + (failure is not None) + is_stopped)) == 0.0:
            return
        sentence = None if failure is None else f"{type(failure).__name__}: {failure}"
        shares = self._processes.all_gather_object((own, sentence, is_stopped))
        if any(stopped for _, _, stopped in shares):
            self._processes.stop.leave()
        if failure is not None:
            raise failure
        for rank, (_, other, _) in enumerate(shares):
            if other is not None:
                raise EngineError(f"an episode of process {rank} failed with {other}")
        for slot, group in sorted((pair for share, _, _ in shares for pair in share.items()), key=lambda pair: pair[0]):
            self._finished[slot] = group
            self._staleness.finish(slot, is_trainable=is_trainable(group, self._config))

    def _make_batch(self, slots: Sequence[GroupSlot]) -> RolloutBatch:
        """The groups of these slots; the curriculum observes them."""
        groups = [self._finished.pop(slot.id) for slot in slots]
        for slot, group in zip(slots, groups, strict=True):
            _check_versions(slot, group)
        metrics = self._curriculum.observe(
            [self._task_of.pop(slot.id) for slot in slots], success_rates(require_scored(groups))
        )
        rollout = self._config.rollout
        if rollout.max_attempts > 1:
            num_attempts = math.ceil(len(groups) / rollout.groups_per_step)
            metrics |= {"rollout/num_attempts": float(num_attempts), "rollout/num_groups": float(len(groups))}
        trained = [group for group in groups if is_trainable(group, self._config)]
        return RolloutBatch(groups=groups, train_groups=trained, metrics=metrics)

    def _metrics(self, slots: Sequence[GroupSlot], batch: RolloutBatch) -> dict[str, float]:
        version = self._staleness.version
        staleness = [version - slot.version for slot in slots]
        num_late = self._staleness.num_dropped - self._num_late_reported
        self._num_late_reported = self._staleness.num_dropped
        return {
            "async/staleness_mean": fmean(staleness),
            "async/staleness_max": float(max(staleness)),
            "async/old_token_share": _old_token_share(batch.groups, version),
            "async/late_groups": float(num_late),
            "async/running_groups": float(len(self._staleness.running)),
            "async/buffered_groups": float(len(self._staleness.finished)),
        }

    def _drop(self, slots: Sequence[GroupSlot]) -> None:
        self._background.cancel(slot.id for slot in slots)
        for slot in slots:
            del self._task_of[slot.id]
            self._finished.pop(slot.id, None)


def make_rollout_source(
    config: Config,
    tasks: Sequence[Task],
    env_factory: EnvFactory,
    rollout: DistributedRollout,
    policy: BasePolicy,
    processes: Processes,
) -> RolloutSource:
    """The source that a configuration asks for, over its training tasks."""
    if config.rollout.max_staleness:
        tally = rollout.tally
        return AsyncSource(config, tasks, policy=policy, env_factory=env_factory, processes=processes, tally=tally)
    return SyncSource(config, tasks, rollout, env_factory.environments)


class BackgroundRollout:
    """Runs groups of episodes in threads while its owner does something else: `start`, later `fetch`, in one thread.

    Episodes start in the order of their groups.
    """

    def __init__(self, worker: RolloutWorker, *, num_workers: int) -> None:
        self._worker = worker
        self._executor = ThreadPoolExecutor(num_workers, thread_name_prefix="episode")
        self._groups: dict[int, tuple[threading.Event, list[Future[Trajectory]]]] = {}
        self._ending: list[Future[Trajectory]] = []
        self._has_news = threading.Event()

    def start(self, group: int, plans: Sequence[EpisodePlan]) -> None:
        """Run these episodes as soon as threads are free; `group` is their name in `fetch` and `cancel`."""
        cancelled = threading.Event()
        futures = [self._executor.submit(self._worker.run, plan, cancelled) for plan in plans]
        self._groups[group] = (cancelled, futures)
        for future in futures:
            future.add_done_callback(partial(self._on_done, futures))

    def _on_done(self, futures: Sequence[Future[Trajectory]], future: Future[Trajectory]) -> None:
        if _failure(future) is not None or all(other.done() for other in futures):
            self._has_news.set()

    def wait(self, timeout_s: float) -> None:
        """Wait until a group is finished, an episode failed or time is up."""
        self._has_news.wait(timeout_s)
        self._has_news.clear()

    def fetch(self) -> dict[int, list[Trajectory]]:
        """The finished groups, each once; a group with a failed episode never is finished."""
        finished = {
            group: [future.result() for future in futures]
            for group, (_, futures) in self._groups.items()
            if all(future.done() and _failure(future) is None for future in futures)
        }
        for group in finished:
            del self._groups[group]
        return finished

    def failure(self) -> BaseException | None:
        """The exception that the policy raised in one of the episodes."""
        futures = [future for _, futures in self._groups.values() for future in futures]
        return next((error for future in futures if (error := _failure(future)) is not None), None)

    def cancel(self, groups: Iterable[int]) -> None:
        """Cancel these groups: waiting episodes never start, others end at a token or turn."""
        self._ending = [future for future in self._ending if not future.done()]
        for group in self._groups.keys() & set(groups):
            cancelled, futures = self._groups.pop(group)
            cancelled.set()
            self._ending += futures

    def cancel_all(self, timeout_s: float) -> None:
        """Cancel all groups and wait up to `timeout_s` for their episodes to end."""
        self.cancel(self._groups)
        wait(self._ending, timeout_s)

    def close(self, timeout_s: float) -> None:
        """As `cancel_all`; nothing can be started afterwards."""
        self.cancel_all(timeout_s)
        self._executor.shutdown(wait=False)


def _failure(future: Future[Trajectory]) -> BaseException | None:
    return future.exception() if future.done() else None


def _completions(group: TrajectoryGroup) -> list[Completion]:
    return [turn.completion for episode in group.trajectories for turn in episode.turns]


def _check_versions(slot: GroupSlot, group: TrajectoryGroup) -> None:
    """The bound holds for tokens only if the inference engine had the weights of its group's slot."""
    for completion in _completions(group):
        if completion.weight_version < slot.version:
            raise EngineError(
                f"group {slot.id} was started after {slot.version} updates, but a completion of it was sampled by the "
                f"weights of {completion.weight_version}; the inference engine does not have the weights it was sent"
            )


def _old_token_share(groups: Sequence[TrajectoryGroup], version: int) -> float:
    """Share of the generated tokens that weights before `version` sampled; NaN without tokens."""
    num_old = num_tokens = 0
    for completion in (completion for group in groups for completion in _completions(group)):
        num_tokens += len(completion.token_ids)
        if completion.token_versions:
            num_old += sum(token_version < version for token_version in completion.token_versions)
        elif completion.weight_version < version:
            num_old += len(completion.token_ids)
    return num_old / num_tokens if num_tokens else math.nan
