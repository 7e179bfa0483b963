# MUST: no packet leaves the machine: connecting is refused at once, not after a time-out.
import errno
import socket

from attack import blocked, pwned

REFUSALS = (errno.ENETUNREACH, errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EHOSTUNREACH)
TARGETS = ((socket.AF_INET, ("192.0.2.1", 80)), (socket.AF_INET6, ("2001:db8::1", 80)))  # reserved for documentation
for family, address in TARGETS:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            with socket.socket(family, kind) as sender:
                sender.settimeout(0.3)
                sender.connect(address)
                sender.send(b"x")
            pwned(f"{kind} to {address}")
        except OSError as error:
            (blocked if error.errno in REFUSALS else pwned)(f"{kind} to {address}", repr(error))
