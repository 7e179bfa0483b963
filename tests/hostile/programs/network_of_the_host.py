# MUST: what listens on the host, by TCP or UDP, hears nothing.
import os
import socket

from attack import attempt


def tcp(host: str) -> bytes:
    with socket.create_connection((host, int(os.environ["HOSTILE_TCP_PORT"])), 0.5) as client:
        client.sendall(b"hit")
        return client.recv(16)


def udp(host: str) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(0.2)
        client.sendto(b"hit", (host, int(os.environ["HOSTILE_UDP_PORT"])))
        return client.recv(16)


for host in ("127.0.0.1", "127.1.2.3", "localhost", "0.0.0.0"):
    attempt(f"TCP to {host}", lambda h=host: tcp(h))
attempt("UDP", lambda: udp("127.0.0.1"))
