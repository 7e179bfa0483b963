"""What tests of threads and processes wait for, and where servers of a test may listen."""

import contextlib
import random
import socket
import time
from collections.abc import Callable, Sequence


def wait_for(is_so: Callable[[], object], timeout_s: float = 20.0, seen: Sequence[object] = ()) -> None:
    """Ask until it is so; a failure says what was `seen`."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, f"it never came; seen: {seen}"
        time.sleep(0.002)


def free_port() -> int:
    """A port below those that systems hand out by themselves, so that no process takes it before its server listens."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
