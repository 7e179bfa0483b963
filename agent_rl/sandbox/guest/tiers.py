"""The isolation tiers: what a server enters once at its start, and what each run adds.

`namespaces`: a root file system of its own with the interpreter in it and nothing else, and for every run new process,
mount, network, IPC and user namespaces with a tmpfs workspace. `landlock`: file rules, no sockets, one working folder.
`rlimits`: limits alone. Each is tried by doing it; OSError gives the reason if it fails. No tier stops an attack
on the kernel itself.
"""

import contextlib
import glob
import os
import resource
import signal
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from agent_rl.sandbox.guest import filters, guard, linux, trees
from agent_rl.sandbox.guest.linux import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_PRIVATE, MS_RDONLY, MS_REC

UNPRIVILEGED = 65534
USER_INSIDE = 1000
SYSTEM_FOLDERS = ("/usr", "/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl", "/nix/store")
SYSTEM_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
SETTINGS = ("pip.conf", "uv.toml", ".netrc", ".pypirc")
"""In an interpreter's folder; they may hold keys."""
_SIGNALS_PER_PROCESS = 16
"""Pending signals and timers, which the kernel counts for all processes of a user together."""
_MEGABYTE = 2**20


class Tier:
    """What the two lower tiers share: an own folder, limits, a system call filter, and killing by walking the tree."""

    name = "rlimits"
    networked = True  # whether IP sockets are harmless, or cannot be distinguished from harmful ones

    def __init__(self, visible: Sequence[str]) -> None:
        self.visible = list(visible)
        self.enforced = ["mem_per_process"]
        self.box = ""
        """Everything a run may write lies below; deleted with the run."""
        self.scratch: str | None = None
        """What the names of all boxes of a server begin with, where they lie in a file system of the host's."""

    def enter(self, load: Callable[[], None], loaded_from: Sequence[str]) -> None:
        """Isolate this process, calling `load` in the working folder, where `loaded_from` can still be read."""
        hidden = [path for path in self.visible if os.getuid() == 0 and not _readable_by_anybody(path)]
        if hidden:
            raise OSError(f"work never runs as user 0, and user {UNPRIVILEGED} cannot read {hidden[0]}")
        host = os.getppid()
        guard.go_on_below_guard()
        self.scratch = trees.make_scratch(host)
        self.name_boxes()
        self._make_box()
        self._load(load)
        trees.remove_tree(self.box)
        _leave_root()
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        linux.drop_capabilities()
        self.enforced += ["unprivileged", "kill_tree"]
        self._prepare_filter()

    def _load(self, load: Callable[[], None]) -> None:
        os.chdir(self.workdir)
        tempfile.tempdir = self.temporary
        load()
        os.chdir("/")

    def _prepare_filter(self) -> None:
        self.program = b""
        with contextlib.suppress(OSError):
            self.program = filters.seccomp_program(filters.filter_families(network=self.networked))
            self.enforced.append("syscall_filter")

    def name_boxes(self) -> None:
        """Tell the boxes of this server from those of the one it was forked from."""
        self._prefix = f"{self.scratch}_{os.getpid()}_"

    def _make_box(self) -> None:
        """Nothing of ours above it but folders of the system, and a name that no other run knows: whoever runs with the
        same user could lock what is above it, or the box itself."""
        self.box = f"{self._prefix}{os.urandom(8).hex()}"
        os.mkdir(self.box, 0o700)
        self.make_folders()

    @property
    def workdir(self) -> str:
        return os.path.join(self.box, "work")

    @property
    def temporary(self) -> str:
        return os.path.join(self.box, "tmp")

    def make_folders(self) -> None:
        for folder in (self.workdir, self.temporary):
            os.mkdir(folder, 0o700)

    def fork(self) -> int:
        """Start the first process of a run."""
        return os.fork()

    def enter_run(self, limits: dict[str, Any]) -> None:
        """In the run's first process: make its folders. What it writes later is gone with it.

        Linked runs live at the same time: what judges is out of reach of what is judged, which knows not even where.
        """
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        self._make_box()

    def confine(self) -> None:
        """In the process that runs the job: the filters, for good."""
        if self.program:
            filters.install_seccomp(self.program)

    def kill_rest(self) -> None:
        """In the run's first process, when the job has ended: kill and reap everything else of the run."""
        guard.kill_all_below(os.getpid())

    def after_run(self, others: set[int]) -> None:
        """In the server: leave no process of the run; `others` are servers forked from this one."""
        guard.kill_all_below(os.getpid(), others)

    def tidy_up(self) -> None:
        """In the server, when the run's end was told: leave no file of it. A run can make this last long."""
        try:
            trees.remove_all(self._prefix)
        except OSError:  # the next run must not find it: the host starts a fresh server
            os._exit(1)

    def leave(self) -> None:
        """At the end of a server that was forked from another."""
        self.after_run(set())
        self.tidy_up()


