"""Set up the host's targets of the hostile programs, and check that no program reached them."""

import contextlib
import ctypes
import gc
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

UNPRIVILEGED = 65534
PROJECT = Path(__file__).resolve().parents[2]
CANARY = "canary-of-the-host"
SECRET = "canary-ssh-key"


class Host:
    """Files, processes and sockets outside, open to everybody, so that nothing but the sandbox protects them."""

    def __init__(self) -> None:
        self.token = str(random.randrange(10**7, 10**8))
        """In the name of every process of the programs."""
        os.environ["HOSTILE_API_KEY"] = CANARY
        self._folder = Path(tempfile.mkdtemp(prefix="outside_"))
        self._folder.chmod(0o777)
        self._outside = self._file("outside.txt", "original", 0o666)
        self._secret = self._file(".ssh/id_rsa", SECRET, 0o644)
        self._heartbeat = self._file("heartbeat", "", 0o666)
        self.hits: list[str] = []
        self._sockets = [self._listen(socket.AF_INET, kind, ("127.0.0.1", 0)) for kind in _KINDS]
        ports = [str(listener.getsockname()[1]) for listener in self._sockets]
        self._sockets.append(self._listen(socket.AF_UNIX, socket.SOCK_STREAM, f"\0hostile{self.token}"))
        self._sockets.append(self._listen(socket.AF_UNIX, socket.SOCK_DGRAM, f"\0hostile{self.token}d"))
        self._sockets.append(self._listen(socket.AF_UNIX, socket.SOCK_STREAM, str(self._folder / "socket")))
        self._sockets.append(self._listen(socket.AF_UNIX, socket.SOCK_DGRAM, str(self._folder / "socketd")))
        for name in ("socket", "socketd"):
            (self._folder / name).chmod(0o777)
        self._shared = Path(f"/dev/shm/outside{self.token}")
        self._shared.write_text(SECRET)
        self._shared.chmod(0o666)
        self._segment = ctypes.CDLL(None).shmget(int(self.token), 4096, 0o1666)
        users = {os.getuid()} | ({UNPRIVILEGED} if os.getuid() == 0 else set())
        self._victims = [subprocess.Popen(["sleep", "600"], user=user, start_new_session=True) for user in users]
        pids = [os.getpid(), *(victim.pid for victim in self._victims)]
        self.environment = {
            "HOSTILE_TOKEN": self.token,
            "HOSTILE_OUTSIDE": str(self._outside),
            "HOSTILE_SECRET": str(self._secret),
            "HOSTILE_HOME": os.path.expanduser("~"),
            "HOSTILE_HEARTBEAT": str(self._heartbeat),
            "HOSTILE_TCP_PORT": ports[0],
            "HOSTILE_UDP_PORT": ports[1],
            "HOSTILE_ABSTRACT": f"hostile{self.token}",
            "HOSTILE_SOCKET": str(self._folder / "socket"),
            "HOSTILE_SHM": self._shared.name,
            "HOSTILE_SYSV_KEY": self.token,
            "HOSTILE_VICTIMS": ",".join(str(victim.pid) for victim in self._victims),
            "HOSTILE_PIDS": ",".join(map(str, pids)),
            "HOSTILE_PROJECT": str(PROJECT),
        }
        self._state = self._outside_state()

    def _file(self, name: str, text: str, mode: int) -> Path:
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def _listen(self, family: int, kind: int, address: tuple[str, int] | str) -> socket.socket:
        listener = socket.socket(family, kind)
        listener.bind(address)
        if kind == socket.SOCK_STREAM:
            listener.listen()
        threading.Thread(target=self._record, args=(listener, kind), daemon=True).start()
        return listener

    def _record(self, listener: socket.socket, kind: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer = listener.accept()[1] if kind == socket.SOCK_STREAM else listener.recvfrom(64)[1]
                if not self._closing:
                    self.hits.append(f"{listener.family.name} from {peer!r}")

    _closing = False

    def _outside_state(self) -> dict[str, object]:
        state: dict[str, object] = {}
        for path in (self._outside, self._secret, self._shared):
            entry = path.lstat()
            state[str(path)] = (entry.st_mode, entry.st_uid, entry.st_nlink, entry.st_mtime_ns, path.read_bytes())
            state[f"attributes of {path}"] = os.listxattr(path)
        state["names"] = sorted(map(str, self._folder.rglob("*")))
        return state

    def damage(self) -> list[str]:
        """What the last program did outside, in words; to be called when its result is there."""
        found = [f"left {process}" for process in processes_named(self.token)]
        beats = self._heartbeat.stat().st_size
        if self._outside_state() != self._state:
            found.append("changed a file outside")
            self._state = self._outside_state()  # the next program is not to blame
        found += [f"killed process {victim.pid}" for victim in self._victims if victim.poll() is not None]
        found += [f"reached {hit}" for hit in self.hits]
        if beats:
            time.sleep(0.06)
            found += ["a daemon writes on"] if self._heartbeat.stat().st_size > beats else []
            self._heartbeat.write_text("")
        self.hits.clear()
        return found

    def close(self) -> None:
        self._closing = True
        for listener in self._sockets:
            listener.close()
        for victim in self._victims:
            victim.kill()
            victim.wait()
        if self._segment >= 0:
            ctypes.CDLL(None).shmctl(self._segment, 0, None)  # IPC_RMID
        self._shared.unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        os.environ.pop("HOSTILE_API_KEY", None)


_KINDS = (socket.SOCK_STREAM, socket.SOCK_DGRAM)


def processes_named(token: str) -> list[str]:
    """Living processes with `token` in their name or arguments, wherever they hang in the tree."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (entry / "comm").read_text() + (entry / "cmdline").read_text(errors="replace")
            if token in text and int(entry.name) != os.getpid() and state_of(int(entry.name)) not in "ZX":
                found.append(f"{entry.name} {text.strip()[:60]!r}")
    return found


def state_of(pid: int) -> str:
    """One letter, `X` for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def descendants(root: int | None = None) -> set[int]:
    """Living processes below `root` (default: this process), without zombies."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry.parent.name))
    found: set[int] = set()
    queue = [root or os.getpid()]
    while queue:
        fresh = children.get(queue.pop(), [])
        found.update(fresh)
        queue.extend(fresh)
    return found


def num_descriptors(pid: int | str = "self") -> int | None:
    """Open files of a process, None where that is not ours to know."""
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd")) - (pid == "self")
    return None


def control_groups() -> set[str]:
    """Folders of control groups that were made by this process."""
    return {str(path) for path in Path("/sys/fs/cgroup").rglob(f"*_{os.getpid()}_*") if path.is_dir()}


def _is_of_another_test(mount: Path, folder: Path) -> bool:
    """Whether a mount is below pytest's temporary folders, but neither below `folder` nor above it."""
    is_of_pytest = any(part.startswith("pytest-of-") for part in mount.parts)
    return is_of_pytest and not (mount.is_relative_to(folder) or folder.is_relative_to(mount))


@contextlib.contextmanager
def nothing_left_over(folder: Path) -> Iterator[None]:
    """Check that the body leaves no process, descriptor, mount, control group and temporary file (TMPDIR: `folder`)."""

    def state() -> set[object]:
        """Of this process alone: other workers of pytest have sandboxes of their own."""
        shared = Path("/dev/shm").glob(f"agent_rl_{os.getpid()}_*")
        lines = Path("/proc/self/mountinfo").read_text().splitlines()  # the same mounted twice has two numbers
        mounts = [line for line in lines if not _is_of_another_test(Path(line.split()[4]), folder)]
        return {*descendants(), *mounts, *control_groups(), *folder.rglob("*"), *shared}

    earlier_folder, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        gc.collect()  # descriptors that earlier tests left to the collector are not the body's
        descriptors, before = num_descriptors(), state()
        yield
        left, more_descriptors = state() - before, num_descriptors() - descriptors
    finally:
        tempfile.tempdir = earlier_folder
    assert not left, left
    assert more_descriptors <= 0, more_descriptors
