# MUST: neither blocks nor grows without bound.
import sys

while True:
    sys.stderr.write("error " * 10000)
