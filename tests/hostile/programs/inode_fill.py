# MUST: the number of files is bounded, wherever they are made.
from attack import blocked, pwned

total = 0
for folder in (".", "/tmp", "/dev/shm"):
    try:
        for number in range(2000):
            with open(f"{folder}/inode{number}", "w"):
                total += 1
    except OSError as error:
        blocked(folder, error)
if total > 1024:
    pwned(f"{total} files")
