"""Which groups may be started, learned from or dropped, so that nothing that is learned from is too old.

The *version* is the number of steps learned from. A group's version is that of the policy when it was started, so no
token of it is older; learned from at version v, its staleness is v minus its version, and never above `max_staleness`.
With k for that, at most k + 1 steps' worth of groups are started and not yet used, as in AReaL (arXiv 2505.24298):
more could not be fresh when their turn comes. A group that is late all the same, because its episodes were long, is
dropped. Not here: threads, clocks, tasks, episodes; the asynchronous source and `benchmarks/async_simulation.py` drive
the same object.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class Ticket:
    """A group that was started: `Ticket(version=3, id=41)`. The least of several is the oldest."""

    version: int
    """Updates made when it was started."""
    id: int
    """Counts the groups of a run from 0."""


class StalenessManager:
    """`start` while there is `room`, `finish`, `take` a step's groups, learn from them, `move_to` the next version.

    Steps are decided by the calls alone: two objects that are told the same answer the same.
    """

    def __init__(self, *, groups_per_step: int, max_staleness: int, max_attempts: int = 1) -> None:
        """`max_attempts` times `groups_per_step` groups at most are taken for a step."""
        self.version = 0
        """Updates made."""
        self.num_started = self.num_finished = self.num_used = self.num_dropped = 0
        """Groups since the run began; the dropped were late, or under way when the weights went back."""
        self._groups_per_step = groups_per_step
        self._max_staleness = max_staleness
        self._max_attempts = max_attempts
        self._running: dict[int, Ticket] = {}
        self._finished: dict[int, Ticket] = {}
        self._without_signal: set[int] = set()
        self._is_taken = False

    @property
    def running(self) -> list[Ticket]:
        """Groups whose episodes are being played, the oldest first."""
        return sorted(self._running.values())

    @property
    def finished(self) -> list[Ticket]:
        """Groups that wait to be taken, the oldest first."""
        return sorted(self._finished.values())

    @property
    def room(self) -> int:
        """Groups that may be started now.

        One without signal takes nobody's turn, but there are never more of them than the attempts of a step.
        """
        num_steps = self._max_staleness + (0 if self._is_taken else 1)
        num_under_way = len(self._running) + len(self._finished)
        turns = num_steps * self._groups_per_step - num_under_way + len(self._without_signal)
        attempts = (num_steps - 1 + self._max_attempts) * self._groups_per_step - num_under_way
        return max(0, min(turns, attempts))

    def start(self) -> Ticket:
        """A ticket for a group that is started now. Raises ValueError when there is no room."""
        if not self.room:
            raise ValueError(f"{len(self._running) + len(self._finished)} groups are under way; there is no room")
        ticket = Ticket(self.version, self.num_started)
        self._running[ticket.id] = ticket
        self.num_started += 1
        return ticket

    def finish(self, ticket_id: int, *, has_variance: bool = True) -> None:
        """All episodes of a running group are over; without signal it is taken, but fills no place in a step."""
        self._finished[ticket_id] = self._running.pop(ticket_id)
        self.num_finished += 1
        if not has_variance:
            self._without_signal.add(ticket_id)

    def take(self) -> list[Ticket] | None:
        """The groups of the step at this version, the oldest first; None while more have to finish.

        That is `groups_per_step` groups with signal and those without that finished meanwhile, or what there is when
        the attempts are used up. Raises ValueError when this version's groups were taken already.
        """
        if self._is_taken:
            raise ValueError(f"the groups of version {self.version} were taken; move on to the next")
        most = self._groups_per_step * self._max_attempts
        if len(self._finished) < self._groups_per_step:
            return None
        by_age = self.finished
        useful = [ticket for ticket in by_age if ticket.id not in self._without_signal][: self._groups_per_step]
        others = [ticket for ticket in by_age if ticket.id in self._without_signal][: most - len(useful)]
        if len(useful) < self._groups_per_step and len(useful) + len(others) < most:
            return None
        self._is_taken = True
        self.num_used += len(useful) + len(others)
        return self._forget(sorted(useful + others))

    def move_to(self, version: int) -> list[Ticket]:
        """`version` updates were made; returns the groups dropped as late, finished or still running.

        Groups that were taken and not learned from do not come back. Raises ValueError when `version` is a lower one.
        """
        if version < self.version:
            raise ValueError(f"the version went from {self.version} back to {version}; use rewind")
        self.version, self._is_taken = version, False
        oldest = version - self._max_staleness
        late = self._forget([t for t in self.running + self.finished if t.version < oldest])
        self.num_dropped += len(late)
        return late

    def give_up(self, tickets: list[Ticket]) -> None:
        """Nobody will use these."""
        self.num_dropped += len(self._forget(tickets))

    def rewind(self, version: int) -> None:
        """The weights went back to an earlier version: drop all groups."""
        self.give_up(self.running + self.finished)
        self.version, self._is_taken = version, False

    def restart(self) -> list[Ticket]:
        """All running groups are played again from their start: they are of this version now. The oldest first."""
        self._running = {ticket.id: Ticket(self.version, ticket.id) for ticket in self.running}
        return self.running

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the coming answers, as plain values."""
        return {
            "version": self.version,
            "is_taken": self._is_taken,
            "counts": [self.num_started, self.num_finished, self.num_used, self.num_dropped],
            "running": [[t.version, t.id] for t in self.running],
            "finished": [[t.version, t.id] for t in self.finished],
            "without_signal": sorted(self._without_signal),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken; the bound and the number of groups are those of this object."""
        self.version, self._is_taken = state["version"], state["is_taken"]
        self.num_started, self.num_finished, self.num_used, self.num_dropped = state["counts"]
        self._running = {id_: Ticket(version, id_) for version, id_ in state["running"]}
        self._finished = {id_: Ticket(version, id_) for version, id_ in state["finished"]}
        self._without_signal = set(state["without_signal"])

    def _forget(self, tickets: list[Ticket]) -> list[Ticket]:
        for ticket in tickets:
            self._running.pop(ticket.id, None)
            self._finished.pop(ticket.id, None)
            self._without_signal.discard(ticket.id)
        return tickets
