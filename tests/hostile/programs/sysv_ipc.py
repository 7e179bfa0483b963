# MUST: shared memory, queues and semaphores of System V, which outlive a process, can be neither found nor made.
import os

from attack import expect_refusal

IPC_CREAT = 0o1000
for key in (int(os.environ["HOSTILE_SYSV_KEY"]), 0):
    expect_refusal("shmget", key, 1 << 20, IPC_CREAT | 0o600)
    expect_refusal("semget", key, 1, IPC_CREAT | 0o600)
    expect_refusal("msgget", key, IPC_CREAT | 0o600)
