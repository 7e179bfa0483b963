"""One program at a time writes to a run's folder: a lock on a file in it, which ends with the program.

Not here: what is in the folder (`run_folder.py`). Where the file system knows no locks, nothing is locked.
"""

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from agent_rl.errors import ConfigError

if TYPE_CHECKING:
    from agent_rl.distributed.processes import Processes  # which imports PyTorch, and followers of runs need none

LOCK_FILE = ".lock"
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


def make_run_folder(folder: Path) -> None:
    """Make the folder of a run. ConfigError where that cannot be, as for a file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"run.output_dir = {str(folder.parent)!r}: no folder can be made there ({error.strerror}); give another one"
        ) from None


class RunLock:
    """`lock.acquire()` before anything is written, `lock.release()` at the end."""

    def __init__(self, folder: Path, *, holder: str = "a run", remedy: str = "set another run.name") -> None:
        """`holder` is who writes to such a folder, `remedy` what helps beside waiting; both are for the error."""
        self._holder, self._remedy = holder, remedy
        self._path = folder / LOCK_FILE
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """ConfigError while another run, of this program too, holds it, and where no folder can be made.

        OSError of a full disk.
        """
        make_run_folder(self._path.parent)
        file = self._path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                file.close()
                return
            file.seek(0)
            holder = file.read(200).strip()
            file.close()
            raise ConfigError(
                f"{self._path.parent} is being written by {self._holder} that has not ended ({holder or 'unknown'}); "
                f"wait for it, or {self._remedy}"
            ) from None
        self._file = file
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


@contextmanager
def held_folder(folder: Path, processes: "Processes") -> Iterator[None]:
    """No other program writes to the folder of this run meanwhile. Collective."""
    lock = RunLock(folder)
    processes.on_main(lock.acquire)
    try:
        yield
    finally:
        lock.release()
