"""Groups that are played while the trainer updates, none of them more than `rollout.max_staleness` updates old.

Every process plays its share in background threads. What is started, learned from and dropped is decided by all of them
alike: in `collect`, at points where they tell each other which groups are over, each asks its own copy of one scheduler
(`staleness.py`) and of the curriculum. The threads talk to no other process. A group is drawn by the weights of its
version, its ticket's, and by later ones; seeds depend on the run's seed, the ticket, the task and the sample alone.
Not here: when a group may be started, how the policy changes weights in the middle of a completion.
"""

import math
import time
from collections.abc import Sequence
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
from agent_rl.records import Completion, TrajectoryGroup
from agent_rl.rollout.episode import EpisodeLimits
from agent_rl.rollout.staleness import StalenessManager, Ticket
from agent_rl.rollout.sync_source import RolloutBatch, is_wanted, success_rates
from agent_rl.rollout.workers import BackgroundPlayer, RolloutWorker, as_group, checked, plan_group
from agent_rl.telemetry.trajectory_json import decode_group, encode_group

POLL_S = 0.05
"""Longest time between two exchanges of a process that waits."""
SETTLE_S = 10.0
"""How long episodes that were given up may take to end before nobody waits for them any more."""


class AsyncGroupSource:
    """A `GroupSource` whose groups are under way when `collect` is called, and go on after it has returned.

    The curriculum is told of the groups that are taken. Of those that are dropped it hears nothing: most are still
    running, so there is no result, and their tasks have had their turn until the next epoch.
    """

    def __init__(
        self,
        config: Config,
        tasks: Sequence[Task],
        *,
        policy: BasePolicy,
        env_factory: EnvFactory,
        processes: Processes,
    ) -> None:
        self._config = config
        self._tasks = tasks
        self._processes = processes
        self._curriculum = make_curriculum(tasks, config.data.curriculum, seed=config.run.seed)
        self._staleness = self._new_admission()
        worker = RolloutWorker(policy, env_factory, limits=EpisodeLimits.from_config(config), seed=config.run.seed)
        self._player = BackgroundPlayer(worker, num_workers=config.rollout.async_workers)
        self._drawn: dict[int, int] = {}
        """Position of the task of each group that was started and not yet used, by ticket."""
        self._over: dict[int, TrajectoryGroup] = {}
        """Those of them that are over."""
        self._unplayed: list[Ticket] = []
        """Groups that ran when the checkpoint was saved."""
        self._num_late_reported = 0
        self._committed = self._snapshot()

    def _new_admission(self) -> StalenessManager:
        rollout = self._config.rollout
        return StalenessManager(
            groups_per_step=rollout.groups_per_step,
            max_staleness=rollout.max_staleness,
            max_attempts=rollout.max_attempts,
        )

    def collect(self, *, step: int) -> RolloutBatch:
        """The oldest groups that are over and fresh enough for `step` (the first is 1), waiting until there are enough.

        That is `groups_per_step` groups to train on, or fewer when `max_attempts` times as many were played. The
        policy's weights are those of `step - 1` updates. Raises, on all processes, what the policy raised in an
        episode (on other processes as EngineError), SandboxError when no episode could be scored, and EngineError
        when a token was drawn by weights that are older than its group.
        """
        release_openmp_threads()
        self._drop(self._staleness.move_to(step - 1))
        for ticket in self._unplayed:
            if ticket.id in self._drawn:
                self._play(ticket)
        self._unplayed = []
        wait_s = 0.0
        self._exchange()
        while (tickets := self._staleness.take()) is None:
            self._start(step)
            started = time.perf_counter()
            self._player.wait(POLL_S)
            self._exchange()
            wait_s += time.perf_counter() - started
        drawn = self._hand_over(tickets)
        if step < self._config.train.steps:
            self._start(step)
        else:  # nobody would use them, and the last evaluation needs what draws
            unused = self._staleness.running
            self._staleness.give_up(unused)
            self._num_late_reported += len(unused)
            self._drop(unused)
        return RolloutBatch(
            played=drawn.played,
            kept=drawn.kept,
            metrics=drawn.metrics | self._metrics(tickets, drawn) | {"async/wait_s": wait_s},
        )

    def commit(self) -> None:
        """The groups drawn last were learned from; what is too old now is given up."""
        self._drop(self._staleness.move_to(self._staleness.version + 1))
        self._committed = self._snapshot()

    def rewind(self, step: int) -> None:
        """The weights are about to go back to those after `step` updates: groups of the later ones are given up.

        The tasks that come next stay the next ones.
        """
        self._player.cancel_all(SETTLE_S)
        self._staleness.rewind(step)
        self._drawn, self._over, self._unplayed = {}, {}, []
        self._num_late_reported = self._staleness.num_dropped
        self._committed = self._snapshot()

    def close(self) -> None:
        """Give up everything that is under way; to be called before the policy is closed."""
        self._player.close(SETTLE_S)

    def state_dict(self) -> dict[str, Any]:
        """As of the last commit, the same on all processes: curriculum, books, the groups that are over.

        A group that was running, as far as all processes knew, is kept as its task alone.
        """
        groups = {ticket: encode_group(group) for ticket, group in self._committed["groups"].items()}
        return self._committed | {"groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`; what is under way here is given up. CheckpointError when it is of other tasks.

        Groups that were over are as they were. Those that ran are played from their start, by the weights of now and
        as groups of this version, when `collect` is called next. Of a synchronous run's state there is only the
        curriculum.
        """
        self._player.cancel_all(SETTLE_S)
        self._curriculum.load_state_dict(state.get("curriculum", state))
        self._staleness = self._new_admission()
        self._drawn, self._over, self._unplayed = {}, {}, []
        if "staleness" in state:
            self._staleness.load_state_dict(state["staleness"])
            self._drawn = dict(state["drawn"])
            self._over = {ticket: decode_group(text) for ticket, text in state["groups"].items()}
            self._unplayed = self._staleness.restart()
        self._num_late_reported = self._staleness.num_dropped
        self._committed = self._snapshot()

    def _snapshot(self) -> dict[str, Any]:
        return {
            "curriculum": self._curriculum.state_dict(),
            "staleness": self._staleness.state_dict(),
            "drawn": dict(self._drawn),
            "groups": dict(self._over),
        }

    def _start(self, step: int) -> None:
        """Draw tasks and start groups while there is room."""
        for index in self._curriculum.next(self._staleness.room, step=step):
            ticket = self._staleness.start()
            self._drawn[ticket.id] = index
            self._play(ticket)

    def _play(self, ticket: Ticket) -> None:
        """Begin the episodes of a group, if it is this process's."""
        if ticket.id % self._processes.num_processes != self._processes.rank:
            return
        task = self._tasks[self._drawn[ticket.id]]
        plans = plan_group(
            task,
            group_id=f"async/{ticket.id}",
            seed_parts=(self._config.run.seed, "async", ticket.id, task["task_id"]),
            group_size=self._config.rollout.group_size,
            temperature=self._config.policy.temperature,
            with_greedy=self._config.algorithm.advantage == "remax",
        )
        self._player.start(ticket.id, plans)

    def _exchange(self) -> None:
        """Tell each other which groups are over, and what failed."""
        failure, size = self._player.failure(), self._config.rollout.group_size
        mine = {
            ticket: as_group(self._tasks[self._drawn[ticket]], episodes, group_size=size)
            for ticket, episodes in self._player.fetch().items()
        }
        # A sum of one number is cheap; episodes are sent only when there are any.
        if self._processes.sum(float(len(mine) + (failure is not None))) == 0.0:
            return
        sentence = None if failure is None else f"{type(failure).__name__}: {failure}"
        shares = self._processes.all_gather_object((mine, sentence))
        if failure is not None:
            raise failure
        for rank, (_, other) in enumerate(shares):
            if other is not None:
                raise EngineError(f"an episode of process {rank} failed with {other}")
        for ticket, group in sorted((pair for share, _ in shares for pair in share.items()), key=lambda pair: pair[0]):
            self._over[ticket] = group
            self._staleness.finish(ticket, has_variance=is_wanted(group, self._config))

    def _hand_over(self, tickets: Sequence[Ticket]) -> RolloutBatch:
        """The groups of these tickets, looked over, and what the curriculum says of them."""
        played = [self._over.pop(ticket.id) for ticket in tickets]
        for ticket, group in zip(tickets, played, strict=True):
            _check_versions(ticket, group)
        metrics = self._curriculum.observe(
            [self._drawn.pop(ticket.id) for ticket in tickets], success_rates(checked(played))
        )
        rollout = self._config.rollout
        if rollout.max_attempts > 1:
            num_attempts = math.ceil(len(played) / rollout.groups_per_step)
            metrics |= {"rollout/num_attempts": float(num_attempts), "rollout/num_groups_played": float(len(played))}
        return RolloutBatch(
            played=played, kept=[group for group in played if is_wanted(group, self._config)], metrics=metrics
        )

    def _metrics(self, tickets: Sequence[Ticket], drawn: RolloutBatch) -> dict[str, float]:
        version = self._staleness.version
        staleness = [version - ticket.version for ticket in tickets]
        num_late = self._staleness.num_dropped - self._num_late_reported
        self._num_late_reported = self._staleness.num_dropped
        return {
            "async/staleness_mean": fmean(staleness),
            "async/staleness_max": float(max(staleness)),
            "async/old_token_share": _old_token_share(drawn.played, version),
            "async/late_groups": float(num_late),
            "async/running_groups": float(len(self._staleness.running)),
            "async/buffered_groups": float(len(self._staleness.finished)),
        }

    def _drop(self, tickets: Sequence[Ticket]) -> None:
        self._player.cancel(ticket.id for ticket in tickets)
        for ticket in tickets:
            del self._drawn[ticket.id]
            self._over.pop(ticket.id, None)


def _completions(group: TrajectoryGroup) -> list[Completion]:
    return [turn.completion for episode in group.trajectories for turn in episode.turns]


def _check_versions(ticket: Ticket, group: TrajectoryGroup) -> None:
    """The bound holds for tokens only if the sampler had the weights that its group's ticket says."""
    for completion in _completions(group):
        if completion.weight_version < ticket.version:
            raise EngineError(
                f"group {ticket.id} was started after {ticket.version} updates, but a completion of it was drawn by "
                f"the weights of {completion.weight_version}; the sampler does not have the weights it was sent"
            )


def _old_token_share(groups: Sequence[TrajectoryGroup], version: int) -> float:
    """Share of the drawn tokens that weights of before `version` drew; NaN where there is none."""
    num_old = num_drawn = 0
    for completion in (completion for group in groups for completion in _completions(group)):
        num_drawn += len(completion.token_ids)
        if completion.token_versions:
            num_old += sum(drawn_by < version for drawn_by in completion.token_versions)
        elif completion.weight_version < version:
            num_old += len(completion.token_ids)
    return num_old / num_drawn if num_drawn else math.nan
