# MUST: sockets that talk to the kernel, to devices or to a hypervisor are refused.
import socket

from attack import attempt

FAMILIES = {
    "netlink": (16, socket.SOCK_RAW, 0),
    "packet": (17, socket.SOCK_RAW, 0),
    "bluetooth": (31, socket.SOCK_RAW, 1),
    "can": (29, socket.SOCK_RAW, 1),
    "tipc": (30, socket.SOCK_SEQPACKET, 0),
    "crypto": (38, socket.SOCK_SEQPACKET, 0),
    "vsock": (40, socket.SOCK_STREAM, 0),
    "kcm": (41, socket.SOCK_DGRAM, 0),
    "xdp": (44, socket.SOCK_RAW, 0),
    "raw": (socket.AF_INET, socket.SOCK_RAW, 1),
    "raw6": (socket.AF_INET6, socket.SOCK_RAW, 58),
}
for name, arguments in FAMILIES.items():
    attempt(name, lambda a=arguments: socket.socket(*a))
