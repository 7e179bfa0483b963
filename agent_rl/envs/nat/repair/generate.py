"""Draw tasks that begin with files: projects with a planted fault, and working ones that are to do more.

The same seed gives the same tasks. Specs are divided as for tasks that begin with nothing; of the faults, some classes
are in the test set alone (`faults.HELD_OUT`). Every task is proven before it is taken (`proof.py`).
"""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar

from agent_rl.envs.nat.factory.generate import STARTER_FAMILIES, STARTER_LEVELS, Split, generate_specs
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.repair.faults import HELD_OUT, SHOWN, plant
from agent_rl.envs.nat.repair.proof import prove
from agent_rl.envs.nat.repair.task import NATTask
from agent_rl.envs.nat.repair.wording import extend_request, repair_request
from agent_rl.envs.nat.spec import Direct, NATSpec

GivenT, MadeT = TypeVar("GivenT"), TypeVar("MadeT")
EXTENDED_FAMILY, EXTENDED_LEVELS = "tool_workflow", (3,)
AT_ONCE = 2
"""Specs that are tried at the same time, as many as there are processes of the toolkit."""


def starter_specs(seed: int, splits: Sequence[Split]) -> Iterator[NATSpec]:
    """What projects are made of that are to be repaired: the families and levels of the starter."""
    return generate_specs(seed, splits, families=STARTER_FAMILIES, levels=STARTER_LEVELS, terse=True)


def tried(make: Callable[[GivenT], MadeT | None], given: Iterable[GivenT]) -> Iterator[MadeT]:
    """What `make` makes of each, `AT_ONCE` at the same time, in order and without None; no further than it is read."""
    rest = iter(given)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while batch := list(itertools.islice(rest, 8 * AT_ONCE)):
            yield from (made for made in pool.map(make, batch) if made is not None)


def repair_tasks(toolkit: NatToolkit, seed: int, specs: Iterator[NATSpec], classes: Sequence[str]) -> Iterator[NATTask]:
    """Proven repairs, of each spec one at most; classes take turns."""
    return tried(lambda each: _repair(toolkit, seed, classes, *each), enumerate(specs))


def _repair(toolkit: NatToolkit, seed: int, classes: Sequence[str], number: int, spec: NATSpec) -> NATTask | None:
    """The spec with a fault of the class whose turn it is, or of the next one that goes with it and is proven."""
    rng = random.Random(f"repair-{seed}-{spec.task_id}")
    spec = spec.model_copy(update={"task_id": f"repair-{spec.task_id}", "request": repair_request(spec, rng)})
    for offset in range(len(classes)):
        name = classes[(number + offset) % len(classes)]
        files = plant(name, spec, random.Random(f"{name}-{seed}-{spec.task_id}"))
        if files is None:
            continue
        task = NATTask(spec=spec, kind="repair", start_files=files, fault=name)
        if prove(toolkit, task, seed=seed).holds:
            return task
    return None


def extend_tasks(toolkit: NatToolkit, seed: int, splits: Sequence[Split]) -> Iterator[NATTask]:
    """Endless proven extensions: a project of two tools and a workflow, of which the first tool is there and works."""
    for spec in generate_specs(seed, splits, families=[EXTENDED_FAMILY], levels=EXTENDED_LEVELS):
        rng = random.Random(f"extend-{seed}-{spec.task_id}")
        wanted = spec.model_copy(update={"task_id": f"extend-{spec.task_id}", "request": extend_request(spec, rng)})
        task = NATTask(spec=wanted, kind="extend", start_files=render_project(first_tool_of(spec)))
        if prove(toolkit, task, seed=seed).holds:
            yield task


def first_tool_of(spec: NATSpec) -> NATSpec:
    """The spec of the agent that has the first tool alone, which is its workflow."""
    return spec.model_copy(update={"tools": spec.tools[:1], "workflow": Direct(), "client_group": None})


def started_sets(
    toolkit: NatToolkit, kind: Literal["repair", "extend"], num_train: int, num_eval: int, seed: int
) -> dict[str, list[NATTask]]:
    """`train`, `val`, and for repairs `test` and `test_faults`, whose classes of faults no other set has.

    No fingerprint is in two of them.
    """
    if kind == "extend":
        counts: list[tuple[str, list[Split], int]] = [("train", ["train"], num_train), ("val", ["val"], num_eval)]
        return {name: list(itertools.islice(extend_tasks(toolkit, seed, split), n)) for name, split, n in counts}
    train, held_out = starter_specs(seed, ["train"]), starter_specs(seed, ["val"])
    sets = [
        ("train", train, SHOWN, num_train),
        ("val", held_out, SHOWN, num_eval),
        ("test", held_out, SHOWN, num_eval),
        ("test_faults", held_out, HELD_OUT, num_eval),
    ]
    return {
        name: list(itertools.islice(repair_tasks(toolkit, seed, specs, classes), num))
        for name, specs, classes, num in sets
    }
