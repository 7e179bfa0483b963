# MUST: the server and the first process of the run shrug off every signal.
import os
import signal
import time

from attack import attempt, blocked, in_own_pid_namespace, numbers_of_processes

for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV):
    for pid in {os.getppid(), *numbers_of_processes()} - {0, os.getpid()}:
        if not in_own_pid_namespace():
            attempt(f"kill {pid}", lambda p=pid: os.kill(p, 0))
            continue
        try:
            os.kill(pid, number)
        except OSError as error:
            blocked(f"kill {pid}", error)
    if not in_own_pid_namespace():
        break
time.sleep(0.05)
blocked("still here", os.getppid())
