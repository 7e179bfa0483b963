"""Evaluate a checkpoint or any model on a task file: success with intervals, failure modes, a page to read.

    python agent_rl/scripts/evaluate_model.py --config runs/nat_grpo/config.yaml \\
        --checkpoint runs/nat_grpo/checkpoints/step_00080 --output-dir runs/eval
    python agent_rl/scripts/evaluate_model.py --config configs/math_grpo.yaml --samples 8 --temperature 1 \\
        --output-dir runs/eval_math --baseline model/math_minimind
    python agent_rl/scripts/evaluate_model.py --config runs/nat_grpo/config.yaml --every-checkpoint \\
        --checkpoint runs/nat_grpo --output-dir runs/eval_all
    python agent_rl/scripts/evaluate_model.py --config my_7b.yaml --served --output-dir runs/eval_7b \\
        policy.type=vllm vllm.servers=[http://127.0.0.1:8000]

With the config of a run (runs/NAME/config.yaml), one sample per task uses the same seeds as the run's own evaluation.
Several models, or every checkpoint of a run, are evaluated alike one after the other and set side by side.
Episodes are saved as they end: after Ctrl-C the same command continues, and tasks whose environment failed run again.
Anything of the form section.key=value overrides the config file.
"""

import sys

if __name__ == "__main__":  # run by its path, where the package need not be installed
    sys.path.insert(0, __file__.rpartition("/agent_rl/")[0])

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_rl.errors import ConfigError
from agent_rl.scripts.common import as_override, finite, make_app, read_config, run_app
from agent_rl.telemetry.error_file import ErrorFile
from agent_rl.telemetry.files import make_folder, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent_rl.config import Config
    from agent_rl.core.checkpoint_policy import PolicySource
    from agent_rl.data.tasks import Task
    from agent_rl.envs.base import EnvFactory
    from agent_rl.failures import FailedCall
    from agent_rl.reports.episodes import Episode
    from agent_rl.reports.evaluation import EvaluationFolder, Settings


def main(
    config: Annotated[Path, typer.Option(help="YAML file with the whole configuration.")],
    output_dir: Annotated[Path, typer.Option(help="Folder of this evaluation; one that was stopped is continued.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value, applied in order.")] = None,
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            help="Checkpoint of a run, any model, or openai:MODEL@ADDRESS; default: model.path. Given several times, "
            "all are evaluated alike."
        ),
    ] = None,
    every_checkpoint: Annotated[
        bool, typer.Option("--every-checkpoint", help="Each --checkpoint is a run: evaluate all of its checkpoints.")
    ] = False,
    tasks: Annotated[Path | None, typer.Option(help="Task file; default: data.eval_path.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Episodes of every task.")] = 1,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, callback=finite, help="0 is greedy; default: 0 for one sample, else policy.temperature."),
    ] = None,
    max_tasks: Annotated[
        int | None, typer.Option(min=1, help="Tasks from the top of the file; default: data.max_eval_tasks.")
    ] = None,
    task_timeout: Annotated[
        float | None,
        typer.Option(min=0.001, callback=finite, help="Seconds of one episode; default: rollout.episode_timeout_s."),
    ] = None,
    baseline: Annotated[str | None, typer.Option(help="Another model, evaluated alike and compared with.")] = None,
    compare: Annotated[Path | None, typer.Option(help="Folder of an earlier evaluation to compare with.")] = None,
    blank_answers: Annotated[
        bool, typer.Option("--blank-answers", help="A control: tools answer nothing that the model could use.")
    ] = False,
    served: Annotated[
        bool, typer.Option("--served", help="Sample from vllm.servers with the weights they have; no model is read.")
    ] = False,
) -> None:
    models = models_of(checkpoint or [], every=every_checkpoint)
    _refuse_what_contradicts(models, baseline=baseline, compare=compare, served=served)
    from agent_rl.envs.blank_answers import BlankAnswersFactory
    from agent_rl.envs.opening import open_environment

    flags = {"data.eval_path": tasks, "data.max_eval_tasks": max_tasks, "rollout.episode_timeout_s": task_timeout}
    given = [as_override(key, value) for key, value in flags.items() if value is not None]
    resolved = read_config(config, [*given, *(overrides or [])])
    if temperature is None:
        temperature = 0.0 if samples == 1 else resolved.policy.temperature
    if samples > 1 and temperature == 0.0:
        raise ConfigError(f"--samples {samples} at temperature 0 would all be the same; give a temperature above 0")
    make_folder(output_dir, "--output-dir")
    with open_environment(resolved) as opened:
        factory = BlankAnswersFactory(opened) if blank_answers else opened
        evaluation = EvaluationCommand(resolved, factory, samples=samples, temperature=temperature, served=served)
        try:
            evaluation.run(
                output_dir, models, is_table=every_checkpoint or len(models) > 1, baseline=baseline, compare=compare
            )
        except KeyboardInterrupt:
            print(f"\nThe finished episodes are in {output_dir}; the same command continues from there", flush=True)
            raise


