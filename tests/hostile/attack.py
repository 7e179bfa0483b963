"""Helper beside every hostile program: prints PWNED when an attempt worked, BLOCKED when not."""

import contextlib
import ctypes
import errno
import os
import platform
from collections.abc import Callable
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
TOKEN = os.environ.get("HOSTILE_TOKEN", "0")
COLUMN = 1 if platform.machine() == "aarch64" else 0
SYSCALLS = {  # name: (x86_64, aarch64)
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "cachestat": (451, 451),
    "chroot": (161, 51),
    "clone": (56, 220),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsopen": (430, 430),
    "init_module": (175, 105),
    "inotify_add_watch": (254, 27),
    "inotify_init1": (294, 26),
    "io_setup": (206, 0),
    "io_uring_setup": (425, 425),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "mincore": (27, 232),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "readahead": (187, 213),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "semget": (64, 190),
    "setns": (308, 268),
    "shmget": (29, 194),
    "swapon": (167, 224),
    "sysinfo": (99, 179),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
_REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS)

# Forks keep the name, so the host finds what is left of a run wherever it hides.
libc.prctl(15, f"hostile{TOKEN}"[:15].encode(), 0, 0, 0)


def blocked(what: str, why: object = "") -> None:
    print("BLOCKED", what, str(why)[:120].replace("\n", " "), flush=True)


def pwned(what: str, how: object = "") -> None:
    print("PWNED", what, str(how)[:120].replace("\n", " "), flush=True)


def attempt(what: str, action: Callable[[], Any]) -> None:
    """The attack works when `action` returns."""
    try:
        how = action()
    except (OSError, ValueError, MemoryError, RuntimeError) as error:
        blocked(what, repr(error))
    else:
        pwned(what, how)


def system_call(name: str, *arguments: Any) -> int:
    result = libc.syscall(ctypes.c_long(SYSCALLS[name][COLUMN]), *arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def expect_refusal(name: str, *arguments: Any) -> None:
    """The call must be turned away by name: any other error means that the kernel looked at its arguments."""
    try:
        system_call(name, *arguments)
    except OSError as error:
        (blocked if error.errno in _REFUSALS else pwned)(name, error.strerror)
    else:
        pwned(name)


def in_own_pid_namespace() -> bool:
    """Checked by programs that signal everything, so that they harm nothing where they are not contained."""
    return os.getpid() < 64


def numbers_of_processes() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return []
