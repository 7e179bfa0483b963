# MUST: there is no terminal to read from or to type into.
import fcntl
import os
import pty

from attack import attempt, blocked, pwned

attempt("/dev/tty", lambda: os.open("/dev/tty", os.O_RDWR))
for descriptor in (0, 1, 2):
    attempt(f"TIOCSTI on {descriptor}", lambda d=descriptor: fcntl.ioctl(d, 0x5412, b"x"))
    attempt(f"process group of {descriptor}", lambda d=descriptor: os.tcgetpgrp(d))
try:
    master, slave = pty.openpty()
except OSError as error:
    blocked("pty", error)
else:  # a terminal of one's own is harmless, typing into it is what must not work
    try:
        fcntl.ioctl(slave, 0x5412, b"x")
        pwned("TIOCSTI on an own terminal")
    except OSError as error:
        blocked("TIOCSTI on an own terminal", error)
