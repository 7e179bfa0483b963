"""Isolation of a fork server, entered once at its start. Standard library only; runs inside the server's interpreter.

Tier `namespaces`: own process, mount, network and IPC namespaces, so a read-only host, a hidden home folder, private
temporary folders and process 1 for ourselves. Tier `process`: limits, an own temporary folder, and no network where
the kernel allows it. Neither stops an attack on the kernel itself, and neither bounds the memory of a whole tree.
"""

import contextlib
import ctypes
import os
import signal
import struct
import tempfile
from typing import Any

UNPRIVILEGED = 65534
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
SYS_MOUNT_SETATTR, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, 0x8000, 1
CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def libc_call(function: str, *arguments: Any) -> None:
    """A libc call that raises OSError instead of returning -1."""
    if getattr(_libc, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


def prctl(option: int, value: int) -> None:
    """prctl(2) with one argument."""
    libc_call("prctl", option, value, 0, 0, 0)


def unshare(flags: int) -> None:
    """Enter new namespaces: directly as root, else inside a user namespace that maps only our own ids."""
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        libc_call("unshare", flags)
        return
    libc_call("unshare", flags | CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def enter_namespaces(keep: list[str], home: str) -> list[str]:
    """Become process 1 of new namespaces with a private view of the file system; return its writable folders.

    The calling process stays outside as a launcher that only waits, and this returns in its child.
    """
    unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC)
    pid = os.fork()
    if pid:
        os.closerange(0, 64)  # the host must see end-of-file when process 1 dies
        os.waitpid(pid, 0)
        os._exit(0)
    libc_call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    read_only = struct.pack("QQQQ", MOUNT_ATTR_RDONLY, 0, 0, 0)
    libc_call("syscall", SYS_MOUNT_SETATTR, -100, b"/", AT_RECURSIVE, read_only, len(read_only))
    handles = {path: os.open(path, os.O_PATH) for path in sorted(keep)}
    scratch = [path for path in dict.fromkeys(("/dev/shm", "/tmp", "/var/tmp", home)) if os.path.isdir(path)]
    scratch = [path for path in scratch if path != "/"]
    for path in scratch:
        libc_call("mount", b"tmpfs", path.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, b"size=256m,mode=1777")
    for path, handle in handles.items():
        if not os.path.isdir(path):  # it lay in a folder that is hidden now
            os.makedirs(path)
            libc_call("mount", f"/proc/self/fd/{handle}".encode(), path.encode(), None, MS_BIND, None)
        os.close(handle)
    libc_call("mount", b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, None)
    return scratch


def drop_privileges(keep: list[str]) -> bool:
    """Give up root (if `keep` can be read without it) and every capability; return True when not root."""
    if os.getuid() == 0 and all(_readable_by_anybody(path) for path in keep):
        os.setgroups([])
        os.setresgid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
        os.setresuid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    libc_call("capset", struct.pack("Ii", CAPABILITY_VERSION_3, 0), bytes(24))
    return os.getuid() != 0


def _readable_by_anybody(path: str) -> bool:
    while path != "/":
        if not os.stat(path).st_mode & 0o001:
            return False
        path = os.path.dirname(path)
    return True


def isolate(tier: str, keep: list[str], home: str) -> tuple[list[str], list[str]]:
    """Return (what is enforced, writable folders). Raises OSError where the tier is not available."""
    enforced = ["kill_tree", "memory_per_process", "clean_environment"]
    if tier == "namespaces":
        scratch = enter_namespaces(keep, home)
        enforced += ["no_network", "process_namespace", "read_only_host", "hidden_home"]
    else:
        with contextlib.suppress(OSError):  # reported in the hello by the absence of no_network
            unshare(CLONE_NEWNET)
            enforced.append("no_network")
    if drop_privileges(keep):
        enforced.append("unprivileged")
        if tier == "namespaces":  # outside, the user's other processes would be counted too
            enforced.append("process_limit")
    if tier == "process":
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        scratch = [tempfile.mkdtemp(prefix="agent_rl_", dir=shared)]
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return enforced, scratch
