# MUST: spawned programs in sessions of their own are refused at the limit and dead afterwards.
import os
import subprocess

from attack import TOKEN, blocked, pwned

spawned = 0
try:
    for _ in range(120):
        subprocess.Popen(["sleep", f"9{TOKEN}"], start_new_session=True)
        spawned += 1
    pwned("processes", spawned)
except OSError as error:
    blocked(f"process {spawned}", error)
os._exit(0)
