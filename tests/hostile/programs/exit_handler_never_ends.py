# MUST: a time-out at the deadline; what was printed before is captured.
import atexit
import time

atexit.register(time.sleep, 1e6)
print("before", flush=True)
