# MUST: no process of the host and of no other run is visible.
import os

from attack import blocked, numbers_of_processes, pwned

found = numbers_of_processes()
(pwned if len(found) > 4 else blocked)(f"{len(found)} processes")
for pid in map(int, os.environ["HOSTILE_PIDS"].split(",")):
    (pwned if os.path.exists(f"/proc/{pid}") else blocked)(f"/proc/{pid}")
