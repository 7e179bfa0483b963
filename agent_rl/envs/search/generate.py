"""Seeded questions about an invented world: rows for `search_qa`, the same bytes for the same seed on any machine.

A question names one thing and expects the value that is one, two or three facts away from it, each in another passage.
Questions to train on (`train`) and held out (`eval`) are about one world. A quarter of its facts are held out: each
question of `eval` ends with one of them, and no question of `train` passes one. Those of demonstrations (`sft`) are
about other worlds, with other names. Not here: searching.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from agent_rl.data.splits import Split, fingerprint
from agent_rl.data.tasks import Task
from agent_rl.envs.search.facts import KINDS
from agent_rl.envs.search.world import World, make_world

NUM_DISTRACTORS = 6
"""Passages beside the supporting ones that a row brings with it, where rows do."""
_HOPS = (2, 3, 1, 2, 3, 2)
_ATTEMPTS = 2000


def fingerprint_of(name: str, chain: Sequence[str]) -> str:
    """16 hex digits of the question's meaning, whatever its words."""
    return fingerprint([name, *chain])


def split_of(path: Sequence[str], chain: Sequence[str]) -> Split | None:
    """Which set of a shipped world a question belongs to, by the things on its way and the fact that leads on from
    each; None where it passes a fact held out and continues."""
    *earlier, last = [int(fingerprint_of(name, [fact]), 16) % 4 == 0 for name, fact in zip(path, chain, strict=True)]
    return "eval" if last else None if any(earlier) else "train"


def world_of(seed: int, splits: Sequence[Split]) -> World:
    """The world that the questions of `generate_tasks(seed, splits)` are about. ValueError for `sft` and another."""
    if "sft" in splits and len(set(splits)) > 1:
        raise ValueError(f"demonstrations have worlds of their own, so sft stands alone; got {list(splits)}")
    return make_world(seed, for_demonstrations="sft" in splits)


def generate_tasks(seed: int, splits: Sequence[Split]) -> Iterator[Task]:
    """Rows about `world_of(seed, splits)`; numbers of hops take turns, no question comes twice. It ends after some
    thousand rows, when new questions are hard to find."""
    world = world_of(seed, splits)
    seen: set[str] = set()
    name = "+".join(splits)
    index = 0
    while True:
        rng = random.Random(f"search-task-{seed}-{name}-{index}")
        row = _new_row(world, _HOPS[index % len(_HOPS)], rng, splits, seen)
        if row is None:
            return
        yield {"task_id": f"search-{splits[0]}-{seed}-{index:05d}", **row}
        index += 1


def with_documents(task: Task, world: World, seed: int) -> Task:
    """The row with its supporting passages and some others under `documents`, in random order."""
    rng = random.Random(f"search-documents-{seed}-{task['task_id']}")
    supporting = task["metadata"]["supporting"]
    others = rng.sample([name for name in world.texts if name not in supporting], NUM_DISTRACTORS)
    titles = [*supporting, *others]
    rng.shuffle(titles)
    return {**task, "documents": [{"title": title, "text": world.texts[title]} for title in titles]}


def reference(task: Task) -> str:
    """The right answer."""
    return task["answer"]


def buggy(task: Task) -> str:
    """A believable wrong answer: the thing found one hop too early, or another fact of the only passage."""
    metadata = task["metadata"]
    return metadata["supporting"][-1] if metadata["num_hops"] > 1 else metadata["other"]


def _new_row(
    world: World, hops: int, rng: random.Random, splits: Sequence[Split], seen: set[str]
) -> dict[str, Any] | None:
    starts = list(world.kinds)
    for _ in range(_ATTEMPTS):
        path, chain, answer = _walk(world, rng.choice(starts), hops, rng)
        known_by = fingerprint_of(path[0], chain)
        if known_by in seen or not ("sft" in splits or split_of(path, chain) in splits):
            continue
        row = _row(world, path, chain, answer, rng)
        if row is not None:
            seen.add(known_by)
            return row
    return None


def _walk(world: World, start: str, hops: int, rng: random.Random) -> tuple[list[str], list[str], str]:
    """Things on the way, the facts that lead on from each, and the last value; shorter where a number ends it."""
    path, chain, value = [start], [], start
    while len(chain) < hops:
        facts = KINDS[world.kinds[value]].facts
        goes_on = len(chain) + 1 < hops
        fact = rng.choice([name for name, info in facts.items() if info.noun or not goes_on])
        chain.append(fact)
        value = world.facts[value][fact]
        if goes_on:
            path.append(value)
    return path, chain, value


def _row(world: World, path: list[str], chain: list[str], answer: str, rng: random.Random) -> dict[str, Any] | None:
    """All of a row but its id; None when the way is no way: it comes back, or the answer shows before its end."""
    infos = [KINDS[world.kinds[name]].facts[fact] for name, fact in zip(path, chain, strict=True)]
    owner = path[0]
    for info in infos[:-1]:
        owner = info.noun.format(owner)
    question = rng.choice(infos[-1].questions).format(owner)
    earlier = " ".join(world.texts[name] for name in path[:-1])
    comes_back = len({*path, answer}) <= len(path)
    if comes_back or answer in earlier or any(name in question for name in (*path[1:], answer)):
        return None
    others = [value for fact, value in world.facts[path[-1]].items() if fact != chain[-1]]
    return {
        "question": question,
        "answer": answer,
        "level": len(chain),
        "metadata": {
            "num_hops": len(chain),
            "supporting": path,
            "queries": [f"{info.query} {name}" for name, info in zip(path, infos, strict=True)],
            "facts": chain,
            "other": rng.choice(others),
        },
    }
