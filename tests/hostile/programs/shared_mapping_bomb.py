# MUST: shared anonymous memory of many processes is bounded like any other.
import mmap
import os
import time

from attack import blocked, pwned

read_end, write_end = os.pipe()
os.set_blocking(read_end, False)
for number in range(12):
    try:
        if os.fork() == 0:
            shared = mmap.mmap(-1, 96 << 20)
            for offset in range(0, len(shared), 4096):
                shared[offset] = 1
            os.write(write_end, b"h")
            time.sleep(1000)
    except (OSError, MemoryError) as error:
        blocked(f"mapping {number}", error)
        break
holding, deadline = 0, time.monotonic() + 3.0
while holding < number + 1 and time.monotonic() < deadline:
    try:
        holding += len(os.read(read_end, 64))
    except BlockingIOError:
        time.sleep(0.02)
(pwned if holding >= 8 else blocked)(f"{holding * 96} MiB shared")
os._exit(0)
