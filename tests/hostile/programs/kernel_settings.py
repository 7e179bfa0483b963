# MUST: the kernel's own files take no writes. (They are opened only, nothing is written.)
import os

from attack import attempt

for path in (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/fs/file-max",
    "/proc/sysrq-trigger",
    "/proc/self/uid_map",
    "/proc/1/oom_score_adj",
    "/sys/kernel/uevent_helper",
    "/sys/power/state",
    "/sys/fs/cgroup/cgroup.procs",
    "/sys/fs/cgroup/unified/cgroup.procs",
    "/sys/fs/cgroup/memory/tasks",
):
    attempt(path, lambda p=path: os.close(os.open(p, os.O_WRONLY)))
for path in ("/sys/fs/cgroup/hostile", "/sys/fs/cgroup/unified/hostile", "/sys/fs/cgroup/memory/hostile"):
    attempt(path, lambda p=path: (os.mkdir(p), os.rmdir(p)))
for path in ("/proc/kcore", "/proc/kmsg", "/sys/kernel/debug/tracing", "/proc/kallsyms/x", "/proc/1/stack"):
    attempt(path, lambda p=path: os.open(p, os.O_RDONLY | os.O_NONBLOCK))
