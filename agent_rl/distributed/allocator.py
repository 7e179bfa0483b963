"""Memory of a CPU run: what is freed stays with the process, because an update asks for the same sizes again and again.

Given back to the kernel, every page comes back by a fault and filled with zeros, which takes a good part of an update.
Only glibc is told; another allocator (jemalloc, tcmalloc, other systems) keeps its own ways. Not here: GPUs,
where PyTorch keeps freed memory itself.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_UP_TO = 32 * 2**20
"""Bytes of a block that is kept. Larger ones, a vocabulary's logits or gradients, would leave holes too large."""


def keep_freed_memory() -> None:
    """Tell the allocator of this process, once and for good."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_UP_TO)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
