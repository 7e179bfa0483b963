"""Reads everything and answers nothing."""

import sys

print("I say nothing", file=sys.stderr, flush=True)
for _line in sys.stdin:
    pass
