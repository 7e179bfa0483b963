"""Filters that a process applies to itself permanently: seccomp (system calls) and Landlock (files, TCP, signals).

The seccomp list is deny-by-name: calls that only widen the attack surface, hold memory outside every limit, or leave a
mark on a file that other runs see too. Calls that this list was not written for do not exist (`_UNKNOWN`). Numbers are
known for x86_64 and aarch64; on other machines nothing is filtered and `syscall_filter` is not reported.
"""

import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Collection, Iterable

from agent_rl.sandbox.guest.linux import MACHINE, PR_SET_NO_NEW_PRIVS, checked, libc, prctl

_DENIED = {  # name: (x86_64, aarch64); None where the machine has no such call
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "personality": (135, 92),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "syslog": (103, 116),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "lookup_dcookie": (212, 18),
    "vhangup": (153, 58),
    "nfsservctl": (180, 42),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    # memory that no rlimit counts
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    # limits of the whole machine or user
    "io_setup": (206, 0),
    "io_submit": (209, 2),
    # who opens a file, which of its pages are in memory, how busy the machine is
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
    "fanotify_mark": (301, 263),
    "mincore": (27, 232),
    "cachestat": (451, 451),
    "readahead": (187, 213),
    "sysinfo": (99, 179),
}
_NEWEST = 452
"""`fchmodat2`, the last call of Linux that is let through. Any later one does not exist for a run: each that Linux adds
is closed until somebody has looked at it, and libc goes on without."""
_UNKNOWN = ((335, 424), (295, 424))
"""By machine, from the first number to before the last: what lies between the calls of old and those that all machines
number alike; Linux still adds calls there (`uretprobe`)."""
_FUTEX_WAITV = 449
_WITHOUT_EFFECT = {
    "flock": (73, 32),
    "fadvise64": (221, 223),
    "sync": (162, 81),
    "syncfs": (306, 267),
}
"""These succeed and do nothing. Advice about caches and writing to disk mean nothing in a run; locks would be seen by
other runs through the files that all share, and a program that takes them must go on."""
_REFUSED_VALUES: tuple[tuple[str, tuple[int, int], int, tuple[int, ...], int], ...] = (
    # name, (x86_64, aarch64), number of the argument, its values, error (0: succeeds and does nothing)
    ("fcntl: taking locks", (72, 25), 1, (6, 7, 37, 38), 0),
    ("fcntl: leases, notices, pipe sizes, write hints", (72, 25), 1, (*range(1024, 1027), 1031, *range(1035, 1039)), 1),
    ("setsockopt: sizes of buffers, which no limit counts", (54, 208), 2, (7, 8, 32, 33), 0),
    ("madvise: merging, evicting", (28, 233), 2, (12, 20, 21), 1),
    ("prctl: merging", (157, 167), 0, (67, 68), 1),
    ("setpriority of a group or a user", (141, 140), 0, (1, 2), 1),
    ("ioprio_set of a group or a user", (251, 30), 0, (2, 3), 1),
)
_WITH_FLAGS = {"preadv2": (327, 286), "pwritev2": (328, 287)}
"""Their flags tell whether a page is in memory."""
_OWN_ONLY = {  # name: (x86_64, aarch64, which argument names a process); refused unless it is 0, the caller
    "prlimit64": (302, 261, 0),
    "setpriority": (141, 140, 1),
    "ioprio_set": (251, 30, 1),
    "sched_setparam": (142, 118, 0),
    "sched_setscheduler": (144, 119, 0),
    "sched_setaffinity": (203, 122, 0),
    "sched_setattr": (314, 274, 0),
}
"""With these a program could starve the process that takes its run down, which has the same user."""
_MACHINES = {"x86_64": 0, "aarch64": 1}
_AUDIT_ARCH = (0xC000003E, 0xC00000B7)
_CLONE, _CLONE3, _IOCTL, _SECCOMP = (56, 220), (435, 435), (16, 29), (317, 277)
_SOCKET, _SOCKETPAIR = (41, 198), (53, 199)
_NEW_NAMESPACE = 0x7E020080  # every CLONE_NEW* flag
_AS_SIBLING = 0x8000  # CLONE_PARENT: beside the run instead of below it, where nothing would count it
_SOCKET_KIND = 0xF
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_IOCTL_KIND, _OF_FILE_SYSTEMS = 0xFF00, 0x6600  # some leave marks in a file's inode

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x50000


def _deny_if(operation: int, value: int, error: int) -> list[tuple[int, int, int, int]]:
    return [(operation, 0, 1, value), (_RETURN, 0, 0, _ERRNO | error)]


