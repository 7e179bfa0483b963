# MUST: no device but the harmless ones can be made or opened.
import os
import stat

from attack import attempt

for name, kind, major, minor in (
    ("mem", stat.S_IFCHR, 1, 1),
    ("disk", stat.S_IFBLK, 8, 0),
    ("null", stat.S_IFCHR, 1, 3),
):
    attempt(f"mknod {name}", lambda n=name, k=kind, m=(major, minor): os.mknod(n, k | 0o666, os.makedev(*m)))
for name in (
    "mem",
    "port",
    "kmsg",
    "sda",
    "vda",
    "nvme0n1",
    "kvm",
    "fuse",
    "net/tun",
    "loop-control",
    "console",
    "tty1",
):
    attempt(f"/dev/{name}", lambda n=name: os.open(f"/dev/{n}", os.O_RDONLY | os.O_NONBLOCK))
for name in ("userfaultfd", "btrfs-control", "vhost-net", "vsock", "hwrng", "nvidia0", "dri/card0", "input/event0"):
    attempt(f"/dev/{name}", lambda n=name: os.open(f"/dev/{n}", os.O_RDONLY | os.O_NONBLOCK))
