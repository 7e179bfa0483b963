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
    os.write(write_end, b"%d\n" % (written >> 20))
    time.sleep(1000)


started = 0
for _ in range(20):
    try:
        if os.fork() == 0:
            fill()
        started += 1
    except OSError:
        break
told, deadline = b"", time.monotonic() + 3.0
while told.count(b"\n") < started and time.monotonic() < deadline:
    try:
        told += os.read(read_end, 65536)
    except BlockingIOError:
        time.sleep(0.02)
total = sum(map(int, told.split()))
(pwned if total > 256 else blocked)(f"{total} MiB in pipes")
os._exit(0)
