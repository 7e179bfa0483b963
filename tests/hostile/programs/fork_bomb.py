# MUST: fork is refused at the limit of processes, the run ends, nothing is left.
import os
import time

from attack import blocked, pwned

count, deadline = 0, time.monotonic() + 1.0
while time.monotonic() < deadline and count < 500:
    try:
        if os.fork() == 0:
            continue
        count += 1
    except OSError as error:
        blocked("fork", error)
        break
if count >= 500:
    pwned("fork", f"{count} children of one process")
time.sleep(0.1)
os._exit(0)
