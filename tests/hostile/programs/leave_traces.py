# MUST: nothing that this run leaves anywhere is found by the next one.
import builtins
import contextlib
import os
import sys
import tempfile

builtins.left_behind = sys.left_behind = os.left_behind = 1  # type: ignore[attr-defined]
os.environ["LEFT_BEHIND"] = "1"
for folder in (".", "..", "/", "/tmp", "/dev/shm", "/var/tmp", "/dev", tempfile.gettempdir(), os.path.expanduser("~")):
    with contextlib.suppress(OSError):
        open(os.path.join(folder, f"left_behind_{os.environ['HOSTILE_TOKEN']}"), "w").close()
for name in ("null", "zero", "full", "random", "urandom"):
    with contextlib.suppress(OSError):
        os.utime(f"/dev/{name}")
os.umask(0o777)
os.nice(5)
print("main done")
