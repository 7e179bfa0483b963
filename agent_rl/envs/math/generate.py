"""Seeded word problems: rows for `math_qa`, the same bytes for the same seed on any machine.

Problems are divided by fingerprint (family and numbers, not names or wording): 10 % are held out (`eval`), 30 % are for
training (`train`), 60 % for demonstrations (`sft`). A problem of level n takes n steps of arithmetic.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from agent_rl.data.splits import Split, fingerprint, generate_round_robin, split_of
from agent_rl.data.tasks import Task
from agent_rl.envs.math import measures, stories
from agent_rl.envs.math.stories import ProblemSampler
from agent_rl.envs.math.terms import as_text

FAMILIES: dict[str, tuple[ProblemSampler, tuple[int, ...]]] = {
    "shopping": (stories.shopping, (1, 2, 3, 4)),
    "speed": (measures.speed, (1, 2, 3)),
    "sharing": (stories.sharing, (1, 2, 3)),
    "areas": (measures.areas, (1, 2, 3, 4)),
    "percentages": (stories.percentages, (2, 3, 4)),
    "ages": (measures.ages, (1, 2, 3, 4)),
    "minutes": (measures.minutes, (1, 2, 3)),
    "savings": (stories.savings, (1, 2, 3, 4)),
    "tanks": (measures.tanks, (1, 2, 3)),
    "tickets": (stories.tickets, (3, 4)),
    "wages": (measures.wages, (1, 2, 3, 4)),
    "reading": (measures.reading, (1, 2, 3)),
    "recipes": (stories.recipes, (1, 2, 3)),
}
"""Name -> the sampler of its problems, and its levels."""
CELLS = [(name, level) for level in (1, 2, 3, 4) for name, (_, levels) in FAMILIES.items() if level in levels]
_ATTEMPTS = 400


def fingerprint_of(family: str, expression: str) -> str:
    """16 hex digits of a problem, whatever the words."""
    return fingerprint([family, expression])


def generate_tasks(seed: int, splits: Sequence[Split]) -> Iterator[Task]:
    """Rows of some splits; families and levels take turns, fingerprints never repeat. It ends when all
    numbers are used up, after many thousand rows."""
    return generate_round_robin("math", seed, splits, CELLS, lambda cell, rng, seen: _new_row(*cell, rng, splits, seen))


def reference(task: Task) -> str:
    """The expression that gives the answer."""
    return task["metadata"]["expression"]


def buggy(task: Task) -> str:
    """A believable wrong expression: the last step is forgotten, or the only one is another."""
    return task["metadata"]["careless"]  # the key of the shipped task files


def _new_row(
    family: str, level: int, rng: random.Random, splits: Sequence[Split], seen: set[str]
) -> dict[str, Any] | None:
    for _ in range(_ATTEMPTS):
        problem = FAMILIES[family][0](level, rng)
        answer = as_text(problem.right.value)
        known_by = fingerprint_of(family, problem.right.text)
        wrong = problem.buggy.value
        if known_by in seen or split_of(known_by) not in splits or answer is None:
            continue
        if problem.right.value <= 0 or wrong == problem.right.value or as_text(wrong) is None:
            continue
        seen.add(known_by)
        expressions = {"expression": problem.right.text, "careless": problem.buggy.text}
        return {
            "question": " ".join(rng.choice(phrasings) for phrasings in problem.parts),
            "answer": answer,
            "level": level,
            "metadata": {"family": family, **expressions},
        }
    return None
