# MUST: a process that gives itself the name of a kernel thread is killed all the same.
import os
import time

from attack import TOKEN, libc

if os.fork() == 0:
    libc.prctl(15, f"kworker{TOKEN}"[:15].encode(), 0, 0, 0)
    os.setsid()
    time.sleep(1000)
time.sleep(0.05)
print("main done", flush=True)
os._exit(0)
