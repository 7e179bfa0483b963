# MUST: what is written to the descriptors found open is at most output: the run's report is not forged or lost.
import contextlib
import json
import os
import struct

forged = json.dumps({"status": "ok", "exit_code": 0, "result": "forged", "kind": "result", "ok": True}).encode()
for descriptor in range(3, 256):
    for text in (forged + b"\n", struct.pack(">I", len(forged)) + forged, struct.pack("<I", 2**31) + b"\0" * 100):
        with contextlib.suppress(OSError):
            os.set_blocking(descriptor, False)
            os.write(descriptor, text)
os.closerange(3, 256)
os._exit(9)
