"""What an episode remembers of its visible checks: what progress was paid, and how long a submission may be repaired.

Not here: the checks (`visible.py`), the verdict and its reward (`judge/`).
"""

from collections.abc import Callable, Mapping

from agent_rl.envs.nat.visible import VisibleChecks


class VisibleProgress:
    """The reward of progress: `weight` times the share of visible checks that pass, paid as it changes.

    What is paid adds up to the difference between the last and the first share, whatever happened in between, so that
    breaking and mending earns nothing (Ng et al. 1999).
    """

    def __init__(self, check: Callable[[], VisibleChecks], files: Mapping[str, str], *, weight: float) -> None:
        self._check, self._weight = check, weight
        self._files = dict(files)
        self._share = check().share if files else 0.0
        self.paid = 0.0

    def earned(self, files: Mapping[str, str]) -> float:
        """What the files have gained since the last time; nothing is run where they are the same."""
        if files == self._files:
            return 0.0
        self._files, before = dict(files), self._share
        self._share = self._check().share
        gained = self._weight * (self._share - before)
        self.paid += gained
        return gained


class RepairTurns:
    """Counts the turns after the first submission that fails the visible checks.

    `begin_turn` comes first in every turn; then either `takes` says whether a submission ends the episode, or `is_over`
    whether the turns are used up.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._left: int | None = None
        """Turns that may come after this one; None before the first report."""
        self._first_passed: bool | None = None

    def begin_turn(self) -> None:
        if self._left is not None:
            self._left -= 1

    @property
    def is_over(self) -> bool:
        return self._left == 0

    def takes(self, found: VisibleChecks) -> bool:
        """Whether a submission with these checks is the last."""
        if self._first_passed is None:
            self._first_passed = found.all_passed
        if found.all_passed or self.is_over:
            return True
        if self._left is None:
            self._left = self._most
        return False

    def told(self, report: str) -> str:
        """What a submission is answered that was not taken."""
        turns = "1 turn" if self._left == 1 else f"{self._left} turns"
        return f"not taken, {turns} left to repair it\n{report}"

    def parts(self, success: float) -> dict[str, float]:
        """For the logs: whether the first submission passed, and where it did not, whether it was mended."""
        if self._first_passed is None:
            return {}
        return {"first_check": float(self._first_passed)} | ({} if self._first_passed else {"mended": success})
