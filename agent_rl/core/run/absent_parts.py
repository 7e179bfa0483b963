"""Tells of weights of reward parts that no episode reports, which may be misspelt names.

They end nothing: in a correct run a part may come late, as that of another environment or of what is rarely earned.
Not here: what a part is worth (`learning/samples.py`).
"""

from collections.abc import Sequence

from agent_rl.config import Config
from agent_rl.errors import nearest_or_all
from agent_rl.records import StopReason, TrajectoryGroup


class AbsentParts:
    """`absent_parts.sentences(1, groups)` is what to tell after a step: at the first, then at every doubling of them.

    Steps are those of this start of the run in which an episode came to its own end.
    """

    def __init__(self, config: Config) -> None:
        self._absent = [name for name, weight in config.algorithm.part_weights.items() if weight]
        self._reported: set[str] = set()
        self._num_steps = 0

    def sentences(self, step: int, groups: Sequence[TrajectoryGroup]) -> list[str]:
        """One for each weighted part that no episode has reported so far."""
        episodes = [episode for group in groups for episode in group.trajectories]
        self._reported.update(name for episode in episodes for name in episode.reward_parts)
        self._absent = [name for name in self._absent if name not in self._reported]
        if not any(episode.stop_reason is StopReason.FINISHED for episode in episodes):
            return []
        self._num_steps += 1
        if self._num_steps & (self._num_steps - 1):  # no power of two
            return []
        since = "" if self._num_steps == 1 else f" for {self._num_steps} steps"
        known = sorted(self._reported)
        return [
            f"step {step}: no episode has the reward part {name!r} of algorithm.part_weights{since}, which counts 0"
            f"{nearest_or_all(name, known) if known else '; they report none'}"
            for name in self._absent
        ]
