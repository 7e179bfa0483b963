# MUST: a thread is refused at the limit; the others, which never end, die with the run.
import os
import threading
import time

from attack import blocked, pwned

started = 0
try:
    for _ in range(500):
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        started += 1
    pwned("threads", started)
except (RuntimeError, MemoryError) as error:
    blocked(f"thread {started}", error)
os._exit(0)
