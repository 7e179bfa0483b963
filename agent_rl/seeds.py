"""Seeds that depend on what they are for, and on nothing else."""

import hashlib


def derive_seed(*parts: int | str) -> int:
    """A seed in [0, 2^63) that depends on `parts` alone, the same on every machine and in every process."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
