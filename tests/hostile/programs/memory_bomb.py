# MUST: MemoryError, or the run is killed at its memory limit.
from attack import blocked, pwned

kept: list[bytearray] = []
try:
    for _ in range(2048):
        kept.append(bytearray(b"x") * (1 << 20))
    pwned("2 GiB")
except MemoryError:
    size = len(kept)
    kept.clear()
    blocked(f"{size} MiB")
