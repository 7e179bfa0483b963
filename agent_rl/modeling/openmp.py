"""OpenMP threads: a thread that waits releases its helpers, so that the one that computes has the cores.

GNU OpenMP counts the threads of every team in the process. With two teams alive (the trainer's and the engine's) it
treats the machine as oversubscribed and puts threads to sleep after each small operation: one decode step of a small
model then takes about twice as long (PyTorch 2.13, two cores). Not here: how many threads.
"""

import ctypes
from functools import cache
from pathlib import Path

import torch

_PAUSE_SOFT = 1


@cache
def _openmp() -> ctypes.CDLL | None:
    """The GNU OpenMP that PyTorch computes with; None if it uses another, which has no such problem."""
    for path in (Path(torch.__file__).parent / "lib").glob("libgomp*.so*"):
        library = ctypes.CDLL(str(path))
        if hasattr(library, "omp_pause_resource_all"):
            return library
    return None


def release_openmp_threads() -> None:
    """End the calling thread's idle OpenMP helpers; they come back with its next parallel operation."""
    if (library := _openmp()) is not None:
        library.omp_pause_resource_all(_PAUSE_SOFT)
