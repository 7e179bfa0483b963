"""How a run reports what code of the user raised: a sentence on the terminal, the traceback in `errors.jsonl`.

Not here: what is an error (`failures.py`), whether it ends anything (`ending.py`). Nothing here ends a run.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from agent_rl.failures import FailedCall
from agent_rl.records import StopReason, Trajectory
from agent_rl.telemetry.error_file import ErrorFile

_CONSEQUENCE = {
    "tool": "the model read it as text",
    "agent": "env.options.failed_episodes decides what its episode is worth",
}
"""What became of it, by the first word of the source; what is not among them is told of with its episode."""


class FailureReport:
    """`report.episodes(3, episodes, say)` after the episodes of a step or of an evaluation; `say` shows a sentence."""

    def __init__(self, folder: Path) -> None:
        """Nothing is written before there is a failure."""
        self._file = ErrorFile(folder)
        self._is_known = False
        self._has_failed = False

    def episodes(self, step: int, episodes: Sequence[Trajectory], say: Callable[[str], None]) -> None:
        """Report the failures of these episodes: those that were dropped each time, the others once for each place."""
        new = self.write(step, [failed for episode in episodes for failed in episode.failures], say)
        dropped = [episode for episode in episodes if episode.stop_reason is StopReason.ENV_ERROR]
        sentences = []
        if dropped:
            sentences.append(
                f"step {step}: {len(dropped)} of {len(episodes)} episodes dropped by environment errors, first: "
                f"{dropped[0].error}"
            )
        for failed in new:
            if consequence := _CONSEQUENCE.get(failed.source.partition(" ")[0]):
                sentences.append(f"step {step}: the {failed.source} raised {failed.sentence}; {consequence}")
        if sentences and new and not self._is_known:
            self._is_known = True
            sentences[0] += f" (tracebacks: {self._file.path})"
        for sentence in sentences:
            say(sentence)

    def write(self, step: int, failed: Sequence[FailedCall], say: Callable[[str], None]) -> list[FailedCall]:
        """Count failures in `errors.jsonl`; those at places that were in no row. A full disk is told of once."""
        try:
            return self._file.add(step, failed)
        except OSError as error:
            if not self._has_failed:
                say(f"{self._file.path}: tracebacks cannot be written ({error.strerror}); training continues")
            self._has_failed = True
            return []

    def all_failed(self, step: int, failed: Sequence[FailedCall], say: Callable[[str], None]) -> None:
        """Write what ended a run."""
        self.write(step, failed, say)
        if any(each.traceback for each in failed) and not self._has_failed:
            say(f"The tracebacks are in {self._file.path}")
