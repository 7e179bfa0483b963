# MUST: open files end at the limit; the server keeps all of its own.
import os

from attack import attempt

kept = []


def fill() -> int:
    while len(kept) < 5000:
        kept.append(os.open("/dev/null", os.O_RDONLY))
    return len(kept)


attempt("descriptors", fill)
