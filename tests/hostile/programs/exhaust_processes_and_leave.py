# MUST: the children that use up every process are dead as soon as the main program ended.
import os
import time

from attack import blocked, pwned

for number in range(500):
    try:
        if os.fork() == 0:
            time.sleep(1000)
            os._exit(0)
    except OSError as error:
        blocked(f"fork {number}", error)
        break
else:
    pwned("500 processes")
os._exit(0)