def _refuse_what_contradicts(
    models: "Sequence[str | None]", *, baseline: str | None, compare: Path | None, served: bool
) -> None:
    if baseline is not None and compare is not None:
        raise ConfigError("--baseline and --compare both name what to compare with; give one of them")
    if baseline is not None and served:
        raise ConfigError("--served evaluates the one model that servers have; evaluate the other, then give --compare")
    if len(models) > 1 and served:
        raise ConfigError(
            f"--served evaluates the one model that servers have, not {len(models)}; give one --checkpoint"
        )


def models_of(given: "Sequence[str]", *, every: bool) -> list[str | None]:
    """The models that `--checkpoint` names, None for `model.path`; with `every` all checkpoints of those runs.

    ConfigError for one that is given twice, and CheckpointError for a folder without checkpoints.
    """
    found = list(given)
    if every:
        from agent_rl.policies.model_source import every_checkpoint

        if not given:
            raise ConfigError("--every-checkpoint needs a run; add --checkpoint RUN, the folder of the run")
        found = [path for name in given for path in every_checkpoint(name)]
    places = [os.path.realpath(name) for name in found]
    if twice := [name for number, name in enumerate(found) if places[number] in places[:number]]:
        raise ConfigError(f"--checkpoint names {twice[0]} twice; name each model once")
    return [*found] or [None]


