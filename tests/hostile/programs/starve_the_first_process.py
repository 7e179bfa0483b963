# MUST: the process that reports for this run cannot be starved, slowed down or moved.
import os
import resource

from attack import attempt, blocked

for pid in {1, os.getppid()} - {0, os.getpid()}:
    for name in ("NOFILE", "FSIZE", "NPROC", "STACK", "DATA", "AS", "CPU"):
        number = getattr(resource, f"RLIMIT_{name}")
        attempt(f"{name} of {pid}", lambda p=pid, n=number: resource.prlimit(p, n, (0, 0)))
    os.nice(5)
    attempt(f"priority of {pid}", lambda p=pid: os.setpriority(os.PRIO_PROCESS, p, 19))
    attempt(f"scheduler of {pid}", lambda p=pid: os.sched_setscheduler(p, os.SCHED_IDLE, os.sched_param(0)))
with open("large", "wb") as file:  # what it brings back needs memory
    file.write(b"x" * 400_000)
blocked("done")
