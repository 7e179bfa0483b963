# MUST: descriptors parked in socket queues are bounded too.
import os
import socket

from attack import attempt

null = os.open("/dev/null", os.O_RDONLY)


def park() -> int:
    parked, ends = 0, []
    while parked < 5000:
        ends.append(socket.socketpair())
        ends[-1][0].setblocking(False)
        try:
            for _ in range(40):
                socket.send_fds(ends[-1][0], [b"x"], [null] * 50)
                parked += 50
        except BlockingIOError:
            continue
    return parked


attempt("parked descriptors", park)
