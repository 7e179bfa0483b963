"""TRL against agent_rl: held-out success over the wall time of training, on tasks that are neither's.

    python benchmarks/race.py --minutes 8 --seeds 3 --tasks countdown --output runs/race

Both sides begin with one warm-started folder and have the same prompts, reward function, batch, learning rate and
minutes. A run is a turn: nothing else of the race runs beside it. Checkpoints are saved with the clock standing still,
and evaluated after the run, by one evaluator. The table is in OUTPUT/race.md, all figures in race.json, the plot in
race.svg. The same command goes on where it was stopped: runs that have ended are read, the one that was cut off begins
anew. Tasks: countdown, reverse_text, reasoning_gym:DATA_SET. Models: small, smollm2 (`make smollm2`).
Needs `make setup-trl` and `pip install -r requirements-envs.txt`.

Not here: what the runs do (`racing/run_trl.py`, `racing/run_ours.py`), the time of a single step (`train_step.py`).
"""

import argparse
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from racing.commands import BENCHMARKS, keep_settings, start
from racing.evaluating import episodes_in, evaluate, write_config
from racing.figures import TRL, Result, Turn, summarize, table, turns
from racing.models import MODELS, find_model, warm_start
from racing.plot import save_plot
from racing.tasks import find_task, write_rows
from racing.workload import CHECKPOINTS, CLOCK_FILE, Workload
from stepping.train_step_parts import cpu_seconds

from agent_rl.errors import ConfigError, UserError
from agent_rl.telemetry.files import write_json, write_text

PROGRAMS = {True: "run_trl.py", False: "run_ours.py"}
FIXED = (
    "minutes", "points", "prompts", "group_size", "learning_rate", "num_train", "num_eval", "demonstrations",
    "data_seed", "temperature", "threads", "device",
)  # fmt: skip
"""What must stay as it was when a race goes on; tasks, models and seeds may become more."""


def main(words: Sequence[str] | None = None) -> None:
    options = parse(words)
    race = Race(options)
    for turn in turns(options.tasks, options.models, options.seeds):
        race.run(turn)
        race.report()
    print(race.report())


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--output", type=Path, required=True, help="folder of the race")
    add("--tasks", nargs="+", default=["countdown"], metavar="TASK")
    add("--models", nargs="+", default=["small"], metavar="MODEL", help=", ".join(MODELS))
    add("--seeds", type=int, default=3, help="runs of each side, with the seeds 0, 1, ...")
    add("--minutes", type=float, default=10.0, help="wall time of each training")
    add("--points", type=int, default=8, help="checkpoints over that time")
    add("--prompts", type=int, default=8, help="prompts of a step")
    add("--group-size", type=int, default=8, help="completions of a prompt")
    add("--learning-rate", type=float, help="of both sides; by default the model's")
    add("--num-train", type=int, default=1000)
    add("--num-eval", type=int, default=200)
    add("--demonstrations", type=int, default=4000, help="conversations of the warm start")
    add("--data-seed", type=int, default=0, help="seed of the rows and of the warm start")
    add("--temperature", type=float, default=1.0, help="of evaluations; training samples at 1, 0 is greedy")
    add("--trl-python", type=Path, default=Path(".venv-trl/bin/python"))
    add("--threads", type=int, default=os.cpu_count())
    add("--device", default="cpu", choices=["cpu", "cuda"])
    return parser.parse_args(words)


