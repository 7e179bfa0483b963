"""GRPO and its relatives: the loop of rollouts, updates, evaluations and checkpoints.

`train()` is the whole run, resumable at any step; `update(groups)` is one step on episodes from anywhere. Started by a
launcher, every process runs this same loop: it runs its share of the episodes, then all get all of them.
Not here: how an episode runs (`episode.py`), the mathematics of a step (`update.py`), what a task is worth (envs).
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from agent_rl.algorithms.advantages import has_variance
from agent_rl.closing import Closing
from agent_rl.config import Config
from agent_rl.core.episode_log import EpisodeLog
from agent_rl.core.evaluation import EvalResult, RunEvaluation
from agent_rl.core.interrupts import deferred_interrupt
from agent_rl.core.policy_sync import make_policy_sync, module_to_train
from agent_rl.core.run_folder import RunFolder
from agent_rl.core.run_output import RunOutput, StepClock, warn_of_env_errors
from agent_rl.core.work_counters import WorkCounters
from agent_rl.data.tasks import Task, read_tasks
from agent_rl.distributed.backend import Backend
from agent_rl.distributed.checkpoint import (
    MODEL_FOLDER,
    best_checkpoint,
    get_rng_state,
    latest_checkpoint,
    load_state,
    remove_later_checkpoints,
    restoring,
    save_checkpoint,
    set_rng_state,
    verify_checkpoint,
)
from agent_rl.envs.base import AgentEnv, EnvFactory
from agent_rl.envs.opening import open_environment
from agent_rl.errors import DataError, TrainingStoppedError
from agent_rl.learning.update import PolicyUpdater, UpdateResult
from agent_rl.modeling.tensor_files import load_tensors, save_tensors
from agent_rl.policies.make_policy import load_reference_model, make_policy
from agent_rl.policies.policy import BasePolicy
from agent_rl.policies.trained_model import TrainedModel, save_trained
from agent_rl.records import TrajectoryGroup
from agent_rl.rollout.async_source import AsyncSource
from agent_rl.rollout.rollout import RolloutSource, SyncSource, make_rollout, train_check
from agent_rl.telemetry.alarms import AlarmRule, Alarms, FiredAlarm, with_defaults
from agent_rl.telemetry.events import EventLog
from agent_rl.telemetry.metrics import group_metrics

MAX_ROLLBACKS = 3
"""Alarms that go back; the next one stops the run."""


class GRPOTrainer(Closing):
    """`with GRPOTrainer.from_config(config) as trainer: trainer.train()`.

    Own environment, own tasks: `from_config(config, env_factory=EnvFactory(MyEnv), train_tasks=rows)`. The trainer
    owns what it is given and closes it.
    """

    def __init__(
        self,
        config: Config,
        *,
        model: TrainedModel,
        policy: BasePolicy,
        backend: Backend,
        env_factory: EnvFactory,
        train_tasks: Sequence[Task],
        eval_tasks: Sequence[Task],
        run: RunFolder,
    ) -> None:
        """Put the parts together; `env_factory` must have been started. `from_config` does all of it."""
        self.config = config
        self.model = model
        self.policy = policy
        self.step = 0
        """Steps done."""
        self._backend = backend
        self._env_factory = env_factory
        self._run = run
        rollout = make_rollout(config, policy, env_factory, backend)
        self._evaluation = RunEvaluation(config, eval_tasks, rollout, run, backend)
        self._source: RolloutSource = (
            AsyncSource(config, train_tasks, policy=policy, env_factory=env_factory, processes=backend)
            if config.rollout.max_staleness
            else SyncSource(config, train_tasks, rollout)
        )
        self._updater = PolicyUpdater(
            module_to_train(model, policy, backend),
            config,
            backend,
            reference_model=load_reference_model(config, backend),
        )
        self._sync = make_policy_sync(config, policy, model, self._updater, backend, run_folder=run.path)
        self._episode_log = EpisodeLog(config, run, train_tasks, policy.chat_format, is_main=backend.is_main_process)
        self._events = EventLog(run.path, enabled=backend.is_main_process)
        counted = {"rollout": policy.counters, "judge": env_factory.counters, "workers": env_factory.worker_counters}
        self._work = WorkCounters(counted, backend)
        self._alarms = _make_alarms(config)
        self._num_rollbacks = 0
        self._rate_factor = 1.0
        self._saved_step: int | None = None
        self._has_ended = False
        if run.resume_from is not None:
            self._restore(run.resume_from)
        self._sync.sync_weights(self.step)

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
        Raises a UserError for anything the user can fix: a task row, a model folder, a device, a run folder in use.
        """
        config.check_functions()
        backend = Backend(config.run.device, timeout_s=config.run.timeout_s)
        run = backend.on_main(lambda: RunFolder.open(config))
        with ExitStack() as opened:
            factory = opened.enter_context(open_environment(config, env_factory))
            if train_tasks is None:
                train_tasks = read_tasks(config.data.train_path, train_check(factory, config.data.curriculum))
                if eval_tasks is None and config.eval.temperatures:
                    eval_tasks = read_tasks(config.data.eval_path, factory.check_task)
            if run.resume_from is not None:
                verify_checkpoint(run.resume_from, backend)
            checkpoint = run.resume_from / MODEL_FOLDER if run.resume_from else None
            model, policy = make_policy(config, backend, run_folder=run.path, checkpoint=checkpoint)
            opened.callback(policy.close)
            factory.start()
            trainer = cls(
                config,
                model=model,
                policy=policy,
                backend=backend,
                env_factory=factory,
                train_tasks=train_tasks,
                eval_tasks=(eval_tasks or ())[: config.data.max_eval_tasks],
                run=run,
            )
            opened.pop_all()  # the trainer closes them
            return trainer

    def close(self) -> None:
        """Stop episodes and generation, free the environment's resources, and leave the other processes in order.

        That only after `train` has ended: of a run that failed, some may not answer any more.
        """
        self._source.close()
        self.policy.close()
        self._env_factory.close()
        if self._has_ended:
            self._backend.close()

    def train(self) -> dict[str, Any]:
        """Run to `train.steps`, from where the run stands; returns the results before and after.

        Ctrl-C saves a checkpoint of the last whole step and raises KeyboardInterrupt again; with several processes,
        which it stops at different places, the last one saved counts. TrainingStoppedError when an alarm ends it.
        """
        environment = self._env_factory.describe()
        changed = self._backend.on_main(lambda: self._begin(environment))
        with RunOutput(self._run, self.config, step=self.step, is_main=self._backend.is_main_process) as output:
            if summary := environment.get("summary"):
                output.message(summary)
            self._announce(output, changed)
            try:
                self._evaluate_if_due(output)
                while self.step < self.config.train.steps:
                    self._train_step(output)
                    self._evaluate_if_due(output)
                    self._checkpoint_if_due()
                self._events.write("end", self.step, reason="finished")
            except KeyboardInterrupt:
                self._save_at_interrupt(output)
                raise
            except Exception as error:
                reason = "stopped" if isinstance(error, TrainingStoppedError) else "failed"
                with suppress(DataError):  # of a full disk, which may be the error itself
                    self._events.write("end", self.step, reason=reason, error=f"{type(error).__name__}: {error}")
                raise
        self._has_ended = True
        return self._evaluation.report(self.step)

    def _save_at_interrupt(self, output: RunOutput) -> None:
        if self._backend.num_processes == 1:
            self.save_checkpoint()
        saved = "no checkpoint yet" if self._saved_step is None else f"that of step {self._saved_step}"
        output.message(
            f"Interrupted after step {self.step}; checkpoint saved in {self._run.checkpoints}: {saved}; "
            "continue with checkpoint.resume=auto"
        )
        self._events.write("interrupt", self.step, checkpoint_step=self._saved_step)

    def _train_step(self, output: RunOutput) -> None:
        clock = StepClock()
        self._work.start()
        with clock.stage("rollout"):
            batch = self._source.collect(step=self.step + 1)
        self._sync.offload()
        with deferred_interrupt():
            with clock.stage("update"):
                update = self.update(batch.train_groups)
            self._source.commit()
            with clock.stage("write"):
                self._episode_log.write(self.step, batch.groups, update, report=output.message)
            metrics = update.metrics | group_metrics(batch.groups, has_variance=has_variance) | batch.metrics
            metrics |= clock.metrics(batch.groups) | self._work.metrics() | self._backend.memory_metrics()
            output.step(self.step, metrics)
            fired = self._backend.broadcast_object(self._alarms.check(self.step, metrics))
        warn_of_env_errors(batch.groups, self.step, output)
        self._handle_alarms(fired, batch.groups, update, output)

    def _handle_alarms(
        self,
        fired: Sequence[FiredAlarm],
        groups: Sequence[TrajectoryGroup],
        update: UpdateResult,
        output: RunOutput,
    ) -> None:
        """Report the alarms of a step; stop or go back when the action of one of them is that."""
        for alarm in fired:
            output.message(alarm.sentence)
            self._events.write("alarm", **asdict(alarm))
        for alarm in fired:
            if alarm.action == "stop" or (alarm.action == "rollback" and self._num_rollbacks == MAX_ROLLBACKS):
                self._episode_log.write_samples(self.step, groups, update, report=output.message)
                self.save_checkpoint()
                raise TrainingStoppedError(
                    f"stopped after step {self.step} by the alarm on {alarm.metric}; the checkpoint is in "
                    f"{self._run.checkpoints}"
                )
        if any(alarm.action == "rollback" for alarm in fired):
            self._roll_back(output)

    def _roll_back(self, output: RunOutput) -> None:
        """Go back to the best checkpoint and on from there, with half the learning rate and the tasks that come next.

        Without any checkpoint only the learning rate changes.
        """
        self._num_rollbacks += 1
        self._rate_factor /= 2.0
        folder = self._run.checkpoints
        path = best_checkpoint(folder) or latest_checkpoint(folder)
        state = load_state(path, self._backend) if path else {"step": self.step}
        self._events.write("rollback", self.step, to_step=state["step"], checkpoint=path, rate_factor=self._rate_factor)
        if path is None:
            output.message("there is no checkpoint to go back to; continuing with half the learning rate")
            return
        self._source.rewind(state["step"])
        self._backend.on_main(lambda: (remove_later_checkpoints(path), self._run.remove_later(state["step"])))
        if self._backend.kind != "deepspeed":  # whose state holds the weights too
            self.model.load_weights(path / MODEL_FOLDER)
        self._load_learned(path, state)
        self._sync.sync_weights(self.step)
        self._alarms = _make_alarms(self.config)
        self._saved_step = self.step
        output.rewind(self.step)
        output.message(f"back to step {self.step}, from there with half the learning rate")

    def update(self, groups: Sequence[TrajectoryGroup]) -> UpdateResult:
        """One step: advantages, loss, optimizer, new weights for the sampler. Counts as a step even when skipped.

        Every process gives the same groups. Metrics are those of docs/metrics.md but for rewards and episodes;
        `optim/skipped` is 1 when nothing was learned: all groups had zero variance, or loss or gradient was not finite.
        """
        result = self._updater.update(groups, step=self.step, rate_factor=self._rate_factor)
        self.step += 1
        return replace(result, metrics=result.metrics | self._sync.sync_weights(self.step))

    def evaluate(self, temperature: float) -> EvalResult:
        """Run one episode of every held-out task at `temperature` (0 is greedy) and write `eval/step_*_t*.json`."""
        return self._evaluation.evaluate(self.step, temperature)

    def save_checkpoint(self) -> None:
        """Save the weights and everything needed to continue from the last whole step, unless that was done.

        Every process calls it.
        """
        if self._saved_step == self.step:
            return
        state = {
            "step": self.step,
            "updater": self._updater.state_dict(),
            "source": self._source.state_dict(),
            "alarms": self._alarms.state_dict(),
            "num_rollbacks": self._num_rollbacks,
            "rate_factor": self._rate_factor,
            "evals": self._evaluation.state_dict(),
        }
        with deferred_interrupt():
            path = save_checkpoint(
                self._run.checkpoints,
                self.step,
                write_model=self._write_model,
                write_rank=self._write_rank,
                state=state,
                keep=self.config.checkpoint.keep,
                score=self._evaluation.score(self.step) if self.config.checkpoint.keep_best else None,
                processes=self._backend,
            )
            self._saved_step = self.step
            self._events.write("checkpoint", self.step, folder=path)

    def _write_model(self, folder: Path) -> None:
        save_trained(self.model, self._updater.policy_module, self._backend, folder)

    def _write_rank(self, folder: Path) -> dict[Path, str]:
        path = folder / _rng_file(self._backend.rank)
        return self._updater.save_state(folder) | {path: save_tensors(get_rng_state(), path)}

    def _restore(self, path: Path) -> None:
        """Continue from a checkpoint; the policy was already loaded from there."""
        state = load_state(path, self._backend)
        with restoring(path):
            self._load_learned(path, state)
            self._source.load_state_dict(state["source"])
            self._alarms.load_state_dict(state["alarms"])
            self._num_rollbacks, self._rate_factor = int(state["num_rollbacks"]), float(state["rate_factor"])
            set_rng_state(load_tensors(path / _rng_file(self._backend.rank)))
        if path.resolve().parent == self._run.checkpoints.resolve():
            self._saved_step = self.step
            self._evaluation.read_later(self.step)

    def _load_learned(self, path: Path, state: dict[str, Any]) -> None:
        """What learning made: optimizer, evaluations; the policy's own weights are there already."""
        self.step = int(state["step"])
        self._updater.load_state_dict(state["updater"])
        self._updater.load_state(path)
        self._evaluation.load_state_dict(state["evals"])

    def _begin(self, environment: dict[str, Any]) -> list[str]:
        changed = self._run.begin(self.config, environment)
        self._run.remove_later(self.step)
        return changed

    def _announce(self, output: RunOutput, changed: Sequence[str]) -> None:
        if self.policy.chat_format.rewrites_history:
            output.message(
                "The model's chat template shows earlier turns differently once others follow (reasoning or tools are "
                "dropped); in training the model keeps the tokens that it read and generated"
            )
        begun = {"planned_steps": self.config.train.steps, "num_processes": self._backend.num_processes}
        if self._run.resume_from is None:
            self._events.write("start", self.step, **begun)
            return
        resumed = {"from_step": self.step, "checkpoint": self._run.resume_from, "changed": changed}
        self._events.write("resume", self.step, **resumed, **begun)
        if changed:
            output.message(f"Settings changed since the last start: {', '.join(changed)}")
        if self.step >= self.config.train.steps:
            output.message(f"The run in {self._run.path} is finished ({self.step} steps); its result again:")
        else:
            output.message(f"Continuing from {self._run.resume_from}, after step {self.step}")

    def _evaluate_if_due(self, output: RunOutput) -> None:
        for temperature in self._evaluation.due(self.step):
            self._evaluation.run(self.step, temperature, output, self._events)
            # A resumed run skips this evaluation, and prompts cached by it would change the last digits after it.
            self._sync.reset_prefix_cache(self.step)

    def _checkpoint_if_due(self) -> None:
        every = self.config.checkpoint.every
        if self.step >= self.config.train.steps or (every and self.step % every == 0):
            self.save_checkpoint()


def _make_alarms(config: Config) -> Alarms:
    return Alarms(with_defaults([AlarmRule(**rule.model_dump()) for rule in config.log.alarms]))


def _rng_file(rank: int) -> str:
    return f"rng_{rank:05d}.pt"
