# MUST: named shared memory of the host is invisible.
import os
from multiprocessing import shared_memory

from attack import attempt, blocked, pwned

name = os.environ["HOSTILE_SHM"]
attempt("shm_open", lambda: shared_memory.SharedMemory(name=name))
attempt("/dev/shm", lambda: os.close(os.open(f"/dev/shm/{name}", os.O_RDONLY)))
try:
    listed = [entry for entry in os.listdir("/dev/shm") if entry.startswith("outside")]
except OSError as error:
    blocked("list /dev/shm", error)
else:
    (pwned if listed else blocked)("names in /dev/shm", listed)
