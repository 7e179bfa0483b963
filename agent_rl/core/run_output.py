"""What a run writes and shows while it trains: metrics, trackers, the console.

Of several processes only the main one does; the others call the same methods. Not here: what is measured, episodes
(`episode_log.py`), evaluations' files and checkpoints.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from agent_rl.config import Config
from agent_rl.core.run_folder import RunFolder
from agent_rl.records import StopReason, TrajectoryGroup
from agent_rl.redacted import redacted
from agent_rl.telemetry.metrics import MetricsWriter
from agent_rl.telemetry.progress import TrainingProgress
from agent_rl.telemetry.trackers import MetricsLog, open_trackers


class RunOutput:
    """A context manager around the loop; `step` is how many steps an earlier start of the run has done."""

    def __init__(self, run: RunFolder, config: Config, *, step: int, is_main: bool) -> None:
        self._run = run
        self._config = config
        self._is_main = is_main
        self._first_step = step + 1 if step else 0
        self._progress = TrainingProgress(config.train.steps, enabled=config.log.progress, num_steps_done=step)
        self._stack = ExitStack()

    def __enter__(self) -> "RunOutput":
        if not self._is_main:
            return self
        with ExitStack() as stack:
            stack.enter_context(self._progress)
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

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A training step is done."""
        if self._is_main:
            self.write(step, metrics)
            self._progress.step(step, metrics)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics alone."""
        if self._is_main:
            self._log.write(step, metrics)

    def message(self, text: str) -> None:
        if self._is_main:
            self._progress.message(text)

    def rewind(self, step: int) -> None:
        """Forget the metrics of all steps after `step`."""
        if self._is_main:
            self._stack.close()
            self._first_step = step + 1
            self._progress = TrainingProgress(
                self._config.train.steps, enabled=self._config.log.progress, num_steps_done=step
            )
            self.__enter__()


class StepClock:
    """Wall time by stage."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._stages: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._stages[f"time/{name}_s"] = time.perf_counter() - started

    def metrics(self, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """Times, and generated tokens per second of the whole step."""
        step_s = time.perf_counter() - self._started
        num_generated = sum(len(turn.completion.token_ids) for g in groups for t in g.trajectories for turn in t.turns)
        return self._stages | {"time/step_s": step_s, "perf/tokens_per_s": num_generated / step_s}


def warn_of_env_errors(groups: Sequence[TrajectoryGroup], step: int, output: RunOutput) -> None:
    failed = [t for group in groups for t in group.trajectories if t.stop_reason is StopReason.ENV_ERROR]
    if failed:
        output.message(f"step {step}: {len(failed)} episodes dropped by environment errors, first: {failed[0].error}")
