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
    os.write(write_end, b"%d\n" % (written >> 20))
    time.sleep(1000)


started = 0
for _ in range(20):
    try:
        if os.fork() == 0:
            fill()
        started += 1
    except OSError as error:
        blocked("fork", error)
        break
told, deadline = b"", time.monotonic() + 3.0
while told.count(b"\n") < started and time.monotonic() < deadline:
    try:
        told += os.read(read_end, 65536)
    except BlockingIOError:
        time.sleep(0.02)
total = sum(map(int, told.split()))
(pwned if total > 320 else blocked)(f"{total} MiB in sockets")
os._exit(0)
