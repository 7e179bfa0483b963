# MUST: the daemon is dead when the result comes back.
import contextlib
import os
import time

import attack  # noqa: F401  names the process

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for descriptor in (0, 1, 2):
            os.close(descriptor)
        for _ in range(200):
            with contextlib.suppress(OSError), open(os.environ["HOSTILE_HEARTBEAT"], "a") as file:
                file.write("x")
            time.sleep(0.02)
    os._exit(0)
time.sleep(0.1)
print("main done", flush=True)