class LandlockTier(Tier):
    name = "landlock"
    networked = False

    def enter(self, load: Callable[[], None], loaded_from: Sequence[str]) -> None:
        if filters.landlock_abi() < 1:
            raise OSError("this kernel has no Landlock")
        super().enter(load, loaded_from)
        if not self.program:
            raise OSError("without a system call filter the network would be open")
        # Contents outside cannot be changed either, but modes and times of the user's own files can: not readonly_host.
        self.enforced += ["hide_files", "no_network"]
        shown = [*self.visible, *filter(os.path.exists, (*SYSTEM_FOLDERS, *SYSTEM_LINKS, "/proc"))]
        settings = [os.path.join(folder, name) for folder in self.visible for name in SETTINGS]
        hidden = map(os.path.realpath, (*loaded_from, *_installed(self.visible), *settings))
        self.readable, self.listable = filters.all_but(set(filter(os.path.exists, hidden)), shown)

    def confine(self) -> None:
        filters.install_landlock(self.readable, self.listable, [self.box, *DEVICES])
        super().confine()


class NamespacesTier(Tier):
    name = "namespaces"

    def enter(self, load: Callable[[], None], loaded_from: Sequence[str]) -> None:
        self.box = "/sandbox"
        ids, was_root = (os.getuid(), os.getgid()), os.getuid() == 0
        namespaces = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWNET | linux.CLONE_NEWIPC
        linux.unshare(namespaces | linux.CLONE_NEWUTS | (0 if was_root else linux.CLONE_NEWUSER))
        if not was_root:
            linux.map_ids(ids, ids)
        _wait_outside()
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        linux.mount("none", "/", None, MS_REC | MS_PRIVATE)
        _build_root(self.visible, loaded_from)
        linux.bound_tcp_buffers()  # here to learn whether this kernel lets us; each run has a network of its own
        linux.mount("tmpfs", self.box, "tmpfs", MS_NOSUID | MS_NODEV, "size=16m,mode=755")
        self.make_folders()
        self._load(load)
        linux.unmount(self.box)
        # Reference solutions lie beside what we loaded.
        for path in filter(os.path.isdir, (*loaded_from, *_installed(self.visible))):
            linux.mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV | MS_RDONLY, "size=4k,nr_inodes=1")
        self._in_tmp = _second_places(self.visible)
        linux.set_mount_attributes("/", linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID, recursive=False)
        _leave_root()
        linux.prctl(linux.PR_SET_DUMPABLE, 1)  # changing the user cleared it, and /proc/self became root's
        linux.drop_capabilities()
        self.ids = (os.getuid(), os.getgid())
        self.enforced += ["hide_files", "readonly_host", "no_network", "pid_isolation", "kill_tree", "unprivileged"]
        self.enforced += ["proc_limit", "disk_quota"]
        self._prepare_filter()

    def name_boxes(self) -> None:
        """Every run has its own view of the one path."""

    def make_folders(self) -> None:
        for name in ("work", "tmp", "shm"):
            os.mkdir(os.path.join(self.box, name), 0o700)

    def fork(self) -> int:
        namespaces = linux.CLONE_NEWUSER | linux.CLONE_NEWPID | linux.CLONE_NEWNS | linux.CLONE_NEWIPC
        return linux.clone(namespaces | linux.CLONE_NEWNET | linux.CLONE_NEWUTS)

    def enter_run(self, limits: dict[str, Any]) -> None:
        linux.map_ids(self.ids, (USER_INSIDE, USER_INSIDE))
        linux.bound_tcp_buffers()  # while the server's /proc is here, which has the run's settings
        quota = f"size={limits['disk_mb']}m,nr_inodes={limits['inodes']},mode=755"
        linux.mount("tmpfs", self.box, "tmpfs", MS_NOSUID | MS_NODEV, quota)
        self.make_folders()
        if self._in_tmp:
            self._replace_tmp()
        # Of /proc its own processes alone: the rest counts what others do, or tells about the host.
        linux.mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, "subset=pid")
        linux.bring_up_loopback()
        linux.drop_capabilities()

    def _replace_tmp(self) -> None:
        """An interpreter below /tmp: the run's own folder takes the place of /tmp, the interpreter bound into it."""
        for name, place in self._in_tmp.items():
            target = os.path.join(self.temporary, name)
            os.mkdir(target)
            linux.mount(place, target, None, MS_BIND | MS_REC)
        linux.mount(self.temporary, "/tmp", None, MS_BIND | MS_REC)

    def kill_rest(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        _reap()

    def after_run(self, others: set[int]) -> None:
        """The kernel took everything down with the run's first process."""

    def tidy_up(self) -> None:
        """Nor does a file of it remain."""

    def leave(self) -> None:
        """Nothing of it is outside of its namespaces."""


TIERS: dict[str, type[Tier]] = {tier.name: tier for tier in (NamespacesTier, LandlockTier, Tier)}


def set_limits(limits: dict[str, Any], base_memory: int, *, count_processes: bool) -> None:
    """The limits of one process and what it starts; `base_memory` is what the warm interpreter had mapped already."""
    wanted = {
        resource.RLIMIT_AS: base_memory + limits["memory_mb"] * _MEGABYTE,
        resource.RLIMIT_FSIZE: limits["file_mb"] * _MEGABYTE,
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_SIGPENDING: _SIGNALS_PER_PROCESS * limits["processes"],
    }
    if count_processes:  # per user namespace; the run's first process counts too
        wanted[resource.RLIMIT_NPROC] = limits["processes"] + 1
    for kind, value in wanted.items():
        hard = resource.getrlimit(kind)[1]
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (allowed, allowed))
    # One second between the two: a soft limit sends SIGXCPU, which distinguishes a timeout from a crash.
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_s"], limits["cpu_s"] + 1))


