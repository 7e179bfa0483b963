# MUST: a file of a terabyte without content is refused.
import os

from attack import attempt

with open("sparse", "wb") as file:
    attempt("truncate", lambda: os.ftruncate(file.fileno(), 1 << 40))
    attempt("seek and write", lambda: os.pwrite(file.fileno(), b"x", 1 << 40))
    attempt("fallocate", lambda: os.posix_fallocate(file.fileno(), 0, 1 << 36))
