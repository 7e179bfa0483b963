# MUST: nothing of the run before is here.
import builtins
import os
import sys
import tempfile
import time

from attack import blocked, pwned

for module in (builtins, sys, os):
    (pwned if hasattr(module, "left_behind") else blocked)(module.__name__)
(pwned if "LEFT_BEHIND" in os.environ else blocked)("environment")
for folder in (".", "..", "/", "/tmp", "/dev/shm", "/var/tmp", "/dev", tempfile.gettempdir(), os.path.expanduser("~")):
    try:
        left = [name for name in os.listdir(folder) if name.startswith(f"left_behind_{os.environ['HOSTILE_TOKEN']}")]
    except OSError as error:
        blocked(folder, error)
    else:
        (pwned if left else blocked)(folder, left)
for name in ("null", "zero", "full", "random", "urandom"):
    age_s = time.time() - os.stat(f"/dev/{name}").st_mtime
    (pwned if age_s < 10 else blocked)(f"time of /dev/{name}", age_s)
old = os.umask(0o022)
(pwned if old == 0o777 else blocked)("umask", old)
