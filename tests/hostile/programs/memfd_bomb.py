# MUST: files in memory, which no address space limit counts, are refused or bounded.
import os

from attack import attempt


def fill() -> str:
    kept, written = [], 0
    while written < 96 << 20:
        kept.append(os.memfd_create("hidden"))
        for _ in range(7):
            written += os.write(kept[-1], b"x" * (1 << 20))
    return f"{written >> 20} MiB"


attempt("memfd_create", fill)
