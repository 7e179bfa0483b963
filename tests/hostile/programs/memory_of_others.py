# MUST: ptrace, process_vm_readv/writev, pidfd_getfd and /proc/PID/mem fail on the host, the parent and process 1.
import ctypes
import os

from attack import attempt, expect_refusal

PTRACE_ATTACH, PTRACE_SEIZE, PTRACE_TRACEME = 16, 0x4206, 0
buffer = ctypes.create_string_buffer(8)
vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
expect_refusal("ptrace", PTRACE_TRACEME, 0, 0, 0)
for pid in {1, os.getppid(), *map(int, os.environ["HOSTILE_PIDS"].split(","))} - {0}:
    expect_refusal("ptrace", PTRACE_ATTACH, pid, 0, 0)
    expect_refusal("ptrace", PTRACE_SEIZE, pid, 0, 0)
    expect_refusal("process_vm_readv", pid, vector, 1, vector, 1, 0)
    expect_refusal("process_vm_writev", pid, vector, 1, vector, 1, 0)
    expect_refusal("pidfd_getfd", 0, 1, 0)
    attempt(f"mem of {pid}", lambda p=pid: os.close(os.open(f"/proc/{p}/mem", os.O_RDWR)))
