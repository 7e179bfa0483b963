"""The raced tasks: rows for training and evaluation, and demonstrations for the warm start, from a seed.

None is a task of this project: reverse-text as prime-rl has it, Countdown as TinyZero has it, any data set of Reasoning
Gym. Not here: how replies are scored (`rewards.py`).
"""

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.data.tasks import write_tasks
from agent_rl.envs.foreign.common import import_package
from agent_rl.envs.foreign.harmless import RUN_AS_PYTHON
from agent_rl.envs.foreign.reasoning_gym import PROMPT, make_reasoning_gym_factory
from agent_rl.errors import ConfigError, nearest_or_all

Row = dict[str, Any]
REASONING_GYM = "reasoning_gym:"
REVERSE = "Reverse the text character-by-character. Put your answer in <reversed_text> tags."
EQUATION = (
    "Using the numbers {numbers}, create an equation that equals {target}. You can use basic operations (+, -, *, /) "
    "and each number can only be used once. Return the final equation in <answer> </answer> tags, for example "
    "<answer> (1 + 2) / 3 </answer>."
)
SPLITS = ("eval", "train", "demonstrations")
"""In this order: a question is in one of them."""
_MAX_TEXT = 24
_MAX_TARGET = 100
_MAX_TRIES = 50
"""For each question that is wanted, before a task is said to have too few."""


@dataclass(frozen=True, kw_only=True)
class RaceTask:
    """How long prompts and replies get, in bytes and so at most in tokens, and which function scores a reply."""

    name: str
    reward: str
    max_new_tokens: int
    max_context: int

    @property
    def slug(self) -> str:
        """The name as part of a path."""
        return self.name.replace(":", "-")


def find_task(name: str) -> RaceTask:
    """ConfigError for a name that is no task."""
    if name == "reverse_text":
        return RaceTask(name=name, reward="racing.rewards:reverse_text", max_new_tokens=64, max_context=256)
    if name == "countdown":
        return RaceTask(name=name, reward="racing.rewards:countdown", max_new_tokens=64, max_context=384)
    if name.startswith(REASONING_GYM):
        if (inner := name.removeprefix(REASONING_GYM)) in RUN_AS_PYTHON:
            raise ConfigError(f"--tasks {name}: the scorer of {inner} runs answers as Python; choose another data set")
        return RaceTask(name=name, reward="racing.rewards:reasoning_gym", max_new_tokens=96, max_context=1024)
    known = ("reverse_text", "countdown")
    raise ConfigError(f"--tasks {name!r} is no task{nearest_or_all(name, known)}; or give {REASONING_GYM}DATA_SET")


def write_rows(task: RaceTask, folder: Path, counts: dict[str, int], seed: int) -> None:
    """`train.jsonl`, `eval.jsonl` and `demonstrations.jsonl`, the last as conversations for `agent-rl sft --data`."""
    for split, rows in make_rows(task, counts, seed).items():
        folder.mkdir(parents=True, exist_ok=True)
        write_tasks(folder / f"{split}.jsonl", rows)


def make_rows(task: RaceTask, counts: dict[str, int], seed: int) -> dict[str, list[Row]]:
    """Rows by split, as many as `counts` says; no question is in two of them. ConfigError where there are too few."""
    if task.name.startswith(REASONING_GYM):
        pairs = _questions_of(task.name.removeprefix(REASONING_GYM), sum(counts.values()), seed)
    else:
        made = {"reverse_text": _texts, "countdown": _equations}[task.name](random.Random(f"{task.name} {seed}"))
        pairs = _unique(itertools.islice(made, _MAX_TRIES * sum(counts.values())))
    found = {}
    for split in SPLITS:
        taken = list(itertools.islice(pairs, counts[split]))
        if len(taken) < counts[split]:
            raise ConfigError(f"--tasks {task.name}: has {len(taken)} questions for {split}, wanted {counts[split]}")
        found[split] = [_as_row(f"{task.slug}-{split}-{n:05d}", *pair, split=split) for n, pair in enumerate(taken)]
    return found


def _as_row(task_id: str, row: Row, reply: str, *, split: str) -> Row:
    if split != "demonstrations":
        return {"task_id": task_id, **row}
    return {"task_id": task_id, "messages": [*row["prompt"], {"role": "assistant", "content": reply}]}


def _unique(pairs: Iterator[tuple[Row, str]]) -> Iterator[tuple[Row, str]]:
    seen: set[str] = set()
    for row, reply in pairs:
        if (key := json.dumps(row, sort_keys=True)) not in seen:
            seen.add(key)
            yield row, reply


def _texts(choose: random.Random) -> Iterator[tuple[Row, str]]:
    """One to three words in a row of the novel that Reasoning Gym ships, as they stand there."""
    words = import_package("reasoning_gym.data", "reasoning-gym").read_data_file("in_the_year_2889.txt").split()
    while True:
        length = choose.randint(1, 3)
        start = choose.randrange(len(words) - length)
        text = " ".join(words[start : start + length])
        if len(text) <= _MAX_TEXT and text.isascii() and "<" not in text:
            messages = [{"role": "system", "content": REVERSE}, {"role": "user", "content": text}]
            yield {"prompt": messages, "answer": text[::-1]}, f"<reversed_text>{text[::-1]}</reversed_text>"


def _equations(choose: random.Random) -> Iterator[tuple[Row, str]]:
    """Three numbers and a target that an equation of them reaches."""
    while True:
        numbers = [choose.randint(1, 20) for _ in range(3)]
        a, b, c = choose.sample(numbers, 3)
        first, second = choose.choice("+-*"), choose.choice("+-*")
        equation = f"({a} {first} {b}) {second} {c}"
        inner = _applied(first, a, b)
        target = _applied(second, inner, c)
        if 0 < target <= _MAX_TARGET:
            numbers.sort()
            question = EQUATION.format(numbers=numbers, target=target)
            row = {"prompt": [{"role": "user", "content": question}], "numbers": numbers, "target": target}
            yield row, f"<answer> {equation} </answer>"


def _applied(operation: str, left: int, right: int) -> int:
    return {"+": left + right, "-": left - right, "*": left * right}[operation]


def _questions_of(dataset: str, count: int, seed: int) -> Iterator[tuple[Row, str]]:
    factory = make_reasoning_gym_factory({"dataset": dataset}, seed)
    name = json.dumps([dataset, {}])
    for task in factory.task_files(seed, count, 1)["train"]:
        if task["answer"] is None:
            raise ConfigError(
                f"--tasks {REASONING_GYM}{dataset}: gives no answers to show in a warm start; choose another"
            )
        messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": task["question"]}]
        row = {"prompt": messages, "dataset": name, "entry": repr(factory.entry(task))}
        yield row, f"Answer: {task['answer']}"
