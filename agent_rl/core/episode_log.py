"""The episodes that a run writes for people to read: transcripts of each step, all tokens of some steps.

A disk that refuses them does not end a run. Not here: what is in the files (`telemetry/trajectory_json.py`).
Nothing here changes what is trained.
"""

from collections.abc import Callable, Sequence

from agent_rl.agent.chat_format import ChatFormat
from agent_rl.config import Config
from agent_rl.core.run_folder import RunFolder
from agent_rl.data.tasks import Task
from agent_rl.learning.update import UpdateResult
from agent_rl.records import LoggedSample, TrajectoryGroup
from agent_rl.telemetry.episode_files import write_token_samples, write_transcripts
from agent_rl.telemetry.trajectory_json import task_labels

Report = Callable[[str], None]
"""Shows a sentence to the user."""


class EpisodeLog:
    """Writes `transcripts/step_*.jsonl` and `samples/step_*.jsonl.gz`; of several processes only the main one does."""

    def __init__(
        self, config: Config, run: RunFolder, tasks: Sequence[Task], chat_format: ChatFormat, *, is_main: bool
    ) -> None:
        self._is_main = is_main
        self._config = config
        self._run = run
        self._tasks = tasks
        self._chat_format = chat_format
        self._has_failed = False

    def is_due(self, step: int) -> bool:
        """Whether the samples of a step are written: the first step of a run is 1; it and the last one always are."""
        every = self._config.log.samples_every
        return bool(every) and (step in (1, self._config.train.steps) or step % every == 0)

    def write(self, step: int, groups: Sequence[TrajectoryGroup], update: UpdateResult, *, report: Report) -> None:
        """Write what is due of a step's episodes, of groups that were not trained on too; `update` is of that step.

        `report` is called, once in a run, when the disk refuses a file.
        """
        path, per_step = self._run.transcript_file(step), self._config.log.transcripts_per_step
        self._try(step, lambda: write_transcripts(path, groups, per_step=per_step, step=step), report)
        if self.is_due(step):
            self.write_samples(step, groups, update, report=report)

    def write_samples(
        self, step: int, groups: Sequence[TrajectoryGroup], update: UpdateResult, *, report: Report
    ) -> None:
        """Write all tokens of a step, due or not; nothing with `log.samples_every` 0."""
        if self._config.log.samples_every:
            self._try(step, lambda: self._write_samples(step, groups, update.samples), report)

    def _write_samples(self, step: int, groups: Sequence[TrajectoryGroup], samples: Sequence[LoggedSample]) -> None:
        task_ids = {group.task_id for group in groups}
        write_token_samples(
            self._run.samples_file(step),
            groups,
            samples,
            step=step,
            labels={task["task_id"]: task_labels(task) for task in self._tasks if task["task_id"] in task_ids},
            token_texts=self._chat_format.token_texts,
        )

    def _try(self, step: int, write: Callable[[], None], report: Report) -> None:
        if not self._is_main:
            return
        try:
            write()
        except OSError as error:
            if not self._has_failed:
                report(
                    f"{self._run.path}: episodes of step {step} cannot be written ({error.strerror}); "
                    "training continues, make room for those of later steps"
                )
            self._has_failed = True
