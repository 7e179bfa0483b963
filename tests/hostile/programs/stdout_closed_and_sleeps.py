# MUST: killed at the deadline; the end of its output is not the end of the run.
import os
import time

os.closerange(0, 64)
time.sleep(1e6)
