"""The staleness manager: which groups may be started, trained on or dropped, so that no trained token is too old.

The *version* is the number of updates. A group's version is that of the policy when it was started, so no
token of it is older; trained on at version v, its staleness is v minus its version, and never above `max_staleness`.
With k for that, at most k + 1 steps' worth of groups are started and not yet trained on, as in AReaL
(arXiv 2505.24298): more could not be fresh when their turn comes. A group that is late all the same, because its
episodes were long, is dropped. Not here: threads, clocks, tasks, episodes; the asynchronous source and
`benchmarks/async_simulation.py` drive the same object.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class GroupSlot:
    """A group that was started: `GroupSlot(version=3, id=41)`. The least of several is the oldest."""

    version: int
    """Updates made when it was started."""
    id: int
    """Counts the groups of a run from 0."""


class StalenessManager:
    """`start` while `num_free`, `finish`, `pop_batch` a step's groups, train on them, `advance_to` the next version.

    Decisions depend on the calls alone: two objects with the same calls answer the same.
    """

    def __init__(self, *, groups_per_step: int, max_staleness: int, max_attempts: int = 1) -> None:
        """A step has at most `max_attempts` times `groups_per_step` groups."""
        self.version = 0
        """Number of updates."""
        self.num_started = self.num_finished = self.num_used = self.num_dropped = 0
        """Groups since the run began; the dropped ones were late, or running when the weights went back."""
        self._groups_per_step = groups_per_step
        self._max_staleness = max_staleness
        self._max_attempts = max_attempts
        self._running: dict[int, GroupSlot] = {}
        self._finished: dict[int, GroupSlot] = {}
        self._zero_variance: set[int] = set()
        self._is_popped = False

    @property
    def running(self) -> list[GroupSlot]:
        """Groups whose episodes are running, the oldest first."""
        return sorted(self._running.values())

    @property
    def finished(self) -> list[GroupSlot]:
        """Finished groups of later batches, the oldest first."""
        return sorted(self._finished.values())

    @property
    def num_free(self) -> int:
        """Groups that may be started now.

        A zero-variance group fills no place of a step, but a step never has more of them than its attempts.
        """
        num_steps = self._max_staleness + (0 if self._is_popped else 1)
        num_started = len(self._running) + len(self._finished)
        places = num_steps * self._groups_per_step - num_started + len(self._zero_variance)
        attempts = (num_steps - 1 + self._max_attempts) * self._groups_per_step - num_started
        return max(0, min(places, attempts))

    def start(self) -> GroupSlot:
        """A slot for a group that is started now. Raises ValueError when none is free."""
        if not self.num_free:
            raise ValueError(f"{len(self._running) + len(self._finished)} groups are started; no slot is free")
        slot = GroupSlot(self.version, self.num_started)
        self._running[slot.id] = slot
        self.num_started += 1
        return slot

    def finish(self, slot_id: int, *, is_trainable: bool = True) -> None:
        """All episodes of a running group ended; a zero-variance group joins a batch but fills no place of it."""
        self._finished[slot_id] = self._running.pop(slot_id)
        self.num_finished += 1
        if not is_trainable:
            self._zero_variance.add(slot_id)

    def pop_batch(self) -> list[GroupSlot] | None:
        """The groups of the step at this version, the oldest first; None while more have to finish.

        That is `groups_per_step` trainable groups and the zero-variance groups that finished meanwhile, or fewer when
        the attempts are used up. Raises ValueError when this version's batch was popped already.
        """
        if self._is_popped:
            raise ValueError(f"the batch of version {self.version} was popped; advance to the next version")
        most = self._groups_per_step * self._max_attempts
        if len(self._finished) < self._groups_per_step:
            return None
        by_age = self.finished
        trainable = [slot for slot in by_age if slot.id not in self._zero_variance][: self._groups_per_step]
        others = [slot for slot in by_age if slot.id in self._zero_variance][: most - len(trainable)]
        if len(trainable) < self._groups_per_step and len(trainable) + len(others) < most:
            return None
        self._is_popped = True
        self.num_used += len(trainable) + len(others)
        return self._forget(sorted(trainable + others))

    def advance_to(self, version: int) -> list[GroupSlot]:
        """Set the number of updates; returns the groups dropped as late, finished or still running.

        Groups that were popped and not trained on do not come back. Raises ValueError when `version` is a lower one.
        """
        if version < self.version:
            raise ValueError(f"the version went from {self.version} back to {version}; use rewind")
        self.version, self._is_popped = version, False
        oldest = version - self._max_staleness
        late = self._forget([t for t in self.running + self.finished if t.version < oldest])
        self.num_dropped += len(late)
        return late

    def drop(self, slots: list[GroupSlot]) -> None:
        """Remove groups that will not be trained on."""
        self.num_dropped += len(self._forget(slots))

    def rewind(self, version: int) -> None:
        """The weights went back to an earlier version: drop all groups."""
        self.drop(self.running + self.finished)
        self.version, self._is_popped = version, False

    def restart(self) -> list[GroupSlot]:
        """All running groups start again and are of this version now. The oldest first."""
        self._running = {slot.id: GroupSlot(self.version, slot.id) for slot in self.running}
        return self.running

    def state_dict(self) -> dict[str, Any]:
        """Everything that later decisions depend on, as plain values."""
        return {
            "version": self.version,
            "is_popped": self._is_popped,
            "counts": [self.num_started, self.num_finished, self.num_used, self.num_dropped],
            "running": [[t.version, t.id] for t in self.running],
            "finished": [[t.version, t.id] for t in self.finished],
            "zero_variance": sorted(self._zero_variance),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`; the bound and the number of groups are those of this object."""
        self.version, self._is_popped = state["version"], state["is_popped"]
        self.num_started, self.num_finished, self.num_used, self.num_dropped = state["counts"]
        self._running = {id_: GroupSlot(version, id_) for version, id_ in state["running"]}
        self._finished = {id_: GroupSlot(version, id_) for version, id_ in state["finished"]}
        self._zero_variance = set(state["zero_variance"])

    def _forget(self, slots: list[GroupSlot]) -> list[GroupSlot]:
        for slot in slots:
            self._running.pop(slot.id, None)
            self._finished.pop(slot.id, None)
            self._zero_variance.discard(slot.id)
        return slots
