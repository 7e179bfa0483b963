# MUST: no folder of the host takes a new file. (A file that could be made is removed again.)
import os
import sys

from attack import attempt

folders = [
    "/",
    "/etc",
    "/usr",
    "/usr/bin",
    "/usr/lib",
    "/lib",
    "/home",
    "/root",
    "/var",
    "/opt",
    "/srv",
    "/mnt",
    "/boot",
]
folders += [sys.prefix, sys.base_prefix, os.path.dirname(os.__file__), os.environ["HOSTILE_PROJECT"], "/proc", "/sys"]


def make(folder: str) -> str:
    path = os.path.join(folder, "new_by_a_hostile_program")
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    os.unlink(path)
    return path


for folder in folders:
    attempt(folder, lambda f=folder: make(f))
for path in (os.__file__, sys.executable, "/bin/sh", "/etc/passwd"):
    attempt(f"open {path} for writing", lambda p=path: os.close(os.open(p, os.O_WRONLY)))
