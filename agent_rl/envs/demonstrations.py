"""Demonstrations for a supervised warm start: conversations in which a scripted teacher solves a task.

Does not: hold any teacher (`demonstrations.py` in an environment's folder).
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from agent_rl.agent.messages import Message, ToolSpec
from agent_rl.data.splits import Split
from agent_rl.data.tasks import Task

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


TASKS_PER_SEED = 1000
"""A generator has many more, but the further it goes, the more families have run out of rules."""


def endless_seeds(seed: int) -> Iterator[int]:
    """Seeds of task generators, other ones for every `seed` (below 1000 of each)."""
    return itertools.count(1000 * seed)


def endless_tasks(generate: Callable[[int, Sequence[Split]], Iterator[Task]], seed: int) -> Iterator[Task]:
    """Tasks for demonstrations, all families equally often; after every thousand the generator gets another seed."""
    for each in endless_seeds(seed):
        yield from itertools.islice(generate(each, ["sft"]), TASKS_PER_SEED)
