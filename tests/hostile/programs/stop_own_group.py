# MUST: stopping everything in the own process group stops nothing of the server.
import os
import signal

import attack  # noqa: F401  names the processes

print("before", flush=True)
os.fork()
os.kill(0, signal.SIGSTOP)
