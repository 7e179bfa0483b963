"""Freed memory: on a CPU it stays with the process, on a GPU PyTorch keeps it in blocks that can grow.

Every update allocates the same sizes again. On a CPU, pages returned to the kernel come back by a fault and filled with
zeros, which takes a good part of an update; only glibc is configured, other allocators (jemalloc, tcmalloc, other
systems) are left alone. On a GPU, micro-batches of several lengths leave holes between blocks of a fixed size.
Not here: what a run needs (`planning/memory.py`).
"""

import ctypes
import os
import sys

import torch

GROWING_BLOCKS = "expandable_segments:True"
_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""PyTorch reads the first of them that is set, when it first allocates on a GPU."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_CACHED = 32 * 2**20
"""Bytes of the largest block that stays. Larger ones (a vocabulary's logits or gradients) would leave large holes."""


def keep_freed_memory() -> None:
    """Configure the allocator of this process, for its whole life."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_CACHED)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def grow_blocks_on_gpu() -> None:
    """Let PyTorch's blocks grow in place, unless the environment has settings of its own; before the first allocation.

    vLLM's allocator for engines that sleep switches it off where it takes memory.
    """
    if not any(name in os.environ for name in _SETTINGS):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = GROWING_BLOCKS


def unused_reserved_bytes(device: torch.device) -> int:
    """What PyTorch held of the GPU and did not use, peak against peak since the last call; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    unused = torch.cuda.max_memory_reserved(device) - torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return unused
