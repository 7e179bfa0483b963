"""How generated tasks are divided into sets, and how kinds of tasks take turns. Not here: any kind of task."""

import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from agent_rl.data.tasks import Task
from agent_rl.errors import ConfigError

Split = Literal["train", "eval", "sft"]
"""Trained on, held out, shown in demonstrations."""
Cell = TypeVar("Cell")


def fingerprint(content: Any) -> str:
    """16 hex digits of plain data."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def split_of(fingerprint: str) -> Split:
    """Which set a fingerprint belongs to: 10 % are held out, 30 % are for training, 60 % for demonstrations."""
    bucket = int(fingerprint, 16) % 10
    return "eval" if bucket == 0 else "train" if bucket <= 3 else "sft"


def generate_round_robin(
    domain: str,
    seed: int,
    splits: Sequence[Split],
    cells: Sequence[Cell],
    new_row: Callable[[Cell, random.Random, set[str]], dict[str, Any] | None],
) -> Iterator[Task]:
    """Rows of all cells by turns, with ids; `new_row(cell, rng, seen)` notes in `seen` what it made, and gives None
    where there is nothing new, which ends that cell's turns. It ends with the last cell's."""
    seen: set[str] = set()
    left, index = list(cells), 0
    while left:
        for cell in list(left):
            rng = random.Random(f"{domain}-task-{seed}-{'+'.join(splits)}-{index}")
            row = new_row(cell, rng, seen)
            if row is None:
                left.remove(cell)
                continue
            yield {"task_id": f"{domain}-{splits[0]}-{seed}-{index:05d}", **row}
            index += 1


def take(rows: Iterator[Task], count: int, split: str) -> list[Task]:
    """The first `count` rows; ConfigError, which names the option, when there are not so many."""
    taken = list(itertools.islice(rows, count))
    if len(taken) < count:
        raise ConfigError(f"--num-{split} is {count}, but only {len(taken)} different tasks were found; ask for fewer")
    return taken
