# MUST: no program changes the priority of a process that it did not start, by group or by user either.
import os

from attack import SYSCALLS, attempt, system_call

before = os.getpriority(os.PRIO_PROCESS, os.getppid())
for kind in (os.PRIO_USER, os.PRIO_PGRP):
    for who in (0, os.getppid(), os.getuid(), os.getpgid(0)):
        attempt(f"{kind} {who}", lambda k=kind, w=who: os.setpriority(k, w, 19))
SYSCALLS["ioprio_set"] = (251, 30)
for kind in (2, 3):
    for who in (0, os.getuid()):
        attempt(f"i/o of {kind} {who}", lambda k=kind, w=who: system_call("ioprio_set", k, w, 3 << 13))
attempt("first process", lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 19))
assert os.getpriority(os.PRIO_PROCESS, os.getppid()) == before
