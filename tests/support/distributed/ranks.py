"""Several ranks of one program, started as a launcher starts them, but forked from a process that has imported all.

Forking saves the seconds that PyTorch and DeepSpeed take to import. The real launchers are run by two other tests.
"""

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from waiting import free_port

LOG = "rank_{}.log"
_PRELOADED = [
    *("distributed.toy_run", "deepspeed", "deepspeed.runtime.zero.muon.muon_optimizer", "torch.utils.tensorboard"),
    *("transformers.models.auto.tokenization_auto", "transformers.tokenization_utils_tokenizers"),
]


def context() -> multiprocessing.context.ForkServerContext:
    """Starts processes as forks of one that has imported what a run needs."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ["OMP_NUM_THREADS"] = "1"
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(_PRELOADED)  # of a test process there is one server, and the first call counts
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The started processes; what they print is in `folder/rank_<n>.log`."""

    folder: Path
    processes: list[BaseProcess]

    def wait(self, timeout_s: float = 60) -> list[int | None]:
        """Exit codes by rank; a rank still running is killed and counts as None."""
        for process in self.processes:
            process.join(timeout_s)
        codes = [process.exitcode for process in self.processes]
        for process in self.processes:
            process.kill()
        return codes

    def log(self, rank: int) -> str:
        return (self.folder / LOG.format(rank)).read_text(encoding="utf-8")


def start_ranks(
    target: Callable[..., None], *args: Any, folder: Path, num: int, deepspeed_config: Path | None = None
) -> Ranks:
    """`target(*args)` in `num` processes with a launcher's environment; with `num` 1 in one without."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {}
    if num > 1:
        environment = {"WORLD_SIZE": str(num), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    if deepspeed_config is not None:
        environment |= {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(deepspeed_config)}
    processes = []
    for rank in range(num):
        own = environment | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if num > 1 else {})
        process = context().Process(target=_run, args=(target, args, own, folder / LOG.format(rank)))
        process.start()
        processes.append(process)
    return Ranks(folder=folder, processes=processes)


def _run(target: Callable[..., None], args: tuple, environment: dict[str, str], log: Path) -> None:
    """The child: what it prints goes to its log, and it exits as a script would."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = sys.stderr = os.fdopen(descriptor, "w", buffering=1)
    os.environ.update(environment)
    try:
        target(*args)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
