"""The specs of the task files: train, val and test_generalisation, with inputs that tell their rules from wrong ones.

Not here: options and files (`prepare.py`).
"""

import itertools
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import connection, get_context, parent_process

from agent_rl.envs.nat.factory.generate import STARTER_FAMILIES, STARTER_LEVELS, Split, generate_specs
from agent_rl.envs.nat.factory.telling import with_telling
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.errors import ConfigError

_WORTH_PROCESSES = 64
"""Specs; fewer take less time than processes do to start."""


def offline(
    num_train: int,
    num_val: int,
    seed: int,
    families: list[str] | None = None,
    levels: list[int] | None = None,
    starter: bool = False,
) -> dict[str, list[NATSpec]]:
    """train, val and test_generalisation from the generator."""
    if starter and (families or levels):
        raise ConfigError("--starter chooses families and levels itself; leave out --families and --levels")
    if starter:
        families, levels = list(STARTER_FAMILIES), list(STARTER_LEVELS)
    wanted: list[tuple[str, list[Split], int]] = [
        ("train", ["train"] if starter else ["train", "sft"], num_train),
        ("val", ["val"], num_val),
        ("test_generalisation", ["test_generalisation"], num_val),
    ]
    chosen = {"families": families, "levels": levels, "terse": starter}
    return {
        name: list(itertools.islice(generate_specs(seed, splits, **chosen), count)) for name, splits, count in wanted
    }


def with_telling_inputs(specs: Sequence[NATSpec]) -> list[NATSpec]:
    """The specs with inputs that tell their rules from wrong ones (`factory/telling.py`), a second or less each;
    many are shared out over all processors."""
    if len(specs) < _WORTH_PROCESSES:
        return [with_telling(spec) for spec in specs]
    with ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        return list(pool.map(with_telling, specs, chunksize=8))


def _end_with_parent() -> None:
    """End this worker once its parent is gone: workers of a killed parent wait for their next task for ever."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
