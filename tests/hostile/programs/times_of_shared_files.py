# MUST: no file that later runs see can be changed in any way, its times included, and no device either.
import os

from attack import attempt, blocked, pwned

OWN = ("/sandbox", "/tmp", "/proc")
with open("/proc/self/mountinfo") as file:
    mounts = [line.split()[4] for line in file]
shared = [path for path in mounts if not path.startswith(OWN)]
devices = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")]
links = ["/tmp", "/dev/shm", "/dev/fd", "/dev/stdin", "/bin", "/lib"]
paths = ["/", "/dev", "/proc", "/etc", "/etc/passwd", os.__file__, *devices, *shared]
for path in filter(os.path.exists, dict.fromkeys(paths)):
    attempt(f"times of {path}", lambda p=path: os.utime(p))
    attempt(f"mode of {path}", lambda p=path: os.chmod(p, 0o777))
    attempt(f"attribute of {path}", lambda p=path: os.setxattr(p, "user.mark", b"1"))
    is_for_reading = os.statvfs(path).f_flag & os.ST_RDONLY
    (blocked if is_for_reading else pwned)(f"mount of {path}")
for path in filter(os.path.islink, links):
    attempt(f"times of the link {path}", lambda p=path: os.utime(p, follow_symlinks=False))
for path in devices:
    before = os.stat(path).st_atime_ns
    with open(path, "rb", buffering=0) as device:
        device.read(1)
    (blocked if os.stat(path).st_atime_ns == before else pwned)(f"reading {path}")
    if path not in ("/dev/full", "/dev/random"):
        with open(path, "wb", buffering=0) as device:  # which must go on
            device.write(b"x")
