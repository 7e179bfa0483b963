# MUST: what comes back is never the content of a file behind a link.
import contextlib
import os

secret = os.environ["HOSTILE_SECRET"]
os.symlink(secret, "answer.txt")
os.symlink("../" * 9 + os.path.relpath(secret, "/"), "relative.txt")
os.symlink(os.path.dirname(secret), "folder")
os.symlink("/etc", "etc")
os.symlink("/proc/self", "proc")
with contextlib.suppress(OSError):
    os.link("/etc/passwd", "linked.txt")
print("main done")
