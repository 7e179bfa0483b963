"""GRPO and its relatives: the loop of rollouts, updates, evaluations and checkpoints.

`train()` is the whole run, resumable at any step; `update(groups)` is one step on episodes from anywhere. Started by a
launcher, every process runs this same loop: it runs its share of the episodes, then all get all of them.
Not here: how an episode runs (`episode.py`), the mathematics of a step (`update.py`), what a task is worth (envs).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from agent_rl.algorithms.advantages import has_variance
from agent_rl.closing import Closing
from agent_rl.config import Config
from agent_rl.core.episode_log import EpisodeLog
from agent_rl.core.evaluation import RunEvaluation
from agent_rl.core.interrupts import deferred_interrupt, sigterm_as_interrupt
from agent_rl.core.policy_sync import make_policy_sync, module_to_train
from agent_rl.core.quick_start import quick_run
from agent_rl.core.run.ending import RunEnding, disk_refusals_as_user_errors, suppressed_errors
from agent_rl.core.run.eval_result import EvalResult
from agent_rl.core.run.lock import held_folder
from agent_rl.core.run.state import RunCheckpoints, RunState
from agent_rl.core.run_folder import RunFolder
from agent_rl.core.run_output import RunOutput, StepClock, announce
from agent_rl.core.run_parts import RunRequest, opened_parts
from agent_rl.core.work_counters import WorkCounters
from agent_rl.data.overlap import overlap_of
from agent_rl.data.tasks import Task
from agent_rl.distributed.backend import Backend
from agent_rl.distributed.stopping import AgreedInterrupt
from agent_rl.envs.base import AgentEnv, EnvFactory
from agent_rl.envs.registry import DOMAINS
from agent_rl.errors import ConfigError, TrainingStoppedError
from agent_rl.learning.optimizer import learning_rate_at
from agent_rl.learning.update import PolicyUpdater, UpdateResult
from agent_rl.policies.make_policy import load_reference_model
from agent_rl.policies.model_files.trained_for import read_trained_for
from agent_rl.policies.policy import BasePolicy
from agent_rl.policies.trained_model import TrainedModel
from agent_rl.records import TrajectoryGroup
from agent_rl.rollout.async_source import make_rollout_source
from agent_rl.rollout.rollout import RolloutBatch, SourceMaker, make_rollout
from agent_rl.rollout.window import check_room
from agent_rl.telemetry.alarms import FiredAlarm, make_alarms
from agent_rl.telemetry.events import EventLog
from agent_rl.telemetry.metrics import group_metrics

MAX_ROLLBACKS = 3
"""Alarms that go back; the next one stops the run."""


class GRPOTrainer(Closing):
    """Trains a model in an environment. In five lines, on prompts that reward functions score:

        def is_short(completions, **columns):
            return [1.0 / (1 + len(text)) for text in completions]

        GRPOTrainer(model="Qwen/Qwen2.5-0.5B-Instruct", reward_funcs=is_short, train_dataset=rows).train()

    From a configuration: `with GRPOTrainer.from_config(config) as trainer: trainer.train()`; with an environment and
    tasks of one's own `from_config(config, env_factory=MyEnv, train_tasks=rows)`. The trainer owns what it is given and
    closes it.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        reward_funcs: Any = None,
        *,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        tools: Sequence[Any] = (),
        reward_weights: Sequence[float] | None = None,
        args: Mapping[str, Any] | Config | None = None,
        **unknown: Any,
    ) -> None:
        """Open a run of prompts and reward functions; nothing is written before `train`.

        Args:
            model: Name on the Hub, or a folder in Hugging Face format with its tokenizer (`model.path`).
            reward_funcs: A function in the style of TRL, verifiers or this library, the name of a registered one, or a
                list of these; async ones too. `docs/quick_start.md` shows what each is given.
            train_dataset: Rows with a `prompt`, a text or a list of chat messages, and any columns that the reward
                functions read: a dataset (`datasets`), a frame, a list of dictionaries, any iterable of rows; or a
                file, a folder of `save_to_disk` or `hf://owner/name[/config][:split]` (`data.train_path`).
            eval_dataset: Held-out rows, likewise; None: no evaluation.
            tools: What the model may call: typed functions with a docstring, tools, classes of tools, names.
            reward_weights: Factors of the reward functions in their sum; None: 1.0 each.
            args: Keys of a configuration, `{"train.steps": 20}`, or a `Config` of the environment `prompts`. Without
                them: `policy.type` huggingface, 100 `train.steps` at a `train.learning_rate` of 1e-6, and what
                `docs/configuration.md` has.
            **unknown: Refused, with what to do instead.

        Raises UserError for anything the user can fix.
        """
        data = (train_dataset, eval_dataset)
        run = quick_run(model, reward_funcs, data, tools, reward_weights, args, unknown)
        with opened_parts(run) as parts:
            self._put_together(run.config, **parts)

    @classmethod
    def from_parts(cls, config: Config, **parts: Any) -> "GRPOTrainer":
        """A trainer of parts that were opened elsewhere, by the names that `run_parts.opened_parts` gives them.

        `env_factory` must have been started.
        """
        trainer = cls.__new__(cls)
        trainer._put_together(config, **parts)
        return trainer

    def _put_together(
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
        make_source: SourceMaker | None = None,
    ) -> None:
        self.config = config
        self.model = model
        self.policy = policy
        self.is_main_process = backend.is_main_process
        self._backend = backend
        self._env_factory = env_factory
        self._run = run
        rollout = make_rollout(config, policy, env_factory, backend)
        self._tally = rollout.tally
        self._evaluation = RunEvaluation(config, eval_tasks, rollout, run, backend)
        self._overlap = overlap_of(train_tasks, eval_tasks)
        self.last_metrics: dict[str, float] = {}
        """Those of the last step; empty before there is one."""
        make_source = make_source or partial(make_rollout_source, config, train_tasks, env_factory, rollout)
        self._source = make_source(policy, backend)
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
        self._state = RunState(alarms=make_alarms(config.log.alarms))
        self._checkpoints = self._make_checkpoints(train_tasks)
        self._has_begun = self._has_ended = False
        self._on_step: Callable[[int, Mapping[str, float]], None] = _tell_nobody
        self._on_evaluation: Callable[[EvalResult], None] | None = None
        if run.resume_from is not None:
            self._checkpoints.restore(run.resume_from)
        self._sync.sync_weights(self.step)

    @property
    def step(self) -> int:
        """Steps done."""
        return self._state.step

    def _make_checkpoints(self, train_tasks: Sequence[Task]) -> RunCheckpoints:
        config, before = self.config, read_trained_for(self.config.model.path)
        name, tasks = DOMAINS.get(config.env.name, config.env.name), map(self._env_factory.covers, train_tasks)
        return RunCheckpoints(
            self.config,
            self._run,
            self._state,
            self._backend,
            model=self.model,
            updater=self._updater,
            source=self._source,
            evaluation=self._evaluation,
            events=self._events,
            trained_for=before and before.and_also(name, config.policy.max_context, tasks),
        )

    @classmethod
    def from_config(
        cls,
        config: Config,
        *,
        env_factory: EnvFactory | Callable[[], AgentEnv] | None = None,
        train_tasks: Any = None,
        eval_tasks: Any = None,
        make_source: SourceMaker | None = None,
    ) -> "GRPOTrainer":
        """Build everything `config` names; what is given instead of None replaces the config's. Nothing is written.

        `env_factory` may be an `AgentEnv` class. Tasks are rows in anything that `train_dataset` takes but a path. With
        `train_tasks` of one's own and no `eval_tasks` there is no evaluation: the config's held-out tasks would be
        another environment's. `make_source` makes what gives the steps their groups, in place of a rollout over the
        training tasks.
        Raises a UserError for anything the user can fix: a task row, a model folder, a device, a run folder in use.
        """
        run = RunRequest(
            config=config,
            env_factory=env_factory,
            train_rows=train_tasks,
            eval_rows=eval_tasks,
            make_source=make_source,
        )
        with opened_parts(run) as parts:
            return cls.from_parts(config, **parts)

    def close(self) -> None:
        """Stop episodes and generation, free the environment's resources, and leave the other processes in order.

        That only after `train` has ended: of a run that failed, some may not answer any more. What raises does not keep
        the rest open.
        """
        with ExitStack() as opened:
            if self._has_ended:
                opened.callback(self._backend.close)
            for part in (self._env_factory, self.policy, self._source):  # closed from the last one on
                opened.callback(part.close)

    def train(
        self,
        *,
        on_step: Callable[[int, Mapping[str, float]], None] | None = None,
        on_evaluation: Callable[[EvalResult], None] | None = None,
    ) -> dict[str, Any]:
        """Run to `train.steps`, from where the run stands; returns the results before and after.

        `on_step(step, metrics)` is called after every step, with the row that metrics.jsonl got, and
        `on_evaluation(result)` after every evaluation; in every process, and what they raise ends the run as Ctrl-C
        would, without a checkpoint. It is called also for a step in which an alarm stops the run or Ctrl-C comes, where
        an error of its own is a message; and for one from which an alarm went back, whose row is no longer in the file.
        Ctrl-C saves a checkpoint of the last whole step and raises KeyboardInterrupt again, SIGTERM SystemExit;
        several processes do so together, at the next place where they meet. TrainingStoppedError when an alarm ends
        it, DataError when the disk refuses a file.
        """
        self._on_step, self._on_evaluation = on_step or _tell_nobody, on_evaluation
        stops_together = self._backend.stopping_together()
        with (
            sigterm_as_interrupt(),
            stops_together,
            disk_refusals_as_user_errors(),
            held_folder(self._run.path, self._backend),
        ):
            try:
                self._train()
            except AgreedInterrupt:
                self._has_ended = True
                raise
            self._has_ended = True
            return self._evaluation.report(self.step)

    def _train(self) -> None:
        environment = self._env_factory.describe()
        stands = {"step": self.step, "saved_step": self._state.saved_step, "is_again": self._has_begun}
        begun = self._backend.on_main(lambda: self._run.begin(self.config, environment, **stands))
        self._has_begun = True
        with RunOutput(self._run, self.config, step=self.step, is_main=self._backend.is_main_process) as output:
            for sentence in (environment.get("summary"), self._overlap):
                if sentence:
                    output.message(sentence)
            announce(
                output,
                self._events,
                self._run,
                self.config,
                step=self.step,
                num_processes=self._backend.num_processes,
                begun=begun,
                rewrites_history=self.policy.chat_format.rewrites_history,
            )
            num_processes = self._backend.num_processes
            ending = RunEnding(
                self._run, self._events, self._state, num_processes=num_processes, save=self.save_checkpoint
            )
            with self._tally.watched(output.tally), ending.watch(output):
                self._evaluate_if_due(output)
                while self.step < self.config.train.steps and not self._evaluation.is_reached(self.step):
                    self._train_step(output)
                    self._evaluate_if_due(output)
                    self._checkpoint_if_due()
                if self.step < self.config.train.steps:
                    output.message(
                        f"Ended after step {self.step}: eval.stop_at {self.config.eval.stop_at:g} is reached"
                    )

    def _train_step(self, output: RunOutput) -> None:
        clock = StepClock(output.activity)
        self._work.start()
        with clock.stage("rollout"):
            batch = self._source.collect(step=self.step + 1)
        self._run.refuse_another_working_folder()
        if self.step == 0:
            check_room(batch.groups, self.policy, "the first step")
        self._sync.offload()
        number = None
        try:
            # Alarms too: a checkpoint says that they have fired, so what they ask for must be done before it is saved.
            with deferred_interrupt():
                update, fired = self._learn(batch, clock, output)
                number = self.step
                self._handle_alarms(fired, batch.groups, update, output)
        except BaseException:
            if number is not None:
                with suppressed_errors(f"on_step of step {number}", output.message):
                    self._on_step(number, dict(self.last_metrics))
            raise
        self._on_step(number, dict(self.last_metrics))
        self._backend.leave_if_stopped()

    def _learn(self, batch: RolloutBatch, clock: StepClock, output: RunOutput) -> tuple[UpdateResult, list[FiredAlarm]]:
        """The rest of a step but for what its alarms ask for: the update, and what is written of it."""
        with clock.stage("update"):
            update = self.update(batch.train_groups)
        step = self.step
        self._source.commit()
        with clock.stage("write"):
            self._episode_log.write(step, batch.groups, update, report=output.message)
        metrics = update.metrics | group_metrics(batch.groups, has_variance=has_variance) | batch.metrics
        metrics |= clock.metrics(batch.groups) | self._work.metrics() | self._backend.memory_metrics()
        metrics |= output.host_metrics()
        output.step(step, metrics, evaluations_left=self._evaluation.num_left(step))
        self.last_metrics = metrics
        fired = self._backend.broadcast_object(self._state.alarms.check(step, metrics))
        output.groups(step, batch.groups, metrics)
        if self._episode_log.is_due(step):
            output.table(step, batch.groups)
        return update, fired

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
            output.notify("alarm", self.step, alarm.sentence)
            self._events.write("alarm", **asdict(alarm))
        for alarm in fired:
            if alarm.action == "stop" or (alarm.action == "rollback" and self._state.num_rollbacks == MAX_ROLLBACKS):
                self._episode_log.write_samples(self.step, groups, update, report=output.message)
                self.save_checkpoint()
                raise TrainingStoppedError(
                    f"stopped after step {self.step} by the alarm on {alarm.metric}; the checkpoint is in "
                    f"{self._run.checkpoints}"
                )
        if any(alarm.action == "rollback" for alarm in fired):
            self._checkpoints.roll_back(self._sync, output)

    def update(self, groups: Sequence[TrajectoryGroup]) -> UpdateResult:
        """One step: advantages, loss, optimizer, new weights for the sampler. Counts as a step even when skipped.

        Every process gives the same groups. Metrics are those of docs/metrics.md but for rewards and episodes;
        `optim/skipped` is 1 when nothing was learned: all groups had zero variance, or loss or gradient was not finite.
        Updates after `train.steps` keep the final learning rate; ConfigError, before anything changes, where that is 0.
        """
        train = self.config.train
        if self.step >= train.steps and learning_rate_at(self.step, train) == 0.0:
            raise ConfigError(
                f"update {self.step + 1} would learn nothing: train.steps is {train.steps}, after which the learning "
                "rate is 0; set train.steps to the number of updates, or train.final_learning_rate above 0"
            )
        result = self._updater.update(groups, step=self.step, rate_factor=self._state.rate_factor)
        self._state.step += 1
        return replace(result, metrics=result.metrics | self._sync.sync_weights(self.step))

    def evaluate(self, temperature: float) -> EvalResult:
        """Run one episode of every held-out task at `temperature` (0 is greedy) and write `eval/step_*_t*.json`."""
        return self._evaluation.evaluate(self.step, temperature)

    def save_checkpoint(self) -> None:
        """Save the weights and everything needed to continue from the last whole step, unless that was done.

        Every process calls it.
        """
        self._checkpoints.save()

    def _evaluate_if_due(self, output: RunOutput) -> None:
        for temperature in self._evaluation.due(self.step):
            result = self._evaluation.run(self.step, temperature, output, self._events)
            # A resumed run skips this evaluation, and prompts cached by it would change the last digits after it.
            self._sync.reset_prefix_cache(self.step)
            if self._on_evaluation is not None:
                self._on_evaluation(result)
        self._checkpoints.add_score()

    def _checkpoint_if_due(self) -> None:
        every, is_reached = self.config.checkpoint.every, self._evaluation.is_reached(self.step)
        if self.step >= self.config.train.steps or is_reached or (every and self.step % every == 0):
            self.save_checkpoint()


def _tell_nobody(_step: int, _metrics: Mapping[str, float]) -> None: ...
