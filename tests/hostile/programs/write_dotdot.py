# MUST: no path built from '..' reaches the file outside.
import os

from attack import attempt

relative = os.path.relpath(os.environ["HOSTILE_OUTSIDE"], "/")


def append(path: str) -> str:
    with open(path, "a") as file:
        file.write("evil")
    return path


for depth in (1, 2, 3, 5, 9):
    attempt("..", lambda d=depth: append("../" * d + relative))
for path in ("/proc/self/root/" + relative, "/proc/self/cwd/../../" + relative, "/proc/1/root/" + relative):
    attempt(path, lambda p=path: append(p))
