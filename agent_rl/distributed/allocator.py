"""Memory of a CPU run: freed blocks stay with the process, because every update allocates the same sizes again.

Pages returned to the kernel come back by a fault and filled with zeros, which takes a good part of an update.
Only glibc is configured; other allocators (jemalloc, tcmalloc, other systems) are left alone. Not here: GPUs, where
PyTorch caches freed memory itself.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_CACHED = 32 * 2**20
"""Bytes of the largest block that stays. Larger ones (a vocabulary's logits or gradients) would leave large holes."""


def keep_freed_memory() -> None:
    """Configure the allocator of this process, for its whole life."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_CACHED)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
