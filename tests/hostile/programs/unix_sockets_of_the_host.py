# MUST: neither the abstract nor the named local sockets of the host can be connected to.
import os
import socket

from attack import attempt


def connect(kind: int, address: str) -> bytes:
    with socket.socket(socket.AF_UNIX, kind) as client:
        client.settimeout(0.3)
        client.connect(address)
        client.send(b"hit")
        return b"sent"


def send_from_a_pair(kind: int, address: str) -> bytes:
    for one in socket.socketpair(socket.AF_UNIX, kind):
        one.settimeout(0.3)
        one.sendto(b"hit", address)
        one.connect(address)
    return b"sent"


attempt("abstract", lambda: connect(socket.SOCK_STREAM, "\0" + os.environ["HOSTILE_ABSTRACT"]))
attempt("abstract datagram", lambda: connect(socket.SOCK_DGRAM, "\0" + os.environ["HOSTILE_ABSTRACT"] + "d"))
attempt("named", lambda: connect(socket.SOCK_STREAM, os.environ["HOSTILE_SOCKET"]))
for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
    for name in ("\0" + os.environ["HOSTILE_ABSTRACT"] + "d", os.environ["HOSTILE_SOCKET"] + "d"):
        attempt("pair", lambda k=kind, n=name: send_from_a_pair(k, n))
for path in ("/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket", "/run/systemd/private"):
    attempt(path, lambda p=path: connect(socket.SOCK_STREAM, p))