def _allow_only(values: tuple[int, ...], error: int) -> list[tuple[int, int, int, int]]:
    """Go on behind these rules with one of `values`, else refuse."""
    allowed = [(_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [*allowed, (_RETURN, 0, 0, _ERRNO | error)]


def _if_argument(number: int, argument: int, rules: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Apply `rules` to the lower half of an argument of one system call, then go on with its number loaded."""
    body = [(_LOAD, 0, 0, 16 + 8 * argument), *rules, (_LOAD, 0, 0, 0)]
    return [(_EQUAL, 0, len(body), number), *body]


def seccomp_program(families: tuple[int, ...]) -> bytes:
    """The BPF program; `families` are the address families a socket may have.

    Raises OSError on a machine whose system call numbers are not known.
    """
    if MACHINE not in _MACHINES:
        raise OSError(f"no system call numbers for {MACHINE}")
    column = _MACHINES[MACHINE]
    code = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _AUDIT_ARCH[column]), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    if MACHINE == "x86_64":  # the x32 numbering would go around the table
        code += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]
    for numbers in _DENIED.values():
        if numbers[column] is not None:
            code += _deny_if(_EQUAL, numbers[column], errno.EPERM)
    for numbers in _WITHOUT_EFFECT.values():
        code += _deny_if(_EQUAL, numbers[column], 0)
    for *both, argument in _OWN_ONLY.values():
        code += _if_argument(both[column], argument, _deny_if(_AT_LEAST, 1, errno.EPERM))
    for _, numbers, argument, values, error in _REFUSED_VALUES:
        rules = [rule for value in values for rule in _deny_if(_EQUAL, value, error)]
        code += _if_argument(numbers[column], argument, rules)
    for numbers in _WITH_FLAGS.values():
        code += _if_argument(numbers[column], 5, _deny_if(_AT_LEAST, 1, errno.EOPNOTSUPP))
    first, beyond = _UNKNOWN[column]
    code += [(_AT_LEAST, 0, 2, first), (_AT_LEAST, 1, 0, beyond), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    code += _deny_if(_AT_LEAST, _NEWEST + 1, errno.ENOSYS)
    code += _deny_if(_EQUAL, _FUTEX_WAITV, errno.ENOSYS)  # the other calls of its kind are later ones
    code += _deny_if(_EQUAL, _CLONE3[column], errno.ENOSYS)  # its flags lie in memory; libc falls back to clone
    code += _if_argument(_CLONE[column], 0, _deny_if(_ANY_BIT, _NEW_NAMESPACE | _AS_SIBLING, errno.EPERM))
    terminal = [*_deny_if(_EQUAL, _TIOCSTI, errno.EPERM), *_deny_if(_EQUAL, _TIOCLINUX, errno.EPERM)]
    files = [(_AND, 0, 0, _IOCTL_KIND), *_deny_if(_EQUAL, _OF_FILE_SYSTEMS, errno.ENOTTY)]
    code += _if_argument(_IOCTL[column], 1, [*terminal, *files])
    code += _if_argument(_SOCKET[column], 0, _allow_only(families, errno.EAFNOSUPPORT))
    code += _if_argument(_SOCKETPAIR[column], 0, _allow_only((socket.AF_UNIX,), errno.EAFNOSUPPORT))
    if not families:  # others could send to any address: the kernel takes a raw one for one of datagrams
        connected = _allow_only((socket.SOCK_STREAM, socket.SOCK_SEQPACKET), errno.ESOCKTNOSUPPORT)
        code += _if_argument(_SOCKETPAIR[column], 1, [(_AND, 0, 0, _SOCKET_KIND), *connected])
    code += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def filter_families(*, network: bool) -> tuple[int, ...]:
    """Families a program may open: none where no namespace confines them.

    Connected pairs of AF_UNIX always work, pairs of datagram sockets only where some family may be opened.
    """
    return (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6) if network else ()


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def install_seccomp(program: bytes) -> None:
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    argument = _Program(len(program) // 8, program)
    checked("seccomp", libc.syscall(_SECCOMP[_MACHINES[MACHINE]], 1, 0, ctypes.byref(argument)))


# ---------------------------------------------------------------- Landlock

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL_DEV = 1, 2, 4, 8, 1 << 14, 1 << 15
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_ALL_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}


def landlock_abi() -> int:
    """Version of Landlock, 0 where there is none."""
    return max(0, libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1))


def all_but(hidden: Collection[str], paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """(What to make readable, folders to make listable) so that `paths` are, but for what is `hidden` below them.

    Rules of Landlock take nothing back, so all that lies beside the way to a hidden thing is allowed one by one. Links
    there are not: what they lead to is allowed in its own place or not at all. Names of hidden files can be listed.
    """
    readable: list[str] = []
    listable: list[str] = []
    queue = [os.path.realpath(path) for path in paths]
    while queue:
        path = queue.pop()
        if not any(f"{other}/".startswith(f"{path}/") for other in hidden):
            readable.append(path)
        elif path not in hidden:
            listable.append(path)
            with contextlib.suppress(OSError), os.scandir(path) as entries:
                queue += [entry.path for entry in entries if not entry.is_symlink()]
    return list(dict.fromkeys(readable)), list(dict.fromkeys(listable))


def install_landlock(readable: list[str], listable: list[str], writable: list[str]) -> None:
    """Allow reading `readable`, the names in `listable` and everything in `writable`; no TCP (ABI 4), no signals out of
    the domain (ABI 6)."""
    abi = landlock_abi()
    if abi < 1:
        raise OSError("this kernel has no Landlock")
    files = _ALL_RIGHTS.get(abi, (1 << 16) - 1)
    attributes = struct.pack("QQQ", files, 3, 3)[: 8 if abi < 4 else 16 if abi < 6 else 24]
    size = ctypes.c_size_t(len(attributes))
    ruleset = checked("landlock", libc.syscall(_CREATE_RULESET, attributes, size, 0))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    read = _EXECUTE | _READ_FILE | _READ_DIR
    for paths, rights in ((readable, read), (listable, _READ_DIR), (writable, files)):
        for path in paths:
            if not os.path.exists(path):
                continue
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            allowed = (rights if os.path.isdir(path) else rights & _ON_FILES) & files
            rule = struct.pack("=Qi", allowed, handle)
            checked(f"landlock {path}", libc.syscall(_ADD_RULE, ruleset, 1, rule, 0))
            os.close(handle)
    checked("landlock", libc.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)
