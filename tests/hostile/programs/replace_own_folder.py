# MUST: a working folder that was moved away or replaced by a link leads the collection nowhere else.
import contextlib
import os

here = os.getcwd()
with contextlib.suppress(OSError):
    os.rename(here, here + ".old")
with contextlib.suppress(OSError):
    os.symlink("/etc", here)
with contextlib.suppress(OSError):
    os.rmdir(here)
with contextlib.suppress(OSError):
    os.chmod(here, 0)
print("main done")
