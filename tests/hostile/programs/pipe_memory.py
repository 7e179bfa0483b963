# MUST: what many processes leave in pipes is bounded.
import contextlib
import fcntl
import os
import time

from attack import blocked, pwned

read_end, write_end = os.pipe()
os.set_blocking(read_end, False)


def fill() -> None:
    kept, written = [], 0
    with contextlib.suppress(OSError):
        while written < 32 << 20:
            kept.append(os.pipe())
            with contextlib.suppress(OSError):
                fcntl.fcntl(kept[-1][1], 1031, 1 << 20)  # F_SETPIPE_SZ
            os.set_blocking(kept[-1][1], False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    written += os.write(kept[-1][1], b"x" * 65536)
    os.write(write_end, b"x" * (written >> 20))
    time.sleep(1000)


for _ in range(20):
    try:
        if os.fork() == 0:
            fill()
    except OSError:
        break
total, deadline = 0, time.monotonic() + 1.0
while time.monotonic() < deadline:
    try:
        total += len(os.read(read_end, 65536))
    except BlockingIOError:
        time.sleep(0.02)
(pwned if total > 256 else blocked)(f"{total} MiB in pipes")
os._exit(0)
