# MUST: what the kernel counts for all processes of a user, or of the machine, cannot be used up.
import ctypes
import fcntl
import os

from attack import attempt, blocked, expect_refusal, libc, pwned

expect_refusal("io_setup", 65536, ctypes.byref(ctypes.c_ulong(0)))
expect_refusal("inotify_init1", 0)
pipe = os.pipe()
attempt("a large pipe", lambda: fcntl.fcntl(pipe[1], 1031, 1 << 20))
timers = 0
while timers < 20_000:
    if libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())):
        break
    timers += 1
(pwned if timers >= 5_000 else blocked)("timers", timers)
