# MUST: bytes that are no text are the server's fault, not an error of the sandbox.
import os
import time

os.write(1, bytes(range(256)).replace(b"\n", b"") * 16 + b"\n" + b"\xff\xfe{}\n" + b"\0\n")
time.sleep(1e6)
