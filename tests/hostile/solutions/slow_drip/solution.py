import json
import os
import struct
import time

LINK = 4


def frame(message):
    body = json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body


def median(xs):
    for byte in frame({"seq": 1, "value": "x" * 1000}):
        os.write(LINK, bytes([byte]))
        time.sleep(0.05)


roman = merge = median
