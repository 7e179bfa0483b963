"""Remove what a run left behind, however deep, locked or oddly named, and what hosts that were killed left behind.

Standard library only. Only for trees in which no process writes any more.
"""

import contextlib
import fcntl
import itertools
import os
import re
import stat
import tempfile

_BATCH = 1000
_SCRATCH = re.compile(r"(agent_rl_[0-9]+_[a-z0-9_]{8})(_[0-9]+_[0-9a-f]{16})?(\.[0-9]+)*")
"""The folder that a server locks, the boxes of its runs beside it, and what `remove_tree` moved up beside either."""


def remove_tree(path: str) -> None:
    """Remove a folder and all below it. Raises OSError where the kernel refuses.

    Neither by recursion nor by path: every folder found is moved up beside `path`, so that names stay short and few
    descriptors are open, however deep the tree was. Makes nothing, so it works on a full file system. Follows no link,
    also not one that takes the place of a folder meanwhile.
    """
    parent, name = os.path.split(path)
    top = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        numbers = itertools.count()
        folders = [name]
        while folders:
            folder = folders.pop()
            handle = _open_unlocked(folder, top)
            try:
                while entries := _some_entries(handle):
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            os.close(_open_unlocked(entry.name, handle))  # else its parent cannot change
                            folders.append(f"{name}.{next(numbers)}")
                            os.rename(entry.name, folders[-1], src_dir_fd=handle, dst_dir_fd=top)
                        else:
                            os.unlink(entry.name, dir_fd=handle)
            finally:
                os.close(handle)
            os.rmdir(folder, dir_fd=top)
    finally:
        os.close(top)


def _open_unlocked(name: str, folder: int | None = None) -> int:
    """Open a folder, and no link to one, after giving its owner all rights to it."""
    mere_handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{mere_handle}", 0o700)  # needs no right to read it, as fchmod would
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=mere_handle)
    finally:
        os.close(mere_handle)


def remove_all(prefix: str) -> None:
    """Remove all folders whose paths begin so, and what else does, the longest names first."""
    parent, beginning = os.path.split(prefix)
    for name in sorted(filter(lambda name: name.startswith(beginning), os.listdir(parent)), reverse=True):
        path = os.path.join(parent, name)
        if stat.S_ISDIR(os.lstat(path).st_mode):
            remove_tree(path)
        else:
            os.unlink(path)


def _some_entries(handle: int) -> list[os.DirEntry[str]]:
    with os.scandir(handle) as entries:
        return list(itertools.islice(entries, _BATCH))


def make_scratch(owner: int) -> str:
    """An empty folder of a server whose host is process `owner`, in memory where that can be.

    The boxes of its runs lie beside it and have names that begin as its own.
    It is locked as long as this process and what it forks live, so that others can tell it from one left behind.
    """
    while True:
        path = tempfile.mkdtemp(prefix=f"agent_rl_{owner}_", dir=_parent())
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.path.exists(path):  # else somebody took it for one left behind before it was locked
            return path
        os.close(handle)


def remove_stale() -> None:
    """Remove what servers that are gone left, as far as it is ours to remove."""
    parent = _parent()
    with contextlib.suppress(OSError):
        found = [match for match in map(_SCRATCH.fullmatch, os.listdir(parent)) if match]
        for name in {match[1] for match in found}:
            with contextlib.suppress(OSError):  # its server lives, or somebody else removes it
                _remove_unlocked(os.path.join(parent, name))


def _remove_unlocked(scratch: str) -> None:
    try:
        handle = _open_unlocked(scratch)
    except (FileNotFoundError, NotADirectoryError):  # it goes last, so nobody uses what lies beside it
        remove_all(scratch)
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_all(scratch)
    finally:
        os.close(handle)


def _parent() -> str:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
