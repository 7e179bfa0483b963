# MUST: a hard link to a file outside cannot be made.
import os
import sys

from attack import attempt

sources = (os.environ["HOSTILE_OUTSIDE"], os.environ["HOSTILE_SECRET"], os.path.realpath(sys.executable))
for number, source in enumerate(sources):
    attempt(source, lambda s=source, n=number: os.link(s, f"link{n}"))