class Race:
    """A race's folder, and what is done in it."""

    def __init__(self, options: argparse.Namespace) -> None:
        """UserError for what cannot be raced, before anything runs."""
        self.options = options
        self.folder = options.output.resolve()
        self.tasks = {name: find_task(name) for name in options.tasks}
        self.models = {name: find_model(name) for name in options.models}
        if not options.trl_python.is_file():
            raise ConfigError(f"--trl-python: there is no {options.trl_python}; run `make setup-trl`")
        if not 0.0 <= options.temperature < math.inf:
            raise ConfigError(f"--temperature is {options.temperature}, expected a number from 0 on; give another")
        episodes = options.prompts * options.group_size
        for model in self.models.values():
            rows = min(model.trl_rows, episodes)
            if episodes % rows or rows % options.group_size:
                raise ConfigError(
                    f"--prompts {options.prompts} --group-size {options.group_size}: TRL trains on {rows} episodes of "
                    f"{model.name} at once, which must be whole groups and divide {episodes}; give other numbers"
                )
        keep_settings(self.folder, {name: getattr(options, name) for name in FIXED})

    def run(self, turn: Turn) -> None:
        """Run a turn, evaluate its checkpoints and remove their weights; nothing where that was done before."""
        folder = self._run_folder(turn)
        if (folder / "finished").exists():
            return
        start_model, config = self._start(turn)
        print(f"{turn.task}, {turn.model}, seed {turn.seed}, {turn.side}", flush=True)
        if not (folder / "trained.json").exists():
            shutil.rmtree(folder, ignore_errors=True)  # wall time cannot be continued
            self._train(turn, start_model, folder)
        for checkpoint in sorted((folder / CHECKPOINTS).iterdir()):
            rate = evaluate(config, checkpoint, folder / "evals" / checkpoint.name, self.options.temperature)
            print(f"  {checkpoint.name}: {rate:.1%}", flush=True)
        (folder / "finished").touch()
        shutil.rmtree(folder / CHECKPOINTS)

    def _start(self, turn: Turn) -> tuple[Path, Path]:
        """The folder that both sides begin with, evaluated, and the configuration of evaluations."""
        task, model, options = self.tasks[turn.task], self.models[turn.model], self.options
        data = self.folder / "data" / task.slug
        if not (data / "demonstrations.jsonl").is_file():
            counts = {"eval": options.num_eval, "train": options.num_train, "demonstrations": options.demonstrations}
            write_rows(task, data, counts, options.data_seed)
        folder = self._pair_folder(turn)
        config = write_config(task, model, data, folder / "eval.yaml", num_eval=options.num_eval, device=options.device)
        begun = warm_start(model, task, data, folder / "sft", seed=options.data_seed, device=options.device)
        evaluate(config, begun, folder / "start", options.temperature)
        return begun, config

    def _train(self, turn: Turn, model: Path, folder: Path) -> None:
        task, size, options = self.tasks[turn.task], self.models[turn.model], self.options
        workload = Workload(
            model=str(model),
            policy=size.policy,
            reward=task.reward,
            rows=str(self.folder / "data" / task.slug / "train.jsonl"),
            folder=str(folder),
            seed=turn.seed,
            num_prompts=options.prompts,
            group_size=options.group_size,
            max_new_tokens=task.max_new_tokens,
            max_context=task.max_context,
            learning_rate=size.learning_rate if options.learning_rate is None else options.learning_rate,
            trl_rows=min(size.trl_rows, options.prompts * options.group_size),
            seconds=60 * options.minutes,
            points=options.points,
            device=options.device,
        )
        workload.write(folder / "workload.json")
        is_trl = turn.side == TRL
        python = str(options.trl_python.absolute()) if is_trl else sys.executable
        command = [python, str(BENCHMARKS / "racing" / PROGRAMS[is_trl]), str(folder / "workload.json")]
        before, begun = cpu_seconds(), time.monotonic()
        start(command, log=folder / "output.log", threads=options.threads)
        total_s, ours_s = (now - then for now, then in zip(cpu_seconds(), before, strict=True))
        capacity_s = (os.cpu_count() or 1) * (time.monotonic() - begun)
        write_json(folder / "trained.json", {"others_cpu": max(0.0, total_s - ours_s) / capacity_s})

    def results(self) -> list[Result]:
        """Of all turns that have ended."""
        listed = turns(self.options.tasks, self.options.models, self.options.seeds)
        return [self._result(turn) for turn in listed if (self._run_folder(turn) / "finished").exists()]

    def _result(self, turn: Turn) -> Result:
        folder = self._run_folder(turn)
        rows = [json.loads(line) for line in (folder / CLOCK_FILE).read_text(encoding="utf-8").splitlines()]
        saved = [row for row in rows if row["checkpoint"] is not None]
        begun = _rate_in(self._pair_folder(turn) / "start")
        curve = [(row["seconds"], _rate_in(folder / "evals" / row["checkpoint"])) for row in saved]
        return Result(
            turn=turn,
            curve=((0.0, begun), *curve),
            num_steps=rows[-1]["step"],
            others_cpu=json.loads((folder / "trained.json").read_text(encoding="utf-8"))["others_cpu"],
            final=episodes_in(folder / "evals" / saved[-1]["checkpoint"]),
        )

    def report(self) -> str:
        """Write `race.json`, `race.md` and `race.svg` of what has ended; the table."""
        results = self.results()
        rows = summarize(results)
        settings = json.loads((self.folder / "settings.json").read_text(encoding="utf-8"))
        runs = [{**asdict(r.turn), "curve": r.curve, "steps": r.num_steps, "others_cpu": r.others_cpu} for r in results]
        write_json(self.folder / "race.json", {"settings": settings, "summary": rows, "runs": runs})
        write_text(self.folder / "race.md", (text := table(rows)) + "\n")
        save_plot(results, self.folder / "race.svg")
        return text

    def _pair_folder(self, turn: Turn) -> Path:
        return self.folder / f"{self.tasks[turn.task].slug}-{turn.model}"

    def _run_folder(self, turn: Turn) -> Path:
        return self._pair_folder(turn) / f"{turn.side}-{turn.seed}"


def _rate_in(evaluation: Path) -> float:
    return json.loads((evaluation / "report.json").read_text(encoding="utf-8"))["summary"]["success"]["rate"]


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"race: {error}", file=sys.stderr)
        raise SystemExit(2) from None
