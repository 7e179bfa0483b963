# MUST: children that keep its pipes open and answer for it are dead with it.
import os
import time

if os.fork() == 0:
    os.setsid()
    time.sleep(1e6)
os._exit(3)
