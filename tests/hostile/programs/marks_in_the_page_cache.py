# MUST: whether a page of a shared file is in memory can be neither asked for nor changed by a call that is made for it.
import ctypes
import fcntl
import mmap
import os
import sys
import time

from attack import attempt, blocked, expect_refusal, libc, pwned

fd = os.open(os.path.realpath(sys.executable), os.O_RDONLY)
size = os.fstat(fd).st_size
room = ctypes.create_string_buffer(4096)
attempt("preadv2 RWF_NOWAIT", lambda: os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT))
attempt("preadv2 RWF_HIPRI", lambda: os.preadv(fd, [bytearray(1)], 0, os.RWF_HIPRI))
attempt("preadv2 RWF_DONTCACHE", lambda: os.preadv(fd, [bytearray(1)], 0, 0x80))
shared = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
attempt("pageout", lambda: shared.madvise(21))
attempt("cold", lambda: shared.madvise(20))
attempt("merging", lambda: mmap.mmap(-1, 4096).madvise(12))
expect_refusal("mincore", None, 0, room)
expect_refusal("cachestat", fd, room, room, 0)
expect_refusal("readahead", fd, ctypes.c_long(0), ctypes.c_size_t(4096))
attempt("precached extents", lambda: fcntl.ioctl(fd, 0x6612))
attempt("state of an inode", lambda: fcntl.ioctl(fd, 0x40046629, bytes(4)))
attempt("extents", lambda: fcntl.ioctl(fd, 0xC020660B, bytearray(4096)))
attempt("merging of all memory", lambda: libc.prctl(67, 1, 0, 0, 0) and (_ for _ in ()).throw(OSError("refused")))

folder = "/proc/self/map_files"
attempt("files of mappings", lambda: os.open(os.path.join(folder, os.listdir(folder)[0]), os.O_RDONLY))
with open("/proc/self/pagemap", "rb") as pages:
    attempt("ranges of pages", lambda: fcntl.ioctl(pages, 0xC0606610, bytearray(96)))  # PAGEMAP_SCAN

# Advice succeeds and has no effect: what was read stays in memory, as far as time can tell.
place = size // 2


def read_s() -> float:
    start = time.perf_counter()
    os.pread(fd, 1 << 20, place)
    return time.perf_counter() - start


read_s()
warm = min(read_s() for _ in range(20))
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
again = read_s()
(pwned if again > 20 * warm + 0.01 else blocked)("evicted", f"{warm:.6f} {again:.6f}")
