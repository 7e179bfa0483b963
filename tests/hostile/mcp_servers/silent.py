# MUST: the deadline of the request ends it.
import time

time.sleep(1e6)
