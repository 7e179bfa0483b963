"""Count the checks behind one point of a report, with the problems in words."""

from agent_rl.envs.nat.judge.report import Point, Stage, point

_NUM_SHOWN = 3


class CheckCounter:
    """Checks of one point: `counter.check(x > 0, "x is not positive")`, then `counter.share("all are positive")`."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage: Stage = stage
        self._name = name
        self.num_checks = 0
        self.problems: list[str] = []

    def check(self, holds: bool, problem: str) -> bool:
        """Count one check and return whether it holds."""
        self.num_checks += 1
        if not holds:
            self.problems.append(problem)
        return holds

    def share(self, good: str) -> Point:
        """The share of checks that hold; 0 when there was nothing to check."""
        score = 1.0 - len(self.problems) / self.num_checks if self.num_checks else 0.0
        return point(self._stage, self._name, score, self._evidence(good))

    def verdict(self, good: str) -> Point:
        """1 when every check holds and there was one, else 0: for what cannot be made up for by more of the good."""
        return point(self._stage, self._name, bool(self.num_checks) and not self.problems, self._evidence(good))

    def _evidence(self, good: str) -> str:
        if not self.num_checks:
            return "there is nothing to check"
        shown = "; ".join(self.problems[:_NUM_SHOWN])
        rest = len(self.problems) - _NUM_SHOWN
        return f"{shown} and {rest} more" if rest > 0 else shown or good
