"""Which steps of a run are kept with every token (`log.samples_every`), and what an update tells about them.

Not here: the file (`telemetry/token_samples.py`). Nothing here changes what is trained.
"""

from collections.abc import Callable, Sequence

from agent_rl.agent.chat_format import ChatFormat
from agent_rl.config import Config
from agent_rl.core.run_folder import RunFolder
from agent_rl.data.tasks import Task
from agent_rl.records import LearnedSample, TrajectoryGroup
from agent_rl.telemetry.token_samples import write_token_samples
from agent_rl.telemetry.transcripts import task_labels

Observer = Callable[[list[LearnedSample]], None]
"""Is told what an update learned from."""


class TokenSamples:
    """Writes `samples/step_*.jsonl.gz` of a run; of several processes only on the main one."""

    def __init__(
        self, config: Config, run: RunFolder, tasks: Sequence[Task], chat_format: ChatFormat, *, is_main: bool
    ) -> None:
        self._every = config.log.samples_every if is_main else 0
        self._last_step = config.train.steps
        self._run = run
        self._tasks = tasks
        self._chat_format = chat_format
        self._learned: list[LearnedSample] = []

    def is_due(self, step: int) -> bool:
        """The first step of a run is 1; it and the last one are always kept."""
        return bool(self._every) and (step in (1, self._last_step) or step % self._every == 0)

    def observer(self, step: int) -> Observer | None:
        """What the update of `step` is to call; None where nobody wants to know."""
        return self._note if self.is_due(step) else None

    def write(self, step: int, groups: Sequence[TrajectoryGroup]) -> None:
        """Keep the episodes of a step, those too that were not learned from, if the step is due."""
        if not self.is_due(step):
            return
        played = {group.task_id for group in groups}
        write_token_samples(
            self._run.samples_file(step),
            groups,
            self._learned,
            step=step,
            labels={task["task_id"]: task_labels(task) for task in self._tasks if task["task_id"] in played},
            token_texts=self._chat_format.token_texts,
        )
        self._learned = []

    def _note(self, learned: list[LearnedSample]) -> None:
        self._learned = learned
