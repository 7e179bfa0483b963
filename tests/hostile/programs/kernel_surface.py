# MUST: system calls that only widen the attack surface are turned away before the kernel reads their arguments.
import ctypes

from attack import expect_refusal

room = ctypes.create_string_buffer(256)
expect_refusal("io_uring_setup", 1, room)
expect_refusal("keyctl", 0, -3, 1)
expect_refusal("add_key", b"user", b"hostile", b"x", 1, -3)
expect_refusal("request_key", b"user", b"hostile", None, -3)
expect_refusal("bpf", 0, room, 0)
expect_refusal("perf_event_open", room, 0, -1, -1, 0)
expect_refusal("userfaultfd", 1)
expect_refusal("memfd_secret", 0)
expect_refusal("memfd_create", b"hostile", 0)
expect_refusal("personality", ctypes.c_ulong(0x0040000))  # ADDR_NO_RANDOMIZE
expect_refusal("name_to_handle_at", -100, b".", room, room, 0)
expect_refusal("open_by_handle_at", -100, room, 0)
expect_refusal("fanotify_init", 0, 0)
expect_refusal("quotactl", -1, None, 0, None)
expect_refusal("kexec_load", 0, 0, None, -1)  # flags that no kernel takes
expect_refusal("init_module", None, 0, b"")
expect_refusal("finit_module", -1, b"", 0)
expect_refusal("swapon", b"/nowhere", 0)
expect_refusal("acct", b"/nowhere")
expect_refusal("reboot", 0, 0, 0, None)  # without the magic numbers: harmless where it gets through
expect_refusal("syslog", 9, None, 0)
expect_refusal("kcmp", 1, 1, 0, 0, 0)
expect_refusal("migrate_pages", 0, 0, None, None)
