# MUST: processes of the same user outside cannot be signalled.
import os
import resource
import signal

from attack import attempt

for pid in map(int, os.environ["HOSTILE_VICTIMS"].split(",")):
    attempt(f"SIGTERM to {pid}", lambda p=pid: os.kill(p, signal.SIGTERM))
    attempt(f"group of {pid}", lambda p=pid: os.killpg(p, signal.SIGTERM))
    attempt(f"pidfd of {pid}", lambda p=pid: signal.pidfd_send_signal(os.pidfd_open(p), signal.SIGTERM))
for pid in map(int, os.environ["HOSTILE_PIDS"].split(",")):
    attempt(f"signal 0 to {pid}", lambda p=pid: os.kill(p, 0))
    attempt(f"limits of {pid}", lambda p=pid: resource.prlimit(p, resource.RLIMIT_CORE))
