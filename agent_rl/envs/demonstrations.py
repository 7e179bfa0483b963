"""Demonstrations for a supervised warm start: conversations in which a scripted teacher solves a task.

Those whose tools have to be run are recorded in a file, as rows of OpenAI's messages that `agent-rl sft --data` reads
too, and mixed in. Does not: hold any teacher (`demonstrations.py` in an environment's folder).
"""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from agent_rl.agent.message_dicts import read_chat, read_tools, to_dict
from agent_rl.agent.messages import Message, ToolSpec
from agent_rl.data.splits import Split
from agent_rl.data.tasks import Task, read_tasks
from agent_rl.errors import DataError

Turns = list[tuple[Message, tuple[Message, ...]]]
"""Assistant messages, each with the tool replies to it."""


class Demonstration(NamedTuple):
    """One conversation."""

    messages: list[Message]
    """The first ones, as the environment gives them."""
    turns: Turns
    tools: tuple[ToolSpec, ...]
    kind: str = ""
    """The task's family, where the tokenizer has to know what is common to one family alone."""
    unlearned: frozenset[int] = frozenset()
    """Turns that a model reads and does not learn, by number: what a teacher did wrong to show how it is mended."""
    covers: Mapping[str, tuple[str | int, ...]] = {}
    """What it is of, such as `{"families": ("calculator",)}`, for the model's `agent_rl.json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which demonstrations are wanted, where an environment has a choice; the default is what it shows by itself."""

    wordings: Literal["own", "any"] = "own"
    """any: requests in many wordings and with names of any words."""
    free_share: float = 0.0
    """Of those in any wording, those whose opening tells nothing of a plan, and whose request may leave out facts."""
    written: Path | None = None
    """Task file whose requests people wrote, which are among those in any wording."""
    written_share: float = 0.0
    levels: tuple[int, ...] = ()
    families: tuple[str, ...] = ()
    """In turn; one that stands several times is shown more often."""


def to_conversation(shown: Demonstration, task_id: str) -> dict[str, Any]:
    """The row of a file, `covers` where it has them; the messages of turns that are not learned have `weight` 0."""
    messages = [to_dict(message) for message in shown.messages]
    for number, (message, replies) in enumerate(shown.turns):
        weight = {"weight": 0} if number in shown.unlearned else {}
        messages += [to_dict(message) | weight, *map(to_dict, replies)]
    functions = [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in shown.tools
    ]
    tools = [{"type": "function", "function": function} for function in functions]
    covers = {"covers": {name: list(values) for name, values in shown.covers.items()}} if shown.covers else {}
    return {"task_id": task_id, "kind": shown.kind, **covers, "messages": messages, "tools": tools}


def read_demonstrations(path: Path) -> list[Demonstration]:
    """Those of a file that was written from `to_conversation`. DataError, with the row, for what is none."""
    return [_read(row, f"{path}:row {number}") for number, row in enumerate(read_tasks(path), start=1)]


def _read(row: Mapping[str, Any], where: str) -> Demonstration:
    messages, _ = read_chat(row.get("messages"), f"{where}: messages")
    replies = [number for number, message in enumerate(messages) if message.role == "assistant"]
    if not replies or not replies[0]:
        raise DataError(f"{where}: a demonstration is an opening and at least one message of the assistant behind it")
    turns = [(messages[start], messages[start + 1 : end]) for start, end in pairwise([*replies, len(messages)])]
    unlearned = frozenset(turn for turn, at in enumerate(replies) if row["messages"][at].get("weight") == 0)
    tools = read_tools(row.get("tools"), f"{where}: tools")
    return Demonstration(
        list(messages[: replies[0]]),
        turns,
        tools,
        kind=str(row.get("kind", "")),
        unlearned=unlearned,
        covers=_read_covers(row.get("covers") or {}, f"{where}: covers"),
    )


def _read_covers(raw: Any, where: str) -> dict[str, tuple[str | int, ...]]:
    values = list(raw.values()) if isinstance(raw, Mapping) else [None]
    if not all(isinstance(each, list) and all(isinstance(value, str | int) for value in each) for each in values):
        raise DataError(f"{where} must hold lists of texts and numbers by name, or be left out")
    return {name: tuple(each) for name, each in raw.items()}


def mixed(
    shown: Iterator[Demonstration], recorded: Sequence[Demonstration], share: float, seed: int
) -> Iterator[Demonstration]:
    """`shown`, with a share of recorded ones in between, these in an order of the seed and again from the first after
    the last."""
    rng = random.Random(f"mixed-{seed}")
    others = itertools.cycle(rng.sample(list(recorded), len(recorded)))
    while True:
        following = next(others if rng.random() < share else shown, None)
        if following is None:
            return
        yield following


TASKS_PER_SEED = 1000
"""A generator has many more, but the further it goes, the more families have run out of rules."""


def endless_seeds(seed: int) -> Iterator[int]:
    """Seeds of task generators, other ones for every `seed` (below 1000 of each)."""
    return itertools.count(1000 * seed)


def endless_tasks(generate: Callable[[int, Sequence[Split]], Iterator[Task]], seed: int) -> Iterator[Task]:
    """Tasks for demonstrations, all families equally often; after every thousand the generator gets another seed."""
    for each in endless_seeds(seed):
        yield from itertools.islice(generate(each, ["sft"]), TASKS_PER_SEED)
