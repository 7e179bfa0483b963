# MUST: killed at the cap on output although it is the children that print.
import os
import time

import attack  # noqa: F401  names the processes

for _ in range(3):
    if os.fork() == 0:
        while True:
            os.write(1, b"x" * 65536)
time.sleep(1000)
