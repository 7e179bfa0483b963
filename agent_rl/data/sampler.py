"""The order in which tasks are trained on: epochs of seeded permutations, resumable after any call.

Knows only how many tasks there are, not what they hold.
"""

import random
from typing import Any

from agent_rl.errors import CheckpointError


class TaskSampler:
    """Samples task indices: every epoch visits each task once, in an order that depends on (seed, epoch) alone.

    No `n <= num_tasks` samples hold a task twice. When they reach into the next epoch and meet a task already held,
    that task keeps its place at the front of the queue for the next sample.
    """

    def __init__(self, num_tasks: int, *, seed: int, shuffle: bool = True) -> None:
        if num_tasks < 1:
            raise ValueError(f"num_tasks is {num_tasks}; a sampler needs at least one task")
        self._identity = {"num_tasks": num_tasks, "seed": seed, "shuffle": shuffle}
        self._num_epochs_started = 0
        self._remaining: list[int] = []

    def next(self, n: int) -> list[int]:
        """The next `n` task indices."""
        sampled: list[int] = []
        seen: set[int] = set()
        for _ in range(n):
            if not self._remaining:
                self._remaining = self._permutation(self._num_epochs_started)
                self._num_epochs_started += 1
            position = next((i for i, task in enumerate(self._remaining) if task not in seen), 0)
            task = self._remaining.pop(position)
            sampled.append(task)
            seen.add(task)
        return sampled

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next samples, as plain JSON values."""
        return {
            **self._identity,
            "num_epochs_started": self._num_epochs_started,
            "remaining": list(self._remaining),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken. Raises CheckpointError for no such state, and one of another dataset, seed
        or order."""
        for key in self.state_dict():
            if key not in state:
                raise CheckpointError(
                    f"the state of the task order has no {key!r}; give what state_dict returned, or start a new run"
                )
        for key, ours in self._identity.items():
            if state[key] != ours:
                raise CheckpointError(
                    f"the checkpoint's task order has {key} {state[key]}, this run has {ours}; "
                    "resume with the same data and seed, or start a new run"
                )
        self._num_epochs_started = state["num_epochs_started"]
        self._remaining = list(state["remaining"])

    def _permutation(self, epoch: int) -> list[int]:
        order = list(range(self._identity["num_tasks"]))
        if self._identity["shuffle"]:
            # A string seed is hashed with SHA-512, so neighbouring (seed, epoch) pairs give unrelated orders.
            random.Random(f"{self._identity['seed']}:{epoch}").shuffle(order)
        return order
