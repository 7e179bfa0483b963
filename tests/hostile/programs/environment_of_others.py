# MUST: the environment and the memory of no other process can be read.
import os

from attack import attempt, blocked, numbers_of_processes

others = [pid for pid in numbers_of_processes() if pid != os.getpid()]
blocked(f"{len(others)} others to look at")


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(64) or b"empty"


for pid in [*others[:20], *map(int, os.environ["HOSTILE_PIDS"].split(","))]:
    for name in ("environ", "mem", "maps", "fd/0"):
        attempt(f"/proc/{pid}/{name}", lambda p=pid, n=name: read(f"/proc/{p}/{n}"))
    for name in ("root", "cwd", "exe"):
        attempt(f"/proc/{pid}/{name}", lambda p=pid, n=name: os.listdir(f"/proc/{p}/{n}/"))
