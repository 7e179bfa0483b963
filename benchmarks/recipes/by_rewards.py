"""What a model learns from rewards alone that no demonstration showed it, beside other methods in equal minutes:
`python benchmarks/recipes/by_rewards.py combinations --output-dir runs/combinations` (or `repairs`; `studies.py`).

Reinforcement learning trains on tasks that are new to the model, and for as many steps on tasks of the kinds that it
knows; rejection sampling trains on its own successes at the same new tasks; supervised learning goes on with the
teacher's demonstrations, which have nothing new, and where there are demonstrations of a wider kind, which have nothing
new either, with these. All but the first two have the minutes of the first side's steps, seed by seed.
Every result is evaluated on held-out tasks of the new kinds, greedily and at temperature 1; the model that all begin
with has `--samples` episodes a task, for its pass@k.

`--tune` instead tries the settings of the two controls on new tasks apart from these, with the first seed, for those of
`--sides`; `--rounds`, `--rejection-rate` and `--demonstrations-rate` are what it finds. Rewards have other settings in
another `--output-dir`, as they set everyone's minutes. The same command goes on where it was stopped.

Not here: the tasks (`studies.py`); what the methods do (`controls.py`, `agent-rl train`, `agent-rl sft`).
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # run by its path: the package, and this folder's parent
    sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from over_seeds import TEMPERATURES, episodes_of
from over_seeds import table as table_over_seeds
from pass_at_k import table as table_of_k
from racing.commands import agent_rl_command, keep_settings, start
from recipes.studies import ROOT, STUDIES, Sizes

from agent_rl.data.tasks import read_tasks
from agent_rl.errors import UserError
from agent_rl.reports.episodes import Episode
from agent_rl.reports.run.data import read_run
from agent_rl.reports.summary import percent, success_of
from agent_rl.telemetry.files import write_json

NEW, KNOWN, REJECTION, DEMONSTRATIONS, WIDER = SIDES = ("new", "known", "rejection", "demonstrations", "wider")
FIXED = ("study", "steps", "num_train", "num_tune", "num_test", "data_seed", "samples", "overrides")
"""What must stay as it was when a study goes on; sides and seeds may become more."""
BEFORE = "the model before"
TRAINED, MADE = "trained.json", "made"
PACE_DEMONSTRATIONS = (64, 320)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("study", choices=list(STUDIES))
    add("--output-dir", type=lambda path: Path(path).resolve(), required=True)
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add("--sides", nargs="+", choices=SIDES, default=SIDES, metavar="SIDE", help=", ".join(SIDES))
    add("--steps", type=int, default=60, help="of reinforcement learning")
    add("--num-train", type=int, default=560, help="new tasks to train on")
    add("--num-tune", type=int, default=100, help="new tasks for --tune")
    add("--num-test", type=int, default=300, help="new tasks to evaluate on")
    add("--data-seed", type=int, default=4, help="of the new tasks")
    add("--samples", type=int, default=8, help="episodes a task of the model that all begin with, at temperature 1")
    add("--tune", action="store_true")
    add("--tune-rounds", type=int, nargs="+", default=[1, 3], metavar="N", help="of rejection sampling, with --tune")
    add("--tune-rates", type=float, nargs="+", default=[2.5e-4, 1e-3, 4e-3], metavar="RATE", help="with --tune")
    add("--rounds", type=int, default=1, help="of rejection sampling")
    add("--rejection-rate", type=float, default=1e-3)
    add("--demonstrations-rate", type=float, default=1e-3)
    add("overrides", nargs="*", help="section.key=value for reinforcement learning and evaluations")
    study = ByRewards(parser.parse_intermixed_args(words))
    print(study.tuned() if study.options.tune else study.compared())


class ByRewards:
    """A study's folder, and what is done in it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder: Path = options.output_dir
        self.data = self.folder / "data"
        self.study = STUDIES[options.study]
        self.names = {
            NEW: f"rewards, {self.study.new}",
            KNOWN: f"rewards, {self.study.known}",
            REJECTION: f"rejection sampling, {self.study.new}",
            DEMONSTRATIONS: "more demonstrations",
            WIDER: f"demonstrations with {self.study.wider}",
        }
        keep_settings(self.folder, {name: getattr(options, name) for name in FIXED})
        self._make_tasks()

    def compared(self) -> str:
        """Train and evaluate all sides; the tables."""
        base = self.folder / "base"
        self._evaluate(self.study.base, base, self._tasks("test"), samples=self.options.samples)
        sides = dict.fromkeys((NEW, *self.options.sides))  # the minutes of the others are those of the first
        if not self.study.wider:
            sides.pop(WIDER, None)
        folders: dict[str, list[Path]] = {side: [] for side in sides}
        for seed in self.options.seeds:
            for side in sides:
                folder, model = self._train(side, seed)
                self._evaluate(model, folder, self._tasks("test"))
                folders[side].append(folder)
        named = {self.names[side]: each for side, each in folders.items()}
        first = {BEFORE: [base] * len(self.options.seeds)}
        reach = {
            name: tuple(episodes_of(each, t) for t in TEMPERATURES) for name, each in ({BEFORE: [base]} | named).items()
        }
        minutes = [f"{name}: {', '.join(f'{_minutes(each):.1f}' for each in group)}" for name, group in named.items()]
        tables = [table_over_seeds(first | named), table_over_seeds(named), table_of_k(reach)]
        faults = {row["task_id"]: row["fault"] for row in read_tasks(self._tasks("test")) if "fault" in row}
        if faults:
            tables.append(table_by_fault(reach, faults))
        return "\n\n".join([*tables, f"minutes by seed: {'; '.join(minutes)}"])

    def tuned(self) -> str:
        """Try the controls' settings on the tasks for tuning; a line for each, and one for rewards as they are."""
        given = self.options
        tries: list[tuple[str, float | None, int | None]] = [(NEW, None, None)]
        tries += [(REJECTION, rate, rounds) for rate in given.tune_rates for rounds in given.tune_rounds]
        tries += [(DEMONSTRATIONS, rate, None) for rate in given.tune_rates]
        lines = ["| | rate | rounds | solved %, T=0 | T=1 |", "| --- " * 5 + "|"]
        for side, rate, rounds in tries:
            if side not in {NEW, *given.sides}:
                continue
            folder, model = self._train(side, given.seeds[0], rate, rounds)
            self._evaluate(model, folder / "tune", self._tasks("tune"))
            rates = [percent(success_of(episodes_of([folder / "tune"], t))) for t in TEMPERATURES]
            cells = [self.names[side], f"{rate:g}" if rate else "", str(rounds or ""), *rates]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)

    def _make_tasks(self) -> None:
        if (self.data / MADE).is_file():
            return
        given = self.options
        self.study.make(self.data, Sizes(given.num_train, given.num_tune, given.num_test, given.data_seed))
        (self.data / MADE).touch()

    def _tasks(self, name: str) -> Path:
        return self.data / f"{name}.jsonl"

    def _train(self, side: str, seed: int, rate: float | None = None, rounds: int | None = None) -> tuple[Path, Path]:
        """The folder of one side and seed and the model in it, trained unless it is there."""
        if side in (NEW, KNOWN):
            name, made = f"{side}-{seed}", f"checkpoints/step_{self.options.steps:05d}"
            train = partial(self._reinforce, side, seed)
        elif side == REJECTION:
            rate, rounds = rate or self.options.rejection_rate, rounds or self.options.rounds
            name, made = f"{side}-{rate:g}-{rounds}-{seed}", "model"
            train = partial(self._reject, seed, rate, rounds)
        else:
            rate = rate or self.options.demonstrations_rate
            name, made = f"{side}-{rate:g}-{seed}", "model"
            train = partial(self._demonstrate, side, seed, rate)
        folder = self.folder / name
        if not (folder / TRAINED).is_file():
            shutil.rmtree(folder / "model", ignore_errors=True)  # minutes cannot be continued
            if side in (DEMONSTRATIONS, WIDER):
                self.study.demonstrations(self.data, side == WIDER)  # what it has to write does not count as minutes
            started = time.monotonic()
            train(folder)
            write_json(folder / TRAINED, {"minutes": (time.monotonic() - started) / 60})
        return folder, folder / made

    def _reinforce(self, side: str, seed: int, folder: Path) -> None:
        path = self._tasks("train" if side == NEW else "known")
        tasks = [f"data.train_path={path}"] if path.is_file() else []  # else those of the configuration
        settings = [f"run.output_dir={folder.parent}", f"run.name={folder.name}", f"run.seed={seed}", *tasks]
        settings += [f"model.path={self.study.base}", f"train.steps={self.options.steps}", "eval.temperatures=[]"]
        settings += ["checkpoint.resume=auto", "checkpoint.keep=1", "log.trackers=[]", *self.options.overrides]
        agent_rl_command("train", "--config", str(self.study.config), *settings, log=folder / "output.log")

    def _reject(self, seed: int, rate: float, rounds: int, folder: Path) -> None:
        script = str(ROOT / "benchmarks/controls.py")
        settings = [f"model.path={self.study.base}", f"data.train_path={self._tasks('train')}", *self.options.overrides]
        words = ["--minutes", str(self._limit(seed)), "--rounds", str(rounds), "--learning-rate", str(rate)]
        words += ["--config", str(self.study.config), "--output-dir", str(folder), f"run.seed={seed}"]
        start([sys.executable, script, REJECTION, *words, *settings], log=folder / "output.log")

    def _demonstrate(self, side: str, seed: int, rate: float, folder: Path) -> None:
        """As many demonstrations as the minutes take at the pace of a first few."""
        shown = self.study.demonstrations(self.data, side == WIDER)
        few, more = PACE_DEMONSTRATIONS
        short, long = (self._seconds_of(num, seed, rate, shown) for num in PACE_DEMONSTRATIONS)
        left = 60 * self._limit(seed) - short
        num = max(few, few + int(left * (more - few) / (long - short)))
        self._sft(num, seed, rate, shown, folder)

    def _seconds_of(self, num: int, seed: int, rate: float, shown: list[str]) -> float:
        started = time.monotonic()
        self._sft(num, seed, rate, shown, self.folder / f"pace/{num}-{time.time_ns()}")
        return time.monotonic() - started

    def _sft(self, num: int, seed: int, rate: float, shown: list[str], folder: Path) -> None:
        # the seeds of the warm start's own stages are small numbers
        words = ["sft", "--init-from", str(self.study.base), "--faulty-share", "0", "--seed", str(100 + seed)]
        words += ["--num-demonstrations", str(num), "--learning-rate", str(rate), *shown]
        words += ["--muon-learning-rate", str(10 * rate), "--output-dir", str(folder / "model")]
        agent_rl_command(*words, log=folder / "output.log")

    def _limit(self, seed: int) -> float:
        """Minutes of the steps on new combinations, loading and checkpoints aside."""
        return read_run(self.folder / f"{NEW}-{seed}").wall_s / 60

    def _evaluate(self, checkpoint: Path, folder: Path, tasks: Path, samples: int = 1) -> None:
        for temperature in TEMPERATURES:
            target = folder / f"t{temperature}"
            if (target / "report.json").is_file():
                continue
            words = ["eval", "--config", str(self.study.config), "--checkpoint", str(checkpoint), "--tasks", str(tasks)]
            words += ["--max-tasks", str(max(self.options.num_test, self.options.num_tune))]  # all, whatever the config
            words += ["--temperature", str(temperature), "--samples", str(samples if temperature else 1)]
            agent_rl_command(*words, "--output-dir", str(target), *self.options.overrides, log=folder / "output.log")


def table_by_fault(sides: Mapping[str, Sequence[Sequence[Episode]]], faults: Mapping[str, str]) -> str:
    """Markdown of `sides`, name -> greedy and sampled episodes: how many are solved, by the fault of their task."""
    classes = sorted(set(faults.values()))
    lines = [f"| solved, T=0; T=1 | {' | '.join(classes)} |", "| --- " * (1 + len(classes)) + "|"]
    for name, both in sides.items():
        counts = []
        for each in classes:
            groups = [[e.is_success for e in episodes if faults[e.task_id] == each] for episodes in both]
            counts.append("; ".join(f"{sum(group)} of {len(group)}" for group in groups))
        lines.append(f"| {name} | {' | '.join(counts)} |")
    return "\n".join(lines)


def _minutes(folder: Path) -> float:
    return json.loads((folder / TRAINED).read_bytes())["minutes"]


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"by_rewards: {error}", file=sys.stderr)
        raise SystemExit(2) from None
