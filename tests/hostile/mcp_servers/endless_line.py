# MUST: cut off at the cap on a line or on output, and killed.
import sys

while True:
    sys.stdout.write("x" * 65536)
