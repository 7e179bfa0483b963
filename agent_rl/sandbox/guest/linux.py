"""Linux calls that the standard library lacks, through ctypes: namespaces, mounts, prctl, capabilities.

Every function raises OSError where the kernel refuses. Policy (what to hide, what to drop) is in tiers.py.
"""

import ctypes
import fcntl
import os
import platform
import signal
import socket
import struct
from typing import Any

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x04000000, 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_CAPABILITY_VERSION_3 = 0x20080522
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1

MACHINE = platform.machine()
_SYSCALLS = {  # those without a libc function
    "x86_64": {"clone": 56, "pivot_root": 155, "mount_setattr": 442},
    "aarch64": {"clone": 220, "pivot_root": 41, "mount_setattr": 442},
}

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
_with_gil = ctypes.PyDLL(None, use_errno=True)
_with_gil.syscall.restype = ctypes.c_long


def checked(what: str, result: int) -> int:
    """The result of a libc call, or OSError when it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall_number(name: str) -> int:
    if MACHINE not in _SYSCALLS:
        raise OSError(f"system call numbers of {MACHINE} are not known here")
    return _SYSCALLS[MACHINE][name]


def prctl(option: int, value: int) -> None:
    checked(f"prctl {option}", libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def unshare(flags: int) -> None:
    checked("unshare", libc.unshare(flags))


def clone(flags: int) -> int:
    """fork(2) into new namespaces: the child's pid in the parent, 0 in the child.

    A raw system call, because libc has no fork with flags; the interpreter is notified as `os.fork` does. Only
    for processes with one thread.
    """
    _with_gil.PyOS_BeforeFork()
    pid = _with_gil.syscall(syscall_number("clone"), ctypes.c_ulong(flags | signal.SIGCHLD), 0, 0, 0, 0)
    if pid == 0:
        _with_gil.PyOS_AfterFork_Child()
    else:
        _with_gil.PyOS_AfterFork_Parent()
    return checked("clone", pid)


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    result = libc.mount(*arguments[:3], ctypes.c_ulong(flags), arguments[3])
    checked(f"mount {target}", result)


def unmount(target: str) -> None:
    """Lazily: what is still open there stays usable."""
    checked(f"umount {target}", libc.umount2(os.fsencode(target), MNT_DETACH))


def set_mount_attributes(target: str, attributes: int, *, recursive: bool = True) -> None:
    """mount_setattr(2), Linux 5.12: unlike a remount it preserves the flags an outer namespace has locked."""
    argument = struct.pack("QQQQ", attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    number = syscall_number("mount_setattr")
    result = libc.syscall(number, _AT_FDCWD, os.fsencode(target), flags, argument, ctypes.c_size_t(len(argument)))
    checked(f"mount_setattr {target}", result)


def pivot_root(new_root: str) -> None:
    """Make `new_root` (a mount point) the root and let go of the old one."""
    os.chdir(new_root)
    checked("pivot_root", libc.syscall(syscall_number("pivot_root"), b".", b"."))
    unmount(".")
    os.chdir("/")


def map_ids(outside: tuple[int, int], inside: tuple[int, int]) -> None:
    """Give (user, group) `outside` the ids `inside` in the user namespace just entered."""
    texts = {"setgroups": "deny"}
    texts |= {f"{kind}_map": f"{new} {old} 1" for kind, old, new in zip(("uid", "gid"), outside, inside, strict=True)}
    for name, text in texts.items():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def drop_capabilities() -> None:
    checked("capset", libc.capset(struct.pack("Ii", _CAPABILITY_VERSION_3, 0), bytes(24)))


def bring_up_loopback() -> None:
    """A fresh network namespace has a loopback device that is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def bound_tcp_buffers() -> None:
    """Keep what a connection of this network namespace holds small: the kernel lets buffers grow to megabytes, and old
    control groups count none of it."""
    for name in ("rmem", "wmem"):
        with open(f"/proc/sys/net/ipv4/tcp_{name}", "w") as file:
            file.write("4096 16384 65536")


def num_oom_kills() -> int:
    """Processes that the kernel has killed for want of memory, for a full group's or the machine's."""
    with open("/proc/vmstat") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)


def threads_of(pid: int | str) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def parents() -> dict[int, int]:
    """Process id -> parent's id of every process that can be seen."""
    found: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                found[int(name)] = int(file.read().rpartition(")")[2].split()[1])
        except OSError:  # ended meanwhile
            continue
    return found


def num_sessions(pids: list[int]) -> int:
    """In how many sessions these processes are; the kernel may share the processors between sessions."""
    found = set()
    for pid in pids:
        try:
            found.add(os.getsid(pid))
        except ProcessLookupError:
            continue
    return len(found)


def descendants(root: int, *, without: set[int] | frozenset[int] = frozenset()) -> list[int]:
    """All processes below `root`, not entering the trees of `without`."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue: list[Any] = [root]
    while queue:
        for pid in children.get(queue.pop(), ()):
            if pid not in without:
                found.append(pid)
                queue.append(pid)
    return found
