"""Bound the memory of a process tree by a control group (version 2 or 1), where one may be made.

A sandbox makes one folder below its own group; each server is in a group of its own in it, and so is what it forks.
Where no folder can be made the caller watches the tree's memory instead (`server.py`). Bounds memory only.
"""

import contextlib
import os
import time

_FOLDER = "agent_rl_"
_FILES = {  # version: (limit, file that counts kills)
    2: ("memory.max", "memory.events"),
    1: ("memory.limit_in_bytes", "memory.oom_control"),
}


def _own_group() -> tuple[int, str] | None:
    """(version, folder) of the group we are in, in a hierarchy that has the memory controller."""
    with open("/proc/self/cgroup") as file:
        entries = [line.rstrip("\n").split(":", 2) for line in file]
    mounts = {}
    with open("/proc/self/mounts") as file:
        for fields in map(str.split, file):
            if fields[2] == "cgroup2":
                mounts[""] = fields[1]
            elif fields[2] == "cgroup" and "memory" in fields[3].split(","):
                mounts["memory"] = fields[1]
    for _, controllers, path in entries:
        if "memory" in controllers.split(",") and "memory" in mounts:
            return 1, _visible(mounts["memory"], path)
        if not controllers and "" in mounts:
            folder = _visible(mounts[""], path)
            with contextlib.suppress(OSError), open(os.path.join(folder, "cgroup.controllers")) as file:
                if "memory" in file.read().split():
                    return 2, folder
    return None


def _visible(mount: str, path: str) -> str:
    folder = mount + path
    return folder if os.path.isdir(folder) else mount  # in a container the path may be the host's


def make_base(name: str) -> str:
    """Make a folder for the groups of one sandbox and return its path; OSError where that is not possible."""
    found = _own_group()
    if found is None:
        raise OSError("no memory control group is mounted")
    version, parent = found
    base = os.path.join(parent, f"{_FOLDER}{name}")
    os.mkdir(base)
    try:
        if version == 2:
            with open(os.path.join(base, "cgroup.subtree_control"), "w") as file:
                file.write("+memory")
        handle = os.open(base, os.O_RDONLY)
        MemoryGroup(handle, "probe").remove()
        os.close(handle)
    except OSError:
        os.rmdir(base)
        raise
    return base


def hand_over(base: str, uid: int, gid: int) -> None:
    """Let an unprivileged user make groups in `base` and move processes between them."""
    for path in (base, os.path.join(base, "cgroup.procs")):
        os.chown(path, uid, gid)


def remove_base(base: str) -> None:
    """Remove the groups of a sandbox whose processes were killed; the kernel may need a moment to let go of them."""
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            for name in os.listdir(base):
                if os.path.isdir(os.path.join(base, name)):
                    os.rmdir(os.path.join(base, name))
            os.rmdir(base)
        if not os.path.exists(base):
            return
        time.sleep(0.01)


def remove_stale() -> None:
    """Remove the folders of sandboxes whose host process is gone (`kill -9` leaves them empty)."""
    found = _own_group()
    for name in os.listdir(found[1]) if found else ():
        if name.startswith(_FOLDER) and not os.path.exists(f"/proc/{name.removeprefix(_FOLDER).split('_')[0]}"):
            remove_base(os.path.join(found[1], name))


class MemoryGroup:
    """One group below a base, entered once by a server; what it forks is born in it, because moving is slow.

    Works through open files, so also after the file system was left and rights were dropped.
    """

    def __init__(self, base: int, name: str) -> None:
        """`base` is a descriptor of the base folder."""
        self._base, self._name, self._limit_mb = base, name, 0
        os.mkdir(name, dir_fd=base)
        version = 2 if "cgroup.events" in os.listdir(base) else 1
        limit, events = _FILES[version]
        try:
            self._limit = self._open(limit, os.O_WRONLY)
            self._events = self._open(events, os.O_RDONLY)
            self._members = self._open("cgroup.procs", os.O_WRONLY)
        except OSError:
            os.rmdir(name, dir_fd=base)
            raise

    def _open(self, file: str, mode: int) -> int:
        return os.open(f"{self._name}/{file}", mode | os.O_CLOEXEC, dir_fd=self._base)

    def enter(self) -> None:
        """Move the calling process in."""
        os.pwrite(self._members, b"0", 0)

    def set_limit(self, megabytes: int) -> None:
        if megabytes != self._limit_mb:
            os.pwrite(self._limit, str(megabytes * 2**20).encode(), 0)
            self._limit_mb = megabytes

    def num_kills(self) -> int:
        """Processes killed so far because the group was full."""
        lines = os.pread(self._events, 4096, 0).decode().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

    def remove(self) -> None:
        """Only while no process is in it."""
        for handle in (self._limit, self._events, self._members):
            os.close(handle)
        os.rmdir(self._name, dir_fd=self._base)
