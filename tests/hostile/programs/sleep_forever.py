# MUST: killed at the deadline, and what was printed before is captured.
import time

print("before", flush=True)
time.sleep(1e6)
