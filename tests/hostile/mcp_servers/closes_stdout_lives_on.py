# MUST: the end of its output is noticed at once, and it is killed.
import os
import time

os.close(1)
time.sleep(1e6)
