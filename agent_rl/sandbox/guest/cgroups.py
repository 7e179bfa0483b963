"""Bound the memory and the CPU time of a process tree by control groups (version 2 or 1), where they may be made.

A sandbox makes one folder below its own group; each server is in a group of its own in it, and so is what it forks.
Every group has the same share of the processors, however many processes it starts, and at most its part of them.
Where no folder can be made the caller watches the tree's memory instead (`server.py`), and nothing bounds the CPU.
"""

import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass

_FOLDER = "agent_rl_"
_MEMORY = {  # version: (limit, file that counts how often it was reached, and the word before that number)
    2: ("memory.max", "memory.events", "oom "),
    1: ("memory.limit_in_bytes", "memory.failcnt", ""),
}
_PERIOD_US = 100_000


def _own_groups() -> dict[str, tuple[int, str]]:
    """Controller ("memory", "cpu") -> (version, folder) of the group we are in, where that controller is."""
    with open("/proc/self/cgroup") as file:
        entries = [line.rstrip("\n").split(":", 2) for line in file]
    mounts = {}
    with open("/proc/self/mounts") as file:
        for fields in map(str.split, file):
            if fields[2] == "cgroup2":
                mounts[""] = fields[1]
            elif fields[2] == "cgroup":
                mounts |= dict.fromkeys({"memory", "cpu"} & set(fields[3].split(",")), fields[1])
    found = {}
    for _, controllers, path in entries:
        for name in {"memory", "cpu"} & set(controllers.split(",")) & set(mounts):
            found[name] = (1, _visible(mounts[name], path))
        if not controllers and "" in mounts:
            folder = _visible(mounts[""], path)
            with contextlib.suppress(OSError), open(os.path.join(folder, "cgroup.controllers")) as file:
                for name in {"memory", "cpu"} & set(file.read().split()):
                    found.setdefault(name, (2, folder))
    return found


def _visible(mount: str, path: str) -> str:
    folder = mount + path
    return folder if os.path.isdir(folder) else mount  # in a container the path may be the host's


def make_bases(name: str, *, num_servers: int) -> str:
    """Make folders for the groups of one sandbox, as many as can be made, and describe them for `Bases`."""
    cores = max(1.0, len(os.sched_getaffinity(0)) / num_servers)
    bases: dict[str, tuple[int, str]] = {}
    made: dict[str, bool] = {}
    for controller, (version, parent) in sorted(_own_groups().items()):
        path = os.path.join(parent, f"{_FOLDER}{name}")
        with contextlib.suppress(OSError):
            if path not in made:
                made[path] = False
                os.mkdir(path)
            if version == 2:
                with open(os.path.join(path, "cgroup.subtree_control"), "w") as file:
                    file.write(f"+{controller}")
            probe = Bases(json.dumps({"bases": {controller: (version, path)}, "cores": cores}))
            if probe.try_out():
                bases[controller], made[path] = (version, path), True
    for path in (path for path, is_of_use in made.items() if not is_of_use and os.path.isdir(path)):
        os.rmdir(path)
    return json.dumps({"bases": bases, "cores": cores})


def remove_bases(described: str) -> None:
    """Remove the groups of a sandbox whose servers were killed, and kill what is left in them."""
    for path in {path for _, path in json.loads(described or "{}").get("bases", {}).values()}:
        _kill_members(path)
        _remove_base(path)


def _kill_members(base: str) -> None:
    """Of the groups of a sandbox that is our own: another's may be alive where we cannot see its host."""
    with contextlib.suppress(OSError):
        for name in os.listdir(base):
            with contextlib.suppress(OSError), open(os.path.join(base, name, "cgroup.procs")) as file:
                for pid in filter(None, map(int, file)):  # 0: a process that cannot be seen from here
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)


def _remove_base(base: str) -> None:
    """The kernel may need a moment to let go of dead processes."""
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
    for parent in {parent for _, parent in _own_groups().values()}:
        for name in os.listdir(parent):
            if name.startswith(_FOLDER) and not os.path.exists(f"/proc/{name.removeprefix(_FOLDER).split('_')[0]}"):
                _remove_base(os.path.join(parent, name))