class EvaluationCommand:
    """One configuration, its tasks and its environments, for one model or several."""

    def __init__(
        self, config: "Config", factory: "EnvFactory", *, samples: int, temperature: float, served: bool
    ) -> None:
        """Read the tasks; nothing is started or loaded. UserError for anything the user can fix."""
        from agent_rl.envs.failure_modes import FailureModes

        self.config = config
        self.samples = samples
        self.temperature = temperature
        self.served = served
        self.factory = factory
        self.failures = FailureModes(factory.failure_rules)
        every = factory.read_tasks(config.data, "eval")
        self.tasks: list[Task] = every[: config.data.max_eval_tasks]
        self.num_left_out = len(every) - len(self.tasks)
        self._is_started = False
        self._differences: set[str] = set()

    def run(
        self,
        output: Path,
        given: "Sequence[str | None]",
        *,
        is_table: bool,
        baseline: str | None,
        compare: Path | None,
    ) -> None:
        """Evaluate each, compare, write everything and print the tables; `is_table`: one table of all models.

        A table's evaluations are in `output/models/NAME/`.
        """
        from agent_rl.reports.evaluation import EvaluationFolder, check_comparable
        from agent_rl.reports.models import labels_of

        if self.num_left_out:
            print(
                f"the first {len(self.tasks)} of {len(self.tasks) + self.num_left_out} tasks; --max-tasks, or else "
                "data.max_eval_tasks, says how many"
            )
        models = [self._prepare(each) for each in given]
        labels = labels_of([model.name for model, _ in models])
        paths = [output / "models" / label for label in labels] if is_table else [output]
        EvaluationFolder(output).check_place()
        with ExitStack() as locks:
            locks.enter_context(EvaluationFolder(output).locked())
            for path, (_, settings) in zip(paths, models, strict=True):
                EvaluationFolder(path).check(settings)
            other = EvaluationFolder(compare or output / "baseline")
            base = None if baseline is None else self._prepare(baseline)
            # Anything wrong with the other model is an error before any episode runs.
            if base is not None:
                other.check(base[1])
            if compare is not None:
                check_comparable(models[0][1], other.settings(), str(compare))
                other.episodes()
            folders = [EvaluationFolder(path) for path in paths]
            written = [*(folders if is_table else ()), *([other] if base is not None else ())]
            for folder in written:  # each may be the --output-dir of another command
                make_folder(folder.path, "--output-dir")
                locks.enter_context(folder.locked())
            if base is not None:
                print(f"Baseline {baseline}:", flush=True)
                self._evaluate(*base, other)
            name = baseline or (None if compare is None else str(compare))
            against = _Against(folder=other, name=name) if name else None
            if is_table:
                self._evaluate_all(output, dict(zip(labels, models, strict=True)), folders, against)
            else:
                self._report(self._evaluate(*models[0], folders[0]), folders[0], against)

    def _evaluate_all(
        self,
        output: Path,
        models: "dict[str, tuple[PolicySource, Settings]]",
        folders: "Sequence[EvaluationFolder]",
        against: "_Against | None",
    ) -> None:
        """Evaluate models by their labels; the files of the table hold those that have ended, after each of them."""
        from agent_rl.reports.evaluation import EvaluationFolder
        from agent_rl.reports.models import EvaluatedModel, one_line, print_models, write_models

        table, done = EvaluationFolder(output), []
        try:
            for number, ((label, (model, settings)), folder) in enumerate(zip(models.items(), folders, strict=True), 1):
                print(f"{label}, {number} of {len(models)}: {model.name}", flush=True)
                episodes = self._evaluate(model, settings, folder)
                report = self._report(episodes, folder, against, is_printed=False)
                short = [replace(episode, messages=()) for episode in episodes]
                done.append(EvaluatedModel(label=label, source=model, report=report, episodes=short))
                write_models(table, done, num_models=len(models))
                print(one_line(done[-1]), flush=True)
        finally:
            if done:
                print_models(table, done)

    def _report(
        self,
        episodes: "Sequence[Episode]",
        folder: "EvaluationFolder",
        against: "_Against | None",
        *,
        is_printed: bool = True,
    ) -> dict[str, Any]:
        from agent_rl.reports.evaluation import write_report

        baseline, name = (against.folder, against.name) if against else (None, None)
        return write_report(folder, episodes, self.factory, baseline=baseline, name=name, is_printed=is_printed)

    def _prepare(self, given: str | None) -> "tuple[PolicySource, Settings]":
        from agent_rl.core.checkpoint_policy import PolicySource
        from agent_rl.reports.evaluation import difference_from_run, make_settings

        model = PolicySource.find(self.config, given)
        if self.served:
            model.check_servers()
        settings = make_settings(
            model,
            self.factory,
            tasks=self.tasks,
            samples=self.samples,
            temperature=self.temperature,
            served=self.served,
        )
        differs = difference_from_run(model, self.factory)
        if differs is not None and differs not in self._differences:
            self._differences.add(differs)  # checkpoints of one run have the same
            print(f"note: the run of {model.name} had other settings: {differs}", flush=True)
        return model, settings

    def _evaluate(self, model: "PolicySource", settings: "Settings", folder: "EvaluationFolder") -> "list[Episode]":
        """All episodes of a model, which is loaded only if some are missing."""
        from agent_rl.core.evaluation import run_in_chunks, tasks_per_chunk
        from agent_rl.core.run.machine import describe_machine
        from agent_rl.reports.episodes import to_episodes
        from agent_rl.rollout.rollout import make_worker

        records = folder.begin(settings)
        if len(records) == len(self.tasks) * self.samples:
            print(f"{folder.path}: all {len(records)} episodes were run before", flush=True)
            return to_episodes(records, f"{folder.episodes_file}:", self.failures)
        if not self._is_started:
            self.factory.start()
            self._is_started = True
        machine = describe_machine(model.config) | {"env": self.factory.describe()}
        with ExitStack() as opened:
            if self.served:
                policy, weights = opened.enter_context(model.open_served())
                machine["weights"] = weights.sentence
                print(weights.sentence, flush=True)
            else:
                policy = opened.enter_context(model.open(folder.path))
            folder.save("environment.json", write_json, machine)
            records = run_in_chunks(
                make_worker(model.config, policy, self.factory),
                self.tasks,
                records,
                policy=policy,
                samples=self.samples,
                temperature=self.temperature,
                chunk=tasks_per_chunk(self.config.rollout.async_workers, self.samples),
                save=folder.append,
                failed=_Tracebacks(folder.path),
                report=lambda line: print(line, flush=True),
            )
        return to_episodes(records, f"{folder.episodes_file}:", self.failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Against:
    """The finished evaluation that models are compared with."""

    folder: "EvaluationFolder"
    name: str


class _Tracebacks:
    """Writes what code of the user raised to `errors.jsonl`, and tells of that once."""

    def __init__(self, folder: Path) -> None:
        self._file = ErrorFile(folder)
        self._is_told = False

    def __call__(self, failed: "Sequence[FailedCall]") -> None:
        if self._file.add(0, failed) and not self._is_told:
            self._is_told = True
            print(f"tracebacks: {self._file.path}", flush=True)


if __name__ == "__main__":
    run_app(make_app(main))
