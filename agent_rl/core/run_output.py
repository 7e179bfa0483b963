"""What a run writes and shows while it trains: metrics, trackers, the console.

Of several processes only the main one does; the others call the same methods. Not here: what is measured, episodes
(`episode_log.py`), evaluations' files and checkpoints.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from agent_rl.config import Config
from agent_rl.core.run.absent_parts import AbsentParts
from agent_rl.core.run.failures import FailureReport
from agent_rl.core.run.no_signal import NoSignal
from agent_rl.core.run_folder import Begun, RunFolder
from agent_rl.failures import FailedCall
from agent_rl.records import Trajectory, TrajectoryGroup
from agent_rl.redacted import redacted
from agent_rl.telemetry.episode_files import best_and_worst, table_row
from agent_rl.telemetry.events import EventLog
from agent_rl.telemetry.host import GPUFigures, HostFigures, gpu_uuids
from agent_rl.telemetry.metrics import MetricsWriter
from agent_rl.telemetry.notify import Notifier
from agent_rl.telemetry.progress import TrainingProgress
from agent_rl.telemetry.run_log import RunLog
from agent_rl.telemetry.trackers import MetricsLog, open_trackers

_NOTIFIED = ("reward/mean", "success/mean", "time/step_s")
"""Metrics that a message holds."""


class RunOutput:
    """A context manager around the loop; `step` is how many steps an earlier start of the run has done."""

    def __init__(self, run: RunFolder, config: Config, *, step: int, is_main: bool) -> None:
        self._run = run
        self._config = config
        self._is_main = is_main
        self._first_step = step + 1 if step else 0
        self._log_file = RunLog(run.path)
        self._progress = self._new_progress(step)
        self.no_signal = NoSignal(config)
        self._absent_parts = AbsentParts(config)
        self.failures = FailureReport(run.path)
        """Tells of what code of the user raised."""
        facts = {"run": config.run.name, "folder": str(run.path)}
        self._notifier = Notifier(config.log.notify if is_main else None, facts, say=self.message)
        self._figures: HostFigures | None = None
        self._last_metrics: Mapping[str, float] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "RunOutput":
        if not self._is_main:
            return self
        with ExitStack() as stack:
            stack.enter_context(self._notifier)
            stack.enter_context(self._progress)
            self._figures = stack.enter_context(HostFigures(gpus=GPUFigures.open(gpu_uuids())))
            trackers = open_trackers(
                self._config.log.trackers,
                run_name=self._config.run.name,
                project=self._config.log.project,
                folder=self._run.path,
                config=redacted(self._config.model_dump(mode="json")),
                resume_from_step=self._first_step,
            )
            writer = MetricsWriter(self._run.metrics_file, resume_from_step=self._first_step)
            self._log = stack.enter_context(MetricsLog(writer, trackers, report=self._progress.message))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    def _new_progress(self, step: int) -> TrainingProgress:
        settings = self._config
        return TrainingProgress(
            settings.train.steps, enabled=settings.log.progress, num_steps_done=step, on_line=self._log_file.write
        )

    def step(self, step: int, metrics: Mapping[str, float], *, evaluations_left: int = 0) -> None:
        """A training step is done, and so many evaluations are still to come."""
        if self._is_main:
            self.write(step, metrics)
            self._last_metrics = metrics
            self._progress.step(step, metrics, evaluations_left=evaluations_left)

    def host_metrics(self) -> dict[str, float]:
        """Figures of the main process's machine since the last call; none on other processes."""
        return self._figures.metrics() if self._figures is not None else {}

    def notify(self, event: str, step: int, text: str) -> None:
        """Tell `log.notify`, with some of the last step's metrics."""
        shown = {name: self._last_metrics[name] for name in _NOTIFIED if name in self._last_metrics}
        self._notifier.tell(event, step, f"{self._config.run.name}: {text}", shown)

    def activity(self, name: str) -> None:
        """What the run does from now on, `rollout` for example; shown on a terminal."""
        if self._is_main:
            self._progress.activity(name)

    def tally(self, num_done: int, total: int, unit: str) -> None:
        """How far that is; called from any thread."""
        if self._is_main:
            self._progress.tally(num_done, total, unit)

    def evaluated(self, seconds: float) -> None:
        """An evaluation took so long."""
        self._progress.evaluated(seconds)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics alone."""
        if self._is_main:
            self._log.write(step, metrics)

    def episodes(self, step: int, episodes: Sequence[Trajectory]) -> None:
        """The episodes of a step, or of the evaluation at it, are over: report what failed in them."""
        if self._is_main:
            self.failures.episodes(step, episodes, self.message)

    def all_failed(self, step: int, failed: Sequence[FailedCall]) -> None:
        """All episodes failed, which ends the run: write what was raised in them."""
        if self._is_main:
            self.failures.all_failed(step, failed, self.message)

    def groups(self, step: int, groups: Sequence[TrajectoryGroup], metrics: Mapping[str, float]) -> None:
        """A training step is over: report what failed in its groups, what they lack, whether there was anything to
        learn."""
        self.episodes(step, [episode for group in groups for episode in group.trajectories])
        for sentence in self._absent_parts.sentences(step, groups):
            self.message(sentence)
        was_skipped = bool(metrics["optim/skipped"]) and not metrics.get("optim/nonfinite")
        if sentence := self.no_signal.sentence(step, groups, was_skipped=was_skipped):
            self.message(sentence)

    def table(self, step: int, groups: Sequence[TrajectoryGroup]) -> None:
        """Give the step's best and worst episodes to the trackers that show tables."""
        if self._is_main:
            records = best_and_worst(groups, per_step=self._config.log.transcripts_per_step, step=step)
            self._log.write_episodes(step, [table_row(record) for record in records])

    def finished(self) -> None:
        """All steps are done: report what holds for the whole run."""
        if self._is_main and (sentence := self.no_signal.at_the_end(self._run.metrics_file)):
            self.message(sentence)

    def message(self, text: str) -> None:
        if self._is_main:
            self._progress.message(text)

    def rewind(self, step: int) -> None:
        """Forget the metrics of all steps after `step`."""
        if self._is_main:
            self._stack.close()
            self._first_step = step + 1
            self._progress = self._new_progress(step)
            self.__enter__()


