"""What `by_rewards.py` can study: which tasks are new to a model, which it knows, and what demonstrations show it.

`combinations`: the shipped trained model, and combinations of operations that neither its demonstrations nor its
training tasks had. `repairs`: the shipped model of any wording, which was shown repairs, and other classes of faults.

Not here: what is done with them.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from racing.commands import agent_rl_command

from agent_rl.data.tasks import read_tasks, write_tasks
from agent_rl.envs.nat.factory.generate import STARTER_FAMILIES, STARTER_LEVELS, generate_specs
from agent_rl.envs.nat.factory.task_sets import with_telling_inputs
from agent_rl.envs.nat.judge.parse import parse_spec
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.repair.faults import HELD_OUT, SHOWN
from agent_rl.envs.nat.repair.generate import repair_tasks, starter_specs
from agent_rl.envs.nat.repair.task import NATTask

ROOT = Path(__file__).resolve().parents[2]
STARTER_TEST = ROOT / "dataset/nat_tasks/starter/test_generalisation.jsonl"
NUM_RECORDED = 3200
RECORDED, WIDER = "recorded", "recorded_wider"
RECORDED_SHARE = 0.9
"""The rest are projects that are written from nothing."""
RECORDED_SEED = 5


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of tasks, and the seed of all of them."""

    train: int
    tune: int
    test: int
    seed: int


class Study(Protocol):
    """One of them."""

    base: Path
    """The model that all sides begin with."""
    config: Path
    new: str
    known: str
    wider: str
    """What demonstrations of a wider kind show; empty where there are none."""

    def make(self, folder: Path, sizes: Sizes) -> None:
        """Write `train`, `tune`, `test` and, where the configuration's own tasks are not known ones, `known`."""

    def demonstrations(self, folder: Path, is_wider: bool) -> list[str]:
        """Options of `agent-rl sft`, which shows what the model was shown before, or more; `folder` as for `make`.

        Files that they name are written by the first call.
        """


class Combinations:
    """Combinations of operations that are held out; the shipped test file is their test."""

    base = ROOT / "model/nat_minimind_grpo"
    config = ROOT / "configs/nat_grpo.yaml"
    new, known, wider = "new combinations", "known combinations", ""

    def make(self, folder: Path, sizes: Sizes) -> None:
        test = list(read_tasks(STARTER_TEST))
        tested = {parse_spec(row, str(STARTER_TEST)).fingerprint for row in test}
        stream = generate_specs(
            sizes.seed, ["test_generalisation"], families=STARTER_FAMILIES, levels=STARTER_LEVELS, terse=True
        )
        fresh = (spec for spec in stream if spec.fingerprint not in tested)
        specs = with_telling_inputs(list(itertools.islice(fresh, sizes.train + sizes.tune)))
        rows = iter([spec.model_dump(mode="json") for spec in specs])
        _write(folder, {"train": itertools.islice(rows, sizes.train), "tune": rows, "test": test[: sizes.test]})

    def demonstrations(self, folder: Path, is_wider: bool) -> list[str]:
        return []


class Repairs:
    """Faults of classes that neither demonstrations nor training tasks have, each proven by the toolkit."""

    base = ROOT / "model/nat_minimind_words"
    config = ROOT / "configs/nat_repair_grpo.yaml"
    new, known, wider = "new kinds of faults", "known kinds of faults", "small edits among the faults"

    def make(self, folder: Path, sizes: Sizes) -> None:
        splits = {"train": "train", "tune": "train", "test": "val", "known": "train"}
        specs = {split: starter_specs(sizes.seed, [split]) for split in ("train", "val")}
        counts = {"train": sizes.train, "tune": sizes.tune, "test": sizes.test, "known": sizes.train}
        made: dict[str, list[Mapping[str, object]]] = {}
        with NatToolkit.open(processes=2) as toolkit:
            for name, count in counts.items():
                classes = SHOWN if name == "known" else HELD_OUT
                tasks: Iterable[NATTask] = repair_tasks(toolkit, sizes.seed, specs[splits[name]], classes)
                made[name] = [task.to_row() for task in itertools.islice(tasks, count)]
        _write(folder, made)

    def demonstrations(self, folder: Path, is_wider: bool) -> list[str]:
        name, edits = (WIDER, "--edits") if is_wider else (RECORDED, "--no-edits")
        recorded = folder / name / "demonstrations.jsonl"
        if not recorded.is_file():  # it takes minutes, and not every study asks for these
            words = ["prepare-dataset", "--kind", "demonstrations", "--num-samples", str(NUM_RECORDED), edits]
            words += ["--seed", str(RECORDED_SEED), "--output-dir", str(recorded.parent)]
            agent_rl_command(*words, log=folder / "recorded.log")
        shown = ["--wordings", "any", "--names-apart"]
        return [*shown, "--recorded", str(recorded), "--recorded-share", str(RECORDED_SHARE)]


def _write(folder: Path, sets: Mapping[str, Iterable[Mapping[str, object]]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in sets.items():
        write_tasks(folder / f"{name}.jsonl", list(rows))


STUDIES: dict[str, Study] = {"combinations": Combinations(), "repairs": Repairs()}
