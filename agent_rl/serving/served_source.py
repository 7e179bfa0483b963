"""A source of groups for the trainer that waits for a client to play and score them.

An update is asked for with its groups, and known by its number, that of the step. Not here: HTTP, trajectories.
"""

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from agent_rl.config import Config
from agent_rl.distributed.processes import Processes
from agent_rl.endpoint.errors import EndpointError
from agent_rl.rollout.outcomes import is_trainable
from agent_rl.rollout.rollout import RolloutBatch, require_scored
from agent_rl.serving.groups import ReadGroups

WAIT_S = 5.0
"""Between two exchanges of processes that wait for groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStatus:
    """One update, as clients see it."""

    update: int
    state: Literal["running", "completed", "failed"]
    weight_version: int
    metrics: Mapping[str, float]
    error: str | None = None


class ServedSource:
    """A `RolloutSource`: `ask` from the server's threads, `collect` in the trainer's."""

    def __init__(self, config: Config, processes: Processes, *, on_done: Callable[[], None]) -> None:
        """`on_done` is called once new weights may be sampled from, after every update."""
        self._config = config
        self._processes = processes
        self._on_done = on_done
        self._asked: queue.Queue[ReadGroups] = queue.Queue()
        self._lock = threading.Lock()
        self._status: UpdateStatus | None = None
        self._is_begun = False
        """Whether the trainer has taken the groups of the running update, which may come before it asks for them."""
        self._num_done = 0
        self.last_metrics: Callable[[], Mapping[str, float]] = dict
        """Gives the metrics of the last step; set once there is a trainer."""

    def begin_at(self, step: int) -> None:
        """The steps that a resumed run has done."""
        self._num_done = step

    @property
    def num_done(self) -> int:
        """Updates so far."""
        return self._num_done

    @property
    def next_step(self) -> int:
        """The step that the next groups are for."""
        return self._num_done + 1

    @property
    def status(self) -> UpdateStatus | None:
        """The last update; None before there is one."""
        with self._lock:
            return self._status

    def ask(self, groups: ReadGroups) -> int:
        """Hand over the groups of the next update; its number. EndpointError after the last one."""
        with self._lock:
            self._check_free()
            self._status = UpdateStatus(
                update=self.next_step, state="running", weight_version=self._num_done, metrics={}
            )
            self._asked.put(groups)
            return self._status.update

    def check_free(self) -> None:
        """EndpointError while an update is running and after the last one."""
        with self._lock:
            self._check_free()

    def _check_free(self) -> None:
        if self._status is not None and self._status.state != "completed":
            raise EndpointError(409, "update_running", f"update {self._status.update} is {self._status.state}")
        if self.next_step > self._config.train.steps:
            raise EndpointError(
                409, "training_finished", f"all {self._config.train.steps} updates of train.steps are done"
            )

    def collect(self, *, step: int) -> RolloutBatch:
        """The next groups that a client asks to train on; waits for them, however long."""
        self.finish()
        self._num_done = step - 1
        while True:
            self._processes.leave_if_stopped()
            read = self._processes.broadcast_object(self._wait() if self._processes.is_main_process else None)
            if read is not None:
                break
        with self._lock:
            self._is_begun = True
        groups = require_scored(list(read.groups))
        trained = [group for group in groups if is_trainable(group, self._config)]
        metrics = {"rollout/id_mismatches": float(read.num_mismatches), "rollout/num_groups": float(len(groups))}
        return RolloutBatch(groups=groups, train_groups=trained, metrics=metrics)

    def _wait(self) -> ReadGroups | None:
        try:
            return self._asked.get(timeout=WAIT_S)
        except queue.Empty:
            return None

    def commit(self) -> None:
        with self._lock:
            self._num_done += 1

    def finish(self) -> None:
        """The step of the running update is whole: its metrics are known, and what it led to is served.

        As a rule its own weights; after a rollback those of an earlier step.
        """
        with self._lock:
            if self._status is None or self._status.state != "running" or not self._is_begun:
                return
            self._is_begun = False
        self._on_done()  # first, else it would end the pause of the next update, which may be asked for from then on
        with self._lock:
            self._status = replace(
                self._status, state="completed", weight_version=self._num_done, metrics=dict(self.last_metrics())
            )

    def fail(self, error: str) -> bool:
        """The run ends by this error; whether an update was running, whose client has to be told."""
        with self._lock:
            if self._status is None or self._status.state != "running":
                return False
            self._status = replace(self._status, state="failed", error=error)
            return True

    def state_dict(self) -> dict[str, Any]:
        """Nothing: clients choose the tasks."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return None

    def rewind(self, step: int) -> None:
        with self._lock:
            self._num_done = step

    def close(self) -> None:
        return None
