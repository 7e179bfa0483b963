# MUST: a pipe that was made non-blocking changes nothing for the server or for the next run.
import os
import time

for descriptor in (0, 1, 2):
    os.set_blocking(descriptor, False)
for _ in range(64):
    try:
        os.write(1, b"x" * 1024)
    except BlockingIOError:
        time.sleep(0.01)
