# MUST: system calls that the filter was not written for do not exist, nor those that signal through shared files.
import ctypes
import errno

from attack import COLUMN, blocked, libc, pwned

FUTEX_WAITV, FUTEX_WAKE, FCHMODAT2 = 449, 454, 452
beyond_the_old = range(335, 424) if COLUMN == 0 else range(295, 424)
for number in (FUTEX_WAITV, FUTEX_WAKE, *range(FCHMODAT2 + 1, 600), *beyond_the_old):
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6)
    is_missing = result == -1 and ctypes.get_errno() == errno.ENOSYS
    (blocked if is_missing else pwned)(f"call {number}", errno.errorcode.get(ctypes.get_errno()))
for number in (424, 434, 436, 439, FCHMODAT2):  # libc uses them
    libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6)
    (pwned if ctypes.get_errno() in (errno.ENOSYS, errno.EPERM) else blocked)(f"call {number} is missing")
