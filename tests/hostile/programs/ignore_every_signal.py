# MUST: killed at the deadline although no signal that can be ignored has an effect.
import contextlib
import os
import signal
import time

for number in range(1, signal.NSIG):
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))
with contextlib.suppress(OSError):
    os.setsid()
print("before", flush=True)
while True:
    time.sleep(1000)
