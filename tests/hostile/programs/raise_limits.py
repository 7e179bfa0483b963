# MUST: no limit and no priority can be raised.
import os
import resource

from attack import attempt, blocked, pwned

for name in ("AS", "CPU", "NOFILE", "NPROC", "FSIZE", "CORE"):
    number = getattr(resource, f"RLIMIT_{name}")
    hard = resource.getrlimit(number)[1]
    if hard == resource.RLIM_INFINITY:
        pwned(name, "has no limit")
    for value in (resource.RLIM_INFINITY, hard + 1):
        attempt(f"{name} {hard}", lambda n=number, v=value: resource.setrlimit(n, (v, v)))
attempt("nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
attempt("real time", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)))


def never_killed() -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")


attempt("oom_score_adj", never_killed)
blocked("done")
