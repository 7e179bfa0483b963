# MUST: `os._exit` in the middle is an end like any other, children included.
import os
import sys
import time

import attack  # noqa: F401  names the processes

if os.fork() == 0:
    time.sleep(1000)
sys.stdout.write("written")
sys.stdout.flush()
os._exit(0)
