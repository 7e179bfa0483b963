# MUST: processes that are each small enough do not hold 2 GiB together.
import os
import time

from attack import blocked, pwned

SHARE_MIB = 96
read_end, write_end = os.pipe()
os.set_blocking(read_end, False)
for number in range(22):
    try:
        if os.fork() == 0:
            kept = []
            for _ in range(SHARE_MIB):
                kept.append(bytearray(b"x") * (1 << 20))
            os.write(write_end, b"h")
            time.sleep(1000)
    except OSError as error:
        blocked(f"fork {number}", error)
        break
    except MemoryError:
        time.sleep(1000)
holding, deadline = 0, time.monotonic() + 3.0
while holding < number + 1 and time.monotonic() < deadline:
    try:
        holding += len(os.read(read_end, 64))
    except BlockingIOError:
        time.sleep(0.02)
(pwned if holding * SHARE_MIB >= 768 else blocked)(f"{holding} processes hold {holding * SHARE_MIB} MiB")
os._exit(0)
