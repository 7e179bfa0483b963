# MUST: a signal to every process reaches nothing outside the run.
import os
import signal

from attack import attempt, blocked, in_own_pid_namespace

print("before", flush=True)
if in_own_pid_namespace():
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(-1, number)
        except OSError as error:
            blocked("kill(-1)", error)
else:
    attempt("kill(-1, 0)", lambda: os.kill(-1, 0))
blocked("still here")
