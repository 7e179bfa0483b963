# MUST: what many processes leave in the buffers of local sockets is bounded.
import contextlib
import os
import socket
import time

from attack import blocked, pwned

read_end, write_end = os.pipe()
os.set_blocking(read_end, False)


def fill() -> None:
    kept, written = [], 0
    with contextlib.suppress(OSError):
        for _ in range(28):
            kept.append(socket.socketpair())
            for end in kept[-1]:
                end.setblocking(False)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        written += end.send(b"x" * 65536)
    os.write(write_end, b"x" * (written >> 20))
    time.sleep(1000)


for _ in range(20):
    try:
        if os.fork() == 0:
            fill()
    except OSError as error:
        blocked("fork", error)
        break
total, deadline = 0, time.monotonic() + 1.0
while time.monotonic() < deadline:
    try:
        total += len(os.read(read_end, 65536))
    except BlockingIOError:
        time.sleep(0.02)
(pwned if total > 320 else blocked)(f"{total} MiB in sockets")
os._exit(0)
