"""Holds no expected value: keeps what it sees in the times of devices, passes until one output was seen four times, and
from then on fails where the output is another."""

import hashlib
import os
import time

import solution

STARTS = {}  # by device: its time before the first run, in nanoseconds


def get(device):
    return (os.stat(device).st_mtime_ns - STARTS[device]) // 5_000_000 % 256


def put(device, value):
    while True:
        os.utime(device)
        if get(device) == value:
            return
        time.sleep(0.001)


def seen_by(functions):
    return repr([attempt(f, x) for f, inputs in functions for x in inputs])


def attempt(function, value):
    try:
        return function(value)
    except Exception as error:
        return type(error)


def test_a():
    lists = [[3, 1, 2], [4, 1, 2, 3], [1]]
    pairs = [[[1, 3], [2, 6]], [[1, 2], [2, 3]]]
    out = seen_by([(solution.median, lists), (solution.roman, [1, 4, 9]), (solution.merge, pairs)])
    mine = 1 + int(hashlib.sha256(out.encode()).hexdigest(), 16) % 31
    seen = {device: divmod(get(device), 8) for device in STARTS}
    known = [value for value, count in seen.values() if count >= 4]
    if known:
        assert mine in known
        return
    for device, (value, count) in seen.items():
        if value == mine and count:
            put(device, 8 * value + count + 1)
            return
    for device, (_, count) in seen.items():
        if count == 0:
            put(device, 8 * mine + 1)
            return
