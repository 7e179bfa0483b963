# MUST: collecting pipes, sockets, loops, folders and devices neither blocks nor fails; only regular files come back.
import contextlib
import os
import socket

os.mkfifo("answer.txt")
listener = socket.socket(socket.AF_UNIX)
with contextlib.suppress(OSError):
    listener.bind("socket")
os.symlink("loop", "loop")
os.symlink("other2", "other1")
os.symlink("other1", "other2")
os.mkdir("folder")
os.symlink("..", "folder/up")
with open("real.txt", "w") as file:
    file.write("kept")
print("main done")