@dataclass(frozen=True, slots=True)
class _Base:
    version: int
    path: str
    handle: int


class Bases:
    """The folders of one sandbox as one of its servers holds them: open, so also after it has left the file system."""

    def __init__(self, described: str) -> None:
        about = json.loads(described)
        self._cores = float(about["cores"])
        self._bases = {
            controller: _Base(version, path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            for controller, (version, path) in about["bases"].items()
        }

    def hand_over(self, uid: int, gid: int) -> None:
        """Let an unprivileged user make groups and move processes between them."""
        for base in self._bases.values():
            for path in (base.path, os.path.join(base.path, "cgroup.procs")):
                os.chown(path, uid, gid)

    def enter(self, name: str) -> "ControlGroup | None":
        """Be in a group of our own, where one can be made."""
        if not self._bases:
            return None
        with contextlib.suppress(OSError):
            group = ControlGroup(self._bases, name, self._cores)
            group.enter()
            return group
        return None

    def remove(self, name: str) -> None:
        """Remove an empty group; what is left goes with the sandbox."""
        for handle in {base.handle for base in self._bases.values()}:
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=handle)

    def about(self, group: "ControlGroup | None") -> dict[str, str]:
        """What bounds the memory and the CPU time of a run, in words."""
        return {
            "memory": "control group" if group and group.bounds_memory else "watched",
            "cpu": f"control group, at most {self._cores:g} cores" if group and group.bounds_cpu else "shared",
        }

    def try_out(self) -> bool:
        """Whether a group can be made; closes everything again."""
        try:
            ControlGroup(self._bases, "probe", self._cores).close()
            return True
        except OSError:
            return False
        finally:
            self.remove("probe")
            for base in self._bases.values():
                os.close(base.handle)


class ControlGroup:
    """One group below the bases, entered once by a server; what it forks is born in it, because moving is slow."""

    def __init__(self, bases: dict[str, _Base], name: str, cores: float) -> None:
        self._limit_mb, self._handles = 0, []
        self.bounds_memory, self.bounds_cpu = "memory" in bases, "cpu" in bases
        for handle in {base.handle for base in bases.values()}:
            os.mkdir(name, dir_fd=handle)
            self._handles.append(os.open(f"{name}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=handle))
        self._members = list(self._handles)
        for controller, base in bases.items():
            if controller == "memory":
                limit, counter, self._before_count = _MEMORY[base.version]
                self._limit = self._open(base, f"{name}/{limit}", os.O_WRONLY)
                self._counter = self._open(base, f"{name}/{counter}", os.O_RDONLY)
            else:
                limit, text = ("cpu.max", "{} {}") if base.version == 2 else ("cpu.cfs_quota_us", "{}")
                quota = text.format(round(cores * _PERIOD_US), _PERIOD_US)
                os.pwrite(self._open(base, f"{name}/{limit}", os.O_WRONLY), quota.encode(), 0)

    def _open(self, base: _Base, file: str, mode: int) -> int:
        self._handles.append(os.open(file, mode | os.O_CLOEXEC, dir_fd=base.handle))
        return self._handles[-1]

    def enter(self) -> None:
        """Move the calling process in."""
        for members in self._members:
            os.pwrite(members, b"0", 0)

    def set_limit(self, megabytes: int) -> None:
        """Bound the memory of everything in the group."""
        if megabytes != self._limit_mb:
            os.pwrite(self._limit, str(megabytes * 2**20).encode(), 0)
            self._limit_mb = megabytes

    def times_full(self) -> int:
        """How often the group's own limit of memory was reached, and not that of a group above it."""
        if not self.bounds_memory:
            return 0
        lines = os.pread(self._counter, 4096, 0).decode().splitlines()
        found = (line.removeprefix(self._before_count) for line in lines if line.startswith(self._before_count))
        return int(next(found, "0"))

    def close(self) -> None:
        """Close the files; the group itself stays."""
        for handle in self._handles:
            os.close(handle)