def announce(
    output: RunOutput,
    events: EventLog,
    run: RunFolder,
    config: Config,
    *,
    step: int,
    num_processes: int,
    begun: Begun,
    rewrites_history: bool,
) -> None:
    """Write that a run starts or resumes after `step`, and tell what a person should know of it."""
    if begun.kept_in is not None:
        output.message(f"An earlier start of {run.path} finished no step; what it left is in {begun.kept_in}")
    if rewrites_history:
        output.message(
            "The model's chat template shows earlier turns differently once others follow (reasoning or tools are "
            "dropped); in training the model keeps the tokens that it read and generated"
        )
    facts = {"planned_steps": config.train.steps, "num_processes": num_processes}
    if run.resume_from is None:
        events.write("start", step, **facts)
        return
    events.write("resume", step, from_step=step, checkpoint=run.resume_from, changed=begun.changed, **facts)
    if begun.changed:
        output.message(f"Settings changed since the last start: {', '.join(begun.changed)}")
    if step >= config.train.steps:
        output.message(f"The run in {run.path} is finished ({step} steps); its result again:")
    else:
        output.message(f"Continuing from {run.resume_from}, after step {step}")


class StepClock:
    """Wall time by stage; `on_stage` is called with the name of each as it begins."""

    def __init__(self, on_stage: Callable[[str], None]) -> None:
        self._on_stage = on_stage
        self._started = time.perf_counter()
        self._stages: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        self._on_stage(name)
        yield
        self._stages[f"time/{name}_s"] = time.perf_counter() - started

    def metrics(self, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """Times, and generated tokens per second of the whole step."""
        step_s = time.perf_counter() - self._started
        num_generated = sum(len(turn.completion.token_ids) for g in groups for t in g.trajectories for turn in t.turns)
        return self._stages | {"time/step_s": step_s, "perf/tokens_per_s": num_generated / step_s}
