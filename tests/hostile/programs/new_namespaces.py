# MUST: no new namespace, no mount, no other root, no way into the namespaces of process 1.
import ctypes
import errno
import os
import signal

from attack import attempt, blocked, expect_refusal, libc, pwned, system_call

FLAGS = {"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x8000000, "uts": 0x4000000}
for name, flag in {**FLAGS, "cgroup": 0x2000000, "time": 0x80}.items():
    expect_refusal("unshare", ctypes.c_ulong(flag))
    attempt(f"setns {name}", lambda n=name: os.open(f"/proc/1/ns/{n.replace('mount', 'mnt')}", os.O_RDONLY))
for name, flag in FLAGS.items():
    try:
        child = system_call("clone", ctypes.c_ulong(flag | signal.SIGCHLD), 0, 0, 0, 0)
    except OSError as error:
        blocked(f"clone {name}", error)
    else:
        if child == 0:
            os._exit(0)
        pwned(f"clone {name}")
expect_refusal("setns", -1, 0)
expect_refusal("chroot", b".")
expect_refusal("mount", b"none", b".", b"tmpfs", 0, None)
expect_refusal("umount2", b"/nowhere", 2)
expect_refusal("pivot_root", b".", b".")
expect_refusal("fsopen", b"tmpfs", 0)
expect_refusal("open_tree", -100, b"/", 1)
expect_refusal("move_mount", -1, b"", -1, b"", 0)
expect_refusal("mount_setattr", -100, b"/", 0, None, 0)
result = libc.syscall(435, None, 0)  # clone3: its flags lie in memory, so it must not exist at all
(blocked if result < 0 and ctypes.get_errno() in (errno.ENOSYS, errno.EPERM) else pwned)("clone3")
