"""What the demonstrations of all domains are: conversations in which a teacher solves a task, for a warm start.

Not here: any teacher (`nat_demonstrations.py` and its neighbours).
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
"""Of the many more that there are for a seed: the further a generator goes, the more families have run out of rules."""


def seeds_without_end(seed: int) -> Iterator[int]:
    """Seeds of task generators, other ones for every `seed` (below 1000 of each)."""
    return itertools.count(1000 * seed)


def tasks_without_end(generate: Callable[[int, Sequence[Split]], Iterator[Task]], seed: int) -> Iterator[Task]:
    """The tasks that may be shown, all families alike often, drawn anew by another seed after every thousand."""
    for each in seeds_without_end(seed):
        yield from itertools.islice(generate(each, ["sft"]), TASKS_PER_SEED)
