# MUST: a stopped program is killed at the deadline.
import os
import signal

print("before", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
