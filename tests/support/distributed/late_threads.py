"""Pairs of processes whose gloo threads are late: they run only when the processor has nothing else to do.

`late_threads.py FOLDER ROUNDS` prints the exit codes of each pair, which closes its group right after a collective and
ends.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from agent_rl.distributed.processes import Processes, _gloo_threads


def delay_gloo_threads() -> None:
    threads = _gloo_threads()
    assert threads, "PyTorch calls them otherwise now"
    for thread in threads:
        os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))


def end_early(rank: int, store: str) -> None:
    """One of two processes, from the first collective to the last."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    processes = Processes(device=torch.device("cpu"), timeout_s=60)
    processes.barrier()
    delay_gloo_threads()
    assert processes.sum(10.0) == 20.0
    assert processes.all_gather_object(rank) == [0, 1]
    processes.close()


def burn(until: float) -> None:
    while time.monotonic() < until:
        pass
    os._exit(0)


def main(folder: Path, rounds: int) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    for number in range(rounds):
        burner = os.fork() or burn(time.monotonic() + 60)
        children = []
        for rank in range(2):
            child = os.fork()
            if not child:
                # Returns, so that the interpreter ends as it does in a script.
                return end_early(rank, str(folder / f"store-{number}"))
            children.append(child)
        print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children), flush=True)
        os.kill(burner, 9)
        os.waitpid(burner, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
