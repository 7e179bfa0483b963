# MUST: nothing counts what others do, nor tells how the host was started and what runs on it.
import os

from attack import attempt, expect_refusal

for path in (
    *("locks", "vmstat", "loadavg", "cmdline", "stat", "meminfo", "diskstats", "interrupts", "softirqs", "slabinfo"),
    *("keys", "key-users", "mounts/../cmdline", "pressure/cpu", "pressure/memory", "buddyinfo", "zoneinfo", "uptime"),
    *("sys/fs/file-nr", "sys/fs/inode-nr", "sys/fs/dentry-state", "sys/fs/aio-nr", "sys/kernel/random/boot_id"),
    *("sys/kernel/hostname", "schedstat", "sched_debug", "timer_list", "swaps", "modules", "partitions", "kcore"),
    *("config.gz", "cgroups", "sysvipc/shm", "fs/ext4", "net/../version"),
):
    attempt(path, lambda p=path: os.close(os.open(f"/proc/{p}", os.O_RDONLY)))
attempt("load", os.getloadavg)
expect_refusal("sysinfo", bytes(256))
for path in ("/sys/kernel", "/sys/fs/cgroup", "/sys/class/net"):
    attempt(path, lambda p=path: os.listdir(p))
