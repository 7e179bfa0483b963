# MUST: dead when the result comes back, although it ignores signals, has its own session and adopts orphans.
import contextlib
import os
import signal
import time

from attack import libc

if os.fork() == 0:
    os.setsid()
    libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    libc.prctl(1, 0, 0, 0, 0)  # PR_SET_PDEATHSIG: none
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            break
    os.closerange(0, 64)
    time.sleep(1000)
time.sleep(0.1)
print("main done", flush=True)
os._exit(0)
