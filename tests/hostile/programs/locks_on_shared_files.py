# MUST: a lock on a file that other runs can open shows to nobody else.
import fcntl
import os
import struct
import sys
from collections.abc import Callable

from attack import blocked, pwned

PATHS = (os.__file__, sys.executable, "/dev/null", "/dev/zero", "/usr/bin", "/proc/self/exe")
LOCK = struct.pack("hhqqi4x", 1, 0, 0, 0, 0)  # F_WRLCK over the whole file
READ = struct.pack("hhqqi4x", 0, 0, 0, 0, 0)


def asks(number: int) -> Callable[[int], bool]:
    return lambda fd: struct.unpack("hhqqi4x", fcntl.fcntl(fd, number, LOCK))[4] != 0


def is_refused(fd: int, mode: int) -> bool:
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def is_record_refused(number: int) -> Callable[[int], bool]:
    def ask(fd: int) -> bool:
        try:
            fcntl.fcntl(fd, number, LOCK)
        except BlockingIOError:
            return True
        return False

    return ask


KINDS: dict[str, tuple[Callable[[int], object], Callable[[int], bool]]] = {
    "flock": (lambda fd: fcntl.flock(fd, fcntl.LOCK_EX), lambda fd: is_refused(fd, fcntl.LOCK_EX)),
    "flock shared": (lambda fd: fcntl.flock(fd, fcntl.LOCK_SH), lambda fd: is_refused(fd, fcntl.LOCK_EX)),
    "F_SETLK write": (lambda fd: fcntl.fcntl(fd, 6, LOCK), is_record_refused(6)),
    "F_SETLK read": (lambda fd: fcntl.fcntl(fd, 6, READ), asks(5)),
    "F_OFD_SETLK read": (lambda fd: fcntl.fcntl(fd, 37, READ), asks(36)),
    "F_OFD_SETLK write": (lambda fd: fcntl.fcntl(fd, 37, LOCK), is_record_refused(37)),
    "lease": (lambda fd: fcntl.fcntl(fd, 1024, 0), lambda fd: fcntl.fcntl(fd, 1025) == 0),
    "write hint": (lambda fd: fcntl.fcntl(fd, 1036, struct.pack("Q", 4)), lambda fd: True),
}
for path in PATHS:
    for mode in (os.O_RDONLY, os.O_RDWR):
        for name, (take, sees) in KINDS.items():
            try:
                holder = os.open(path, mode)
                other = os.open(path, mode)
            except OSError:
                continue
            try:
                take(holder)
                pid = os.fork()
                if pid == 0:
                    os.close(holder)
                    try:
                        os._exit(3 if sees(other) else 0)
                    except OSError:
                        os._exit(0)
                seen = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
            except OSError:
                seen = False
            (pwned if seen else blocked)(f"{name} on {path} {mode}")
            os.close(holder)
            os.close(other)
