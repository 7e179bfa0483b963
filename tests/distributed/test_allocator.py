"""Freed memory stays with the process: the next pass over the same sizes costs no page faults."""

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from agent_rl.distributed.allocator import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
before = 0
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    layers = [torch.ones(4 * 2**20) for _ in range(20)]  # 16 MiB each, 4096 pages
    del layers
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="only glibc has mallopt")
def test_a_pass_over_sizes_that_were_freed_costs_no_page_faults() -> None:
    assert faults("keep") < 5 * 4096
    # Now and then something lies at the end of the heap and keeps all of it. Never: the module can go.
    assert any(faults("leave") > 10 * 4096 for _ in range(6))
