# MUST: what many processes leave in the buffers of connections to themselves is bounded.
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
        while written < 64 << 20 and len(kept) < 50:
            listener = socket.socket()
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            near = socket.create_connection(listener.getsockname())
            kept += [near, listener.accept()[0]]
            listener.close()
            for end in kept[-2:]:
                end.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        written += end.send(b"x" * 65536)
    os.write(write_end, b"%d\n" % (written >> 20))
    time.sleep(1000)


started = 0
for _ in range(8):
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
(pwned if total > 256 else blocked)(f"{total} MiB in connections")
os._exit(0)
