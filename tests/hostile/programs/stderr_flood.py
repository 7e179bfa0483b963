# MUST: killed at the cap on output, long before the deadline.
import sys

while True:
    sys.stderr.write("spam " * 1000 + "\n")
