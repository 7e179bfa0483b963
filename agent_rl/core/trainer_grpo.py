"""GRPO: the loop that draws tasks, plays episodes, updates the policy, evaluates and keeps checkpoints.

`train()` is the whole run, resumable at any step; `update(groups)` is one optimizer step on episodes from anywhere.
Not here: how an episode is played (`rollout.py`), the mathematics of a step (`update.py`), what a task is worth (envs).
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from statistics import fmean
from typing import Any

from rich.console import Console

from agent_rl.algorithms.advantages import has_signal
from agent_rl.config import Config, CurriculumConfig
from agent_rl.core.evaluation import (
    EvalResult,
    comparison_table,
    eval_metrics,
    evaluate,
    one_line,
    to_record,
    verdict,
)
from agent_rl.core.in_process_policy import InProcessPolicy
from agent_rl.core.interrupts import deferred_interrupt
from agent_rl.core.make_policy import make_policy
from agent_rl.core.rollout import make_rollout
from agent_rl.core.run_folder import RunFolder, write_json
from agent_rl.core.update import PolicyUpdater
from agent_rl.data.curriculum import level_of, make_curriculum
from agent_rl.data.tasks import Task, read_tasks
from agent_rl.distributed.backend import Backend
from agent_rl.distributed.checkpoint import MODEL_FOLDER, get_rng_state, load_state, save_checkpoint, set_rng_state
from agent_rl.envs.base import AgentEnv, EnvFactory
from agent_rl.envs.registry import make_env_factory
from agent_rl.records import StopReason, TrajectoryGroup
from agent_rl.telemetry.metrics import MetricsWriter, group_metrics
from agent_rl.telemetry.progress import TrainingProgress
from agent_rl.telemetry.transcripts import write_transcripts


class GRPOTrainer:
    """`with GRPOTrainer.from_config(config) as trainer: trainer.train()`.

    Own environment, own tasks: `from_config(config, env_factory=EnvFactory(MyEnv), train_tasks=rows)`. The trainer
    owns what it is given and closes it.
    """

    def __init__(
        self,
        config: Config,
        *,
        policy: InProcessPolicy,
        backend: Backend,
        env_factory: EnvFactory,
        train_tasks: Sequence[Task],
        eval_tasks: Sequence[Task],
        run: RunFolder,
    ) -> None:
        """Put the parts together; `env_factory` must have been started. `from_config` does all of it."""
        self.config = config
        self.policy = policy
        self.step = 0
        """Updates done."""
        self._backend = backend
        self._env_factory = env_factory
        self._train_tasks = train_tasks
        self._eval_tasks = eval_tasks
        self._run = run
        self._curriculum = make_curriculum(train_tasks, config.data.curriculum, seed=config.run.seed)
        self._rollout = make_rollout(config, policy, env_factory)
        self._updater = PolicyUpdater(policy.model, config, backend, pad_id=policy.pad_id)
        self._evals: list[EvalResult] = []
        self._saved_step: int | None = None
        if run.resume_from is not None:
            self._restore()
        self._sampler_state = self._curriculum.state_dict()

    @classmethod
    def from_config(
        cls,
        config: Config,
        *,
        env_factory: EnvFactory | Callable[[], AgentEnv] | None = None,
        train_tasks: Sequence[Task] | None = None,
        eval_tasks: Sequence[Task] | None = None,
    ) -> "GRPOTrainer":
        """Build everything `config` names; what is given instead of None replaces the config's. Nothing is written.

        `env_factory` may be an `AgentEnv` class. With `train_tasks` of one's own and no `eval_tasks` there is no
        evaluation: the config's held-out tasks would be another environment's.
        Raises a UserError for whatever a person can mend: a task row, a model folder, a device, a run folder in use.
        """
        run = RunFolder.open(config)
        backend = Backend(config.run.device)
        if env_factory is None:
            factory = make_env_factory(config.env.name, config.env.options, seed=config.run.seed)
        else:
            factory = env_factory if isinstance(env_factory, EnvFactory) else EnvFactory(env_factory)
        if train_tasks is None:
            train_tasks = read_tasks(config.data.train_path, _train_check(factory, config.data.curriculum))
            if eval_tasks is None and config.eval.temperatures:
                eval_tasks = read_tasks(config.data.eval_path, factory.check_task)
        checkpoint = run.resume_from / MODEL_FOLDER if run.resume_from else None
        policy = make_policy(config, device=backend.device, checkpoint=checkpoint)
        try:
            factory.start()
            return cls(
                config,
                policy=policy,
                backend=backend,
                env_factory=factory,
                train_tasks=train_tasks,
                eval_tasks=(eval_tasks or ())[: config.data.max_eval_tasks],
                run=run,
            )
        except BaseException:
            policy.close()
            factory.close()
            raise

    def __enter__(self) -> "GRPOTrainer":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop generation, then free the environment's resources."""
        self.policy.close()
        self._env_factory.close()

    def train(self) -> dict[str, Any]:
        """Run to `train.steps`, from where the run stands; returns the results before and after.

        Ctrl-C saves a checkpoint of the last whole step and raises KeyboardInterrupt again.
        """
        environment = self._env_factory.describe()
        changed = self._run.begin(self.config, environment)
        with (
            MetricsWriter(self._run.metrics_file, resume_from_step=self.step + 1 if self.step else 0) as writer,
            TrainingProgress(
                self.config.train.steps, enabled=self.config.log.progress, num_steps_done=self.step
            ) as progress,
        ):
            if summary := environment.get("summary"):
                progress.message(summary)
            self._announce(progress, changed)
            try:
                self._evaluate_if_due(writer, progress)
                while self.step < self.config.train.steps:
                    self._train_step(writer, progress)
                    self._checkpoint_if_due()
                    self._evaluate_if_due(writer, progress)
            except KeyboardInterrupt:
                self.save_checkpoint()
                progress.message(
                    f"Interrupted after step {self.step}; checkpoint kept in {self._run.checkpoints}; "
                    "continue with checkpoint.resume=auto"
                )
                raise
        return self._report()

    def _train_step(self, writer: MetricsWriter, progress: TrainingProgress) -> None:
        clock = _Clock()
        drawn = self._curriculum.next(self.config.rollout.groups_per_step, step=self.step + 1)
        tasks = [self._train_tasks[index] for index in drawn]
        with clock.stage("rollout"):
            groups = self._rollout.collect(
                tasks,
                group_size=self.config.rollout.group_size,
                step=self.step + 1,
                temperature=self.config.policy.temperature,
            )
        curriculum_metrics = self._curriculum.observe(drawn, _success_rates(groups))
        with deferred_interrupt():
            with clock.stage("update"):
                metrics = self.update(groups)
            self._sampler_state = self._curriculum.state_dict()
            metrics |= group_metrics(groups, has_signal=has_signal) | curriculum_metrics | clock.metrics(groups)
            writer.write(self.step, metrics)
            self._write_transcripts(groups)
        _warn_of_env_errors(groups, self.step, progress)
        progress.step(self.step, metrics)

    def update(self, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """One step: advantages, loss, optimizer, new weights for the sampler. Counts as a step even when skipped.

        Metrics are `loss/*`, `optim/*`, `policy/entropy`, `batch/*`. `optim/skipped` is 1 when nothing was learned
        because no group had signal, or loss or gradient was not finite.
        """
        metrics = self._updater.update(groups, step=self.step)
        self.step += 1
        self.policy.refresh_weights(self.step)
        return metrics

    def evaluate(self, temperature: float) -> EvalResult:
        """Play every held-out task once at `temperature` (0 is greedy) and write `eval/step_*_t*.json`."""
        result, episodes = evaluate(self._rollout, self._eval_tasks, temperature=temperature, step=self.step)
        # Forgets cached prompts: a resumed run skips this evaluation, and they would change the last digits after it.
        self.policy.refresh_weights(self.step)
        write_json(self._run.eval_file(self.step, temperature), to_record(result, episodes))
        self._evals.append(result)
        return result

    def save_checkpoint(self) -> None:
        """Keep the weights and everything needed to go on from the last whole step; nothing if that was done."""
        if self._saved_step == self.step:
            return
        state = {
            "step": self.step,
            "updater": self._updater.state_dict(),
            "sampler": self._sampler_state,
            "rng": get_rng_state(),
            "evals": [asdict(result) for result in self._evals],
        }
        with deferred_interrupt():
            save_checkpoint(
                self._run.checkpoints,
                self.step,
                write_model=self.policy.save_pretrained,
                state=state,
                keep=self.config.checkpoint.keep,
            )
            self._saved_step = self.step

    def _restore(self) -> None:
        """Go on from `run.resume_from`; the policy was already loaded from there."""
        assert self._run.resume_from is not None
        state = load_state(self._run.resume_from)
        self.step = state["step"]
        self._updater.load_state_dict(state["updater"])
        self._curriculum.load_state_dict(state["sampler"])
        set_rng_state(state["rng"])
        self.policy.refresh_weights(self.step)
        self._evals = [EvalResult(**result) for result in state["evals"]]
        if self._run.resume_from.resolve().parent == self._run.checkpoints.resolve():
            self._saved_step = self.step
            self._read_later_evals()

    def _read_later_evals(self) -> None:
        """Evaluations of the checkpoint's own step are made after it is saved, so they are in the run's folder."""
        for temperature in self.config.eval.temperatures:
            path = self._run.eval_file(self.step, temperature)
            if path.exists() and self._eval_at(self.step, temperature) is None:
                self._evals.append(EvalResult(**json.loads(path.read_text(encoding="utf-8"))["result"]))

    def _announce(self, progress: TrainingProgress, changed: Sequence[str]) -> None:
        if self.policy.chat_format.rewrites_history:
            progress.message(
                "The model's chat template shows earlier turns differently once others follow (reasoning or tools are "
                "dropped); in training the model goes on reading what it read and drew"
            )
        if self._run.resume_from is None:
            return
        if changed:
            progress.message(f"Settings changed since the last start: {', '.join(changed)}")
        if self.step >= self.config.train.steps:
            progress.message(f"The run in {self._run.path} is finished ({self.step} steps); its result again:")
        else:
            progress.message(f"Continuing from {self._run.resume_from}, after step {self.step}")

    def _is_eval_due(self) -> bool:
        every = self.config.eval.every
        is_last = self.step >= self.config.train.steps
        return self.step == 0 or is_last or (every > 0 and self.step % every == 0)

    def _evaluate_if_due(self, writer: MetricsWriter, progress: TrainingProgress) -> None:
        if not self._eval_tasks or not self._is_eval_due():
            return
        for temperature in self.config.eval.temperatures:
            if self._eval_at(self.step, temperature) is None:
                started = time.perf_counter()
                result = self.evaluate(temperature)
                writer.write(self.step, eval_metrics(result) | {"time/eval_s": time.perf_counter() - started})
                progress.message(one_line(result))

    def _checkpoint_if_due(self) -> None:
        every = self.config.checkpoint.every
        if self.step >= self.config.train.steps or (every and self.step % every == 0):
            self.save_checkpoint()

    def _write_transcripts(self, groups: Sequence[TrajectoryGroup]) -> None:
        path = self._run.transcript_file(self.step)
        write_transcripts(path, groups, per_step=self.config.log.transcripts_per_step, step=self.step)

    def _eval_at(self, step: int, temperature: float) -> EvalResult | None:
        return next((e for e in self._evals if (e.step, e.temperature) == (step, temperature)), None)

    def _report(self) -> dict[str, Any]:
        """Print the table of before and after, and return it."""
        before, after = {}, {}
        for temperature in self.config.eval.temperatures:
            first, last = self._eval_at(0, temperature), self._eval_at(self.step, temperature)
            if first is not None and last is not None:
                before[temperature], after[temperature] = first, last
        console = Console()
        if after:
            console.print(comparison_table(before, after))
            for temperature, result in after.items():
                console.print(verdict(before[temperature], result), highlight=False)
        console.print(f"Run folder: {self._run.path}", highlight=False, soft_wrap=True)
        return {"step": self.step, "run_folder": self._run.path, "before": before, "after": after}


class _Clock:
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
        """Times, and drawn tokens per second of the whole step."""
        step_s = time.perf_counter() - self._started
        num_drawn = sum(len(turn.completion.token_ids) for g in groups for t in g.trajectories for turn in t.turns)
        return self._stages | {"time/step_s": step_s, "perf/tokens_per_s": num_drawn / step_s}


def _train_check(factory: EnvFactory, curriculum: CurriculumConfig) -> Callable[[Task, str], None]:
    """What every row of the training file must pass: the environment's check, and a level where one is needed."""

    def check(task: Task, where: str) -> None:
        factory.check_task(task, where)
        if curriculum.mode != "off":
            level_of(task, where, curriculum)

    return check


def _success_rates(groups: Sequence[TrajectoryGroup]) -> list[float | None] | None:
    """Share of scored episodes that succeeded, by group; None for a group without any.

    None instead of the list when episodes were played to their end and none of the step reports `success`. Where some
    report it, an episode that does not, as a rule one that was cut off, is a failure.
    """
    scored = [[episode for episode in group.trajectories if episode.reward is not None] for group in groups]
    episodes = [episode for group in scored for episode in group]
    is_reported = any("success" in episode.reward_parts for episode in episodes)
    if not is_reported and any(episode.stop_reason is StopReason.FINISHED for episode in episodes):
        return None
    return [fmean(e.reward_parts.get("success", 0.0) >= 1.0 for e in group) if group else None for group in scored]


def _warn_of_env_errors(groups: Sequence[TrajectoryGroup], step: int, progress: TrainingProgress) -> None:
    failed = [t for group in groups for t in group.trajectories if t.stop_reason is StopReason.ENV_ERROR]
    if failed:
        progress.message(f"step {step}: {len(failed)} episodes dropped by environment errors, first: {failed[0].error}")
