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


attempt("abstract", lambda: connect(socket.SOCK_STREAM, "\0" + os.environ["HOSTILE_ABSTRACT"]))
attempt("abstract datagram", lambda: connect(socket.SOCK_DGRAM, "\0" + os.environ["HOSTILE_ABSTRACT"] + "d"))
attempt("named", lambda: connect(socket.SOCK_STREAM, os.environ["HOSTILE_SOCKET"]))
for path in ("/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket", "/run/systemd/private"):
    attempt(path, lambda p=path: connect(socket.SOCK_STREAM, p))
