# MUST: symbolic links, absolute and relative, do not reach the file outside.
import os

from attack import attempt

outside = os.environ["HOSTILE_OUTSIDE"]
os.symlink(outside, "absolute")
os.symlink("../" * 9 + os.path.relpath(outside, "/"), "relative")
os.symlink(os.path.dirname(outside), "folder")


def append(path: str) -> str:
    with open(path, "a") as file:
        file.write("evil")
    return path


for path in ("absolute", "relative", "folder/" + os.path.basename(outside), "folder/new_by_symlink"):
    attempt(path, lambda p=path: append(p))
