"""Show requests that people wrote again and again, each time under other names and often with another example.

A row of such a file is a task like any other, whose request somebody typed. What an agent does stays as written: only
what a sentence may take any name for is exchanged, and values of the example that are told once. Not here: requests
that are put together (`reword.py`).
"""

import itertools
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from agent_rl.data.tasks import read_tasks
from agent_rl.envs.nat.factory.compose import INSTANCES
from agent_rl.envs.nat.factory.generate import split_of
from agent_rl.envs.nat.factory.planner.plan import plan_of
from agent_rl.envs.nat.factory.requests.examples import with_other_example
from agent_rl.envs.nat.factory.requests.names import renamed, with_words
from agent_rl.envs.nat.judge.parse import parse_spec
from agent_rl.envs.nat.spec import Direct, NATSpec
from agent_rl.errors import DataError

OTHER_EXAMPLE_SHARE = 0.7
"""Requests of later rounds that tell another example, where they can."""


def read_written(path: Path) -> list[NATSpec]:
    """The specs of a task file, to make demonstrations of.

    DataError, with the row, for agents of several tools, and for tasks that are not for demonstrations.
    """
    specs = []
    for number, row in enumerate(read_tasks(path), start=1):
        spec = parse_spec(row, f"{path}:{number}")
        if len(spec.tools) != 1 or not isinstance(spec.workflow, Direct):
            raise DataError(f"{path}:{number}: not an agent of one tool, expected one; leave the row out")
        if split_of(spec.fingerprint) != "sft":
            raise DataError(
                f"{path}:{number}: the fingerprint {spec.fingerprint} is one to train or evaluate on, expected one of "
                "the split for demonstrations; leave the row out"
            )
        specs.append(spec)
    return specs


def endless_written(specs: Iterable[NATSpec], rng: random.Random) -> Iterator[NATSpec]:
    """Every spec once in any order, as it is in the first round and under other names later, without end."""
    specs = list(specs)
    for turn in itertools.count():
        for spec in rng.sample(specs, len(specs)):
            shown = under_other_names(spec, rng) if turn else spec
            if turn and rng.random() < OTHER_EXAMPLE_SHARE:
                shown = with_other_example(shown, rng)
            yield shown.model_copy(update={"task_id": f"{spec.task_id}-{turn}"})


def under_other_names(spec: NATSpec, rng: random.Random) -> NATSpec:
    """The spec of one tool with other names, put in the place of the old ones in its request.

    A text of its rules, errors or example that holds an old name and stays as it is, stays so in the request too.
    """
    changed = renamed(spec, rng, of_service=False)
    (old,), (new,) = spec.tools, changed.tools
    if old.instance in INSTANCES:  # such as `service`, which sentences have as a word
        new = new.model_copy(update={"instance": old.instance})
        changed = changed.model_copy(update={"tools": (new,)})
        changed = changed.model_copy(update={"plan": plan_of(changed)})
    kept = {*_texts([old.rules, old.errors, old.example.inputs, old.example.output])}
    kept &= {*_texts([new.rules, new.errors, new.example.inputs, new.example.output])}
    names = _table(spec, changed)
    whole = {each: each for each in kept if any(name in each and name != each for name in names)}
    longest_first = dict(sorted({**whole, **names}.items(), key=lambda pair: -len(pair[0])))
    return changed.model_copy(update={"request": with_words(spec.request, longest_first, near=r"\w")})


def _table(spec: NATSpec, changed: NATSpec) -> dict[str, str]:
    (old,), (new,) = spec.tools, changed.tools
    pairs = [(spec.package, changed.package), (spec.server.name, changed.server.name)]
    pairs += [(old.type_name, new.type_name), (old.instance, new.instance)]
    if old.family == "api_client":  # the others' functions are in no request
        pairs += [(f"{old.function}{end}", f"{new.function}{end}") for end in ("", "_path")]
    pairs += zip((each.name for each in old.inputs), (each.name for each in new.inputs), strict=True)
    return {was: now for was, now in pairs if was != now}


def _texts(value: Any) -> Iterator[str]:
    """Every text in plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)
