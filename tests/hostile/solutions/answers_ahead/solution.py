import json
import os
import struct

LINK = 4


def frame(message):
    body = json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body


for seq in range(100):
    os.write(LINK, frame({"seq": seq, "value": 2}))


def median(xs):
    return None


roman = merge = median
