# MUST: no user id, no capability and no setuid program gives more rights.
import os
import subprocess

from attack import attempt, blocked, pwned

with open("/proc/self/status") as file:
    status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
(blocked if status["NoNewPrivs"].strip() == "1" else pwned)("NoNewPrivs", status["NoNewPrivs"])
for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
    (blocked if int(status[name], 16) == 0 else pwned)(name, status[name])
(pwned if 0 in os.getresuid() else blocked)("user", os.getresuid())
(pwned if 0 in (*os.getresgid(), *os.getgroups()) else blocked)("groups", (os.getresgid(), os.getgroups()))
attempt("setuid", lambda: os.setuid(0))
attempt("setgid", lambda: os.setgid(0))
attempt("setgroups", lambda: os.setgroups([0]))
for program in ("su", "sudo", "pkexec", "newgrp"):
    try:
        done = subprocess.run(
            [program, "-c", "id -u"], input="", capture_output=True, text=True, timeout=1, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        blocked(program, error)
    else:
        (pwned if done.stdout.strip() == "0" else blocked)(program, done.stderr)
