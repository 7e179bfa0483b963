# MUST: a tree deeper than any recursion limit costs nothing after the run.
import os

made = 0
try:
    for _ in range(5000):
        os.mkdir("d")
        os.chdir("d")
        made += 1
except OSError:
    pass
print("main done", flush=True)
