"""Ranks whose default group sends nothing and never fails, as NCCL's does not in these tests: what works, goes over
the group for control traffic."""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg  # noqa: F401  registers the backend "fake"

from agent_rl.distributed.processes import Processes, ProcessLostError
from agent_rl.errors import UserError


def _join(folder: Path, timeout_s: float) -> Processes:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group("fake", rank=rank, world_size=world, store=store, timeout=timedelta(seconds=1))
    return Processes(device=torch.device("cpu"), timeout_s=timeout_s)


def talk(folder: Path) -> None:
    """All of what processes say to each other, each beginning late in its turn: later than the default group's 1 s."""
    processes = _join(folder, timeout_s=60)
    rank = processes.rank
    time.sleep(1.5 * rank)
    assert processes.all_gather_object({"rank": rank}) == [{"rank": 0}, {"rank": 1}]
    assert processes.broadcast_object(f"of {rank}") == "of 0"
    assert processes.sum(float(rank + 1)) == 3.0
    assert processes.on_main(lambda: "main") == "main"

    def fail() -> None:
        raise UserError("on the main process")

    try:
        processes.on_main(fail)
    except UserError as error:
        print(f"raised {error}")
    processes.barrier()
    print(f"rank {rank} is done")


def lose(folder: Path) -> None:
    """Rank 1 is killed while rank 0 waits for it."""
    processes = _join(folder, timeout_s=60)
    processes.barrier()
    if processes.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    try:
        processes.all_gather_object("anything")
    except ProcessLostError as error:
        print(f"lost after {time.monotonic() - started:.0f} s: {error}")