def _leave_root() -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
        os.setresuid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)


def _installed(visible: Sequence[str]) -> list[str]:
    """Where this package is installed for an interpreter that programs may see."""
    places = (f"{prefix}/lib*/python3*/*-packages/agent_rl" for prefix in (*visible, "/usr", "/usr/local"))
    return sorted({os.path.realpath(path) for place in places for path in glob.glob(place)})


def _readable_by_anybody(path: str) -> bool:
    while path != "/":
        if not os.stat(path).st_mode & 0o001:
            return False
        path = os.path.dirname(path)
    return True


def _wait_outside() -> None:
    """Continue as process 1 of the new namespace; the calling process stays outside and waits for its end."""
    pid = os.fork()
    if pid:
        os.closerange(0, 64)  # the host must see end-of-file when process 1 dies
        os.waitpid(pid, 0)
        os._exit(0)


def _build_root(visible: Sequence[str], loaded_from: Sequence[str]) -> None:
    """Replace the root file system by an empty one with `visible`, system folders and a few devices, all read-only."""
    wanted = [*SYSTEM_FOLDERS, *visible, *loaded_from]
    wanted += [path for path in SYSTEM_LINKS if os.path.isdir(path) and not os.path.islink(path)]
    wanted = [path for path in dict.fromkeys(wanted) if os.path.exists(path)]
    handles = {path: os.open(path, os.O_PATH) for path in sorted(wanted)}  # what we mount next may hide them
    root = "/tmp"
    linux.mount("tmpfs", root, "tmpfs", MS_NOSUID, "size=4m,mode=755")
    for path, handle in handles.items():
        _bind(f"/proc/self/fd/{handle}", root + path, is_folder=os.path.isdir(f"/proc/self/fd/{handle}"))
        os.close(handle)
    # Writing to a device is no change of it. On a mount for writing each run could set its times, which others see.
    device = linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID
    for path in (os.path.join(folder, name) for folder in visible for name in SETTINGS):
        if os.path.isfile(root + path):
            linux.mount("/dev/null", root + path, None, MS_BIND)
            linux.set_mount_attributes(root + path, device)
    for path in filter(os.path.islink, SYSTEM_LINKS):
        os.symlink(os.readlink(path), root + path)
    for path in DEVICES:
        _bind(path, root + path, is_folder=False, attributes=device)
    for folder in ("/proc", "/sandbox", "/etc"):
        os.makedirs(root + folder, exist_ok=True)
    links = {"/tmp": "/sandbox/tmp", "/dev/shm": "/sandbox/shm", "/dev/fd": "/proc/self/fd"}
    links |= {f"/dev/{name}": f"/proc/self/fd/{fd}" for fd, name in enumerate(("stdin", "stdout", "stderr"))}
    for path, target in links.items():
        if not os.path.lexists(root + path):  # each run replaces a /tmp that holds the interpreter
            os.symlink(target, root + path)
    texts = {
        "passwd": f"sandbox:x:{USER_INSIDE}:{USER_INSIDE}::/sandbox/work:/bin/sh\n",
        "group": f"sandbox:x:{USER_INSIDE}:\n",
        "hosts": "127.0.0.1 localhost\n",
    }
    for name, text in texts.items():
        with open(f"{root}/etc/{name}", "w") as file:
            file.write(text)
    linux.mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    linux.pivot_root(root)


def _second_places(visible: Sequence[str]) -> dict[str, str]:
    """Entry of /tmp that holds an interpreter -> another place of it, read-only, for when /tmp is replaced."""
    names = sorted({path.split("/")[2] for path in visible if path.startswith("/tmp/")})
    places = {name: f"/in_tmp/{name}" for name in names}
    for name, place in places.items():
        os.makedirs(place)
        linux.mount(f"/tmp/{name}", place, None, MS_BIND | MS_REC)
        linux.set_mount_attributes(place, linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV)
    return places


def _bind(
    source: str,
    target: str,
    *,
    is_folder: bool,
    attributes: int = linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV,
) -> None:
    if os.path.lexists(target):
        if not is_folder or os.listdir(target):
            return  # it came with a folder above it
    elif is_folder:
        os.makedirs(target)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    linux.mount(source, target, None, MS_BIND | MS_REC)
    linux.set_mount_attributes(target, attributes)


def _reap() -> None:
    """Wait for every child; they were all killed."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
