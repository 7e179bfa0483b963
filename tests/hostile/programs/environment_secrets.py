# MUST: none of the host's variables is in the environment, in that of children, or in the memory of the process.
import os
import subprocess
import sys

from attack import blocked, pwned

CANARY = "canary" + "-of-the-host"
places = {
    "os.environ": repr(dict(os.environ)),
    "env": subprocess.run(["/usr/bin/env"], capture_output=True, text=True, check=False).stdout,
    "arguments": repr(sys.orig_argv),
}
for name in ("environ", "cmdline"):
    try:
        with open(f"/proc/self/{name}", errors="replace") as file:
            places[f"/proc/self/{name}"] = file.read()
    except OSError as error:
        blocked(name, error)
for name, text in places.items():
    (pwned if CANARY in text else blocked)(name)
